"""``backup-behind``: backups are taken from minions that stand still or lag, while puts are
acknowledged.

A minion acknowledges a commit once it has received it, and shows it once it has applied it: so a
backup that reads only cells shown by minions may lack cells acknowledged to callers. Each backup
waits, or fails and names the gap. Every one that ends well is restored: it has every cell that was
acknowledged before it began, in its place (I1, I4). Every one that fails names all cells that were
acknowledged before and are on no minion, and leaves nothing behind.

Each backup is a process of its own towards the servers: its nodes stand behind proxies of its own,
and the master's may be slow.
"""

from __future__ import annotations

import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

from cellfeed.store.backups import ends
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.engines.mysql.address import parse_mysql_url
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import Unavailable
from cellfeed.store.limits import ADDED_ID_MAX
from tests.faults.cluster_faults import bring_back, until
from tests.faults.cluster_system import DATASTORE, SHARDS, ClusterSystem
from tests.faults.ledger import Put
from tests.faults.restored import backed_up, lacking, restored_log, unsound
from tests.support.tcp_proxy import TcpProxy

BACKUPS: Final = 4
"""In one run, each in another state of the minions."""

REFUSED_S: Final = 2.0
WAITED_S: Final = 12.0
"""How long a backup waits in these runs where nothing heals meanwhile, and where something does;
the product waits for half a minute."""

SLOW_S: Final = 0.3
"""A packet more on the way to a slow master takes so long: longer than a look is waited for."""

_GAP: Final = re.compile(r"shard (\d+) from (\d+) (?:to (\d+)|on)")


@dataclass
class Scene:
    """One backup. ``proxies``: on its own way to each node; ``held``: by shard the end of the cells
    that a minion has applied for certain."""

    system: ClusterSystem
    datastore: Datastore
    chance: random.Random
    proxies: dict[str, TcpProxy]
    master: str
    minions: list[str]
    held: dict[int, int] = field(default_factory=dict)

    def sql(self, statement: str) -> None:
        """On every minion."""
        for name in self.minions:
            self.system.servers[name].sql(statement)

    def look(self) -> None:
        """The cells that minions have applied so far."""
        for name in self.minions:
            if self.system.servers[name].is_running():
                for shard, end in self.system.servers[name].sql(
                    "SELECT shard, next_added_id FROM trips_meta.shard_counter"
                ):
                    number = int(str(shard))
                    self.held[number] = max(self.held.get(number, 0), int(str(end)))

    def acknowledged(self, before_s: float) -> list[Put]:
        """Cells that callers were told are stored."""
        return [
            put
            for put in list(self.system.work.ledger.puts)
            if put.outcome in ("stored", "exists")
            and put.answered_s is not None
            and put.answered_s < before_s
        ]

    def behind(self, before_s: float) -> list[Put]:
        """Of these the ones that no minion has applied."""
        return [
            put
            for put in self.acknowledged(before_s)
            if put.shard is not None and (put.added_id or 0) >= self.held.get(put.shard, 0)
        ]


def backup_behind(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """See the module."""
    witnessed, taken = list[str](), list[Backup]()
    states = [chance.choice(ENDS_WELL), *chance.sample(OTHERS, BACKUPS - 1)]
    chance.shuffle(states)
    with tempfile.TemporaryDirectory(prefix="cellfeed-behind-") as directory:
        folder = BackupFolder(Path(directory) / "backups")
        for state in states:
            onto = chance.choice([None, *taken[-1:]])
            with ExitStack() as stack:
                engine, scene = stack.enter_context(_process(system, datastore, chance))
                witnessed.append(
                    f"{state}: {_backed_up(scene, engine, folder, state, onto, taken)}"
                )
        system.violations.setdefault("I1", []).extend(unsound(folder))
    return witnessed


def _backed_up(
    scene: Scene,
    engine: ClusteredEngine,
    folder: BackupFolder,
    state: str,
    onto: Backup | None,
    taken: list[Backup],
) -> str:
    """The result of one backup, while the minions are in a state."""
    told = scene.system.violations
    ends_well = state in ENDS_WELL
    with (
        patch.object(ends, "WAIT_S", WAITED_S if ends_well else REFUSED_S),
        STATES[state](scene),
    ):
        until(partial(_is_behind, scene), "cells are acknowledged that no minion has applied")
        began_s = time.monotonic()
        try:
            backup = backed_up(folder, engine, onto)
        except Unavailable as error:
            scene.look()
            if unnamed := _unnamed(scene.behind(began_s), str(error)):
                told.setdefault("gap", []).append(
                    f"{state}: {len(unnamed)} acknowledged cells are on no minion, and the"
                    f" refusal does not name them, the first as {unnamed[0].shard}/"
                    f"{unnamed[0].added_id}: {error}"
                )
            if ends_well:
                told.setdefault("I21", []).append(f"{state}: no backup: {error}")
            return f"refused after {time.monotonic() - began_s:.1f} s"
        took_s = time.monotonic() - began_s
    log = restored_log(folder, backup, folder.path.with_name("restored"))
    acknowledged = scene.acknowledged(began_s)
    kind = f"{backup.name} onto {onto.name}" if onto else backup.name
    told.setdefault("I1", []).extend(
        f"{state}: backup {kind}: {each}" for each in lacking(acknowledged, log)[:5]
    )
    taken.append(backup)
    return (
        f"{kind} in {took_s:.1f} s with {sum(map(len, log.values()))} cells,"
        f" {len(acknowledged)} acknowledged before it began"
    )


def _is_behind(scene: Scene) -> bool:
    scene.look()
    return bool(scene.behind(time.monotonic()))


def _unnamed(behind: list[Put], refusal: str) -> list[Put]:
    gaps = {
        int(shard): range(int(first), int(last) + 1 if last else ADDED_ID_MAX)
        for shard, first, last in _GAP.findall(refusal)
    }
    return [put for put in behind if put.added_id not in gaps.get(put.shard or 0, range(0))]


@contextmanager
def _process(
    system: ClusterSystem, datastore: Datastore, chance: random.Random
) -> Iterator[tuple[ClusteredEngine, Scene]]:
    """The source of ``cellfeed backup create``: an engine that reads from minions first, over
    proxies of its own. It has looked at the nodes once."""
    with ExitStack() as stack:
        proxies = {
            name: stack.enter_context(TcpProxy(server.port, mysql=True))
            for name, server in system.servers.items()
        }
        nodes = {
            name: partial(_open, f"mysql://root@127.0.0.1:{proxy.port}")
            for name, proxy in proxies.items()
        }
        engine = ClusteredEngine(DATASTORE, SHARDS, {"a": nodes}, read_first=Replica.MINION)
        stack.callback(engine.close)
        engine.heads()
        master = cluster_role(system.admin["a"])[0].master
        minions = [name for name in system.servers if name != master]
        yield engine, Scene(system, datastore, chance, proxies, master, minions)


def _open(url: str, timeout_s: float) -> MySqlEngine:
    return MySqlEngine(MySqlServer(parse_mysql_url(url), timeout_s), DATASTORE, SHARDS)


# --- states of the minions ------------------------------------------------------------------------


@contextmanager
def _applying_nothing(scene: Scene) -> Iterator[None]:
    """They receive, and acknowledge, and apply nothing, until the backup has ended."""
    scene.sql("STOP SLAVE SQL_THREAD")
    yield
    scene.sql("START SLAVE SQL_THREAD")


@contextmanager
def _applying_again(scene: Scene) -> Iterator[None]:
    """The same, and one of them continues while the backup waits."""
    one = scene.system.servers[scene.chance.choice(scene.minions)]
    with _applying_nothing(scene), _meanwhile(scene, lambda: one.sql("START SLAVE SQL_THREAD")):
        yield


@contextmanager
def _applying_later(scene: Scene) -> Iterator[None]:
    """Every commit is applied a second after it was received."""
    for seconds in (1, 0):
        for name in scene.minions:
            scene.system.servers[name].sql(
                "STOP SLAVE", f"CHANGE MASTER TO MASTER_DELAY = {seconds}", "START SLAVE"
            )
        if seconds:
            yield


@contextmanager
def _one_receives(scene: Scene) -> Iterator[None]:
    """One receives and applies nothing, the other one applies all that it has and receives
    nothing."""
    one, other = scene.chance.sample(scene.minions, 2)
    scene.system.servers[one].sql("STOP SLAVE SQL_THREAD")
    scene.system.servers[other].sql("STOP SLAVE IO_THREAD")
    yield
    scene.sql("START SLAVE")


@contextmanager
def _slow_master(scene: Scene) -> Iterator[None]:
    """They apply nothing, and the backup's own way to the master is slow: it heard of the master
    before the last cells were put."""
    scene.proxies[scene.master].delay(SLOW_S)
    with _applying_nothing(scene):
        yield


@contextmanager
def _killed(scene: Scene) -> Iterator[None]:
    """They apply nothing, and are killed: nothing is acknowledged any more."""
    scene.sql("STOP SLAVE SQL_THREAD")
    until(partial(_is_behind, scene), "cells are acknowledged that no minion has applied")
    for name in scene.minions:
        scene.system.servers[name].kill()
    yield
    for name in scene.minions:
        scene.system.servers[name].start()


@contextmanager
def _promoted(scene: Scene) -> Iterator[None]:
    """They apply nothing; while the backup waits, the master is killed, and one of them is
    promoted, which first applies all that it has received."""

    def promote_one() -> None:
        scene.system.servers[scene.master].kill()
        scene.sql("START SLAVE SQL_THREAD")
        promote(scene.system.admin["a"])

    scene.sql("STOP SLAVE SQL_THREAD")
    with _meanwhile(scene, promote_one):
        yield
    scene.system.servers[scene.master].start()
    bring_back(scene.system, scene.datastore, scene.master)


@contextmanager
def _meanwhile(scene: Scene, what: Callable[[], object]) -> Iterator[None]:
    """Does it a moment after cells were acknowledged that no minion has applied; ends when it is
    done."""
    failed = list[BaseException]()

    def do() -> None:
        try:
            until(partial(_is_behind, scene), "cells are acknowledged that no minion has applied")
            time.sleep(scene.chance.uniform(0.3, 0.8))
            what()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=do, name="meanwhile")
    thread.start()
    yield
    thread.join()
    if failed:
        raise failed[0]


STATES: Final[dict[str, Callable[[Scene], AbstractContextManager[None]]]] = {
    "one applies again meanwhile": _applying_again,
    "they apply a second later": _applying_later,
    "one is promoted meanwhile": _promoted,
    "they apply nothing": _applying_nothing,
    "one receives, the other applies": _one_receives,
    "they apply nothing and the master is slow": _slow_master,
    "they are killed": _killed,
}
ENDS_WELL: Final = tuple(STATES)[:2]
"""In these the backup is taken. Where a master is away it may fail: dictionaries are read from
masters."""

OTHERS: Final = tuple(STATES)[2:]

BACKUP_FAULTS: Final = {"backup-behind": backup_behind}
