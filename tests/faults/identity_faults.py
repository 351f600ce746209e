"""``foreign-node``: a server of another datastore, staging's, stands in this one's configuration or
at a node's address, while puts run.

Its names are the same (datastore, cluster, nodes), and so may be its leader epoch; it has the same
row keys with other bodies, at other ids, and may have far more transactions. It is met

    at init          `cellfeed cluster init`, with one of the nodes replaced in the configuration
    by a process     that is opened with that configuration, and reads
    at a rejoin      by hand, and by a supervisor
    at a promotion   by name, and of anybody who has most; then one with its node given up
    at an address    of a minion, then of the master, which was killed: machines were replaced

Every join is refused with both histories (``joins``). Nothing of it is shown (I2, I3), nothing is
written to it, and it stays a datastore of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Final
from uuid import uuid5

from cellfeed.assembly.clusters import init_clusters
from cellfeed.config.model import ClusterConfig, Config, DatastoreConfig, NodeConfig
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.address import parse_mysql_url
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.read_only import is_read_only
from cellfeed.store.engines.mysql.replication import minion_status
from cellfeed.store.errors import CellfeedError, Unavailable
from tests.faults.cluster_faults import bring_back, until
from tests.faults.cluster_system import DATASTORE, NAMESPACE, SHARDS, ClusterSystem, Tailer
from tests.faults.invariants import Seen, merge
from tests.faults.key_readers import KeyReader, reading
from tests.faults.restored import Joins, WrongJoin, log_of
from tests.faults.shown import Shown
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import bare_servers

FAR_AHEAD: Final = 1_000_000
"""A GTID sequence that no run of production comes to."""

SWAPS: Final = 3
"""How often staging's server takes a minion's address, and gives it back: each time there is a
moment before anybody has looked at the node."""

_WRITERS: Final = 4
_ROWS: Final = 150
"""Of each writer of production the first rows, which staging has as well."""


class Staging:
    """A cluster of two servers. Its log and its role must stay as they are."""

    def __init__(self, servers: Sequence[MariaDB], chance: random.Random) -> None:
        self.servers = dict(zip(("a1", "a2"), servers, strict=True))
        nodes = {name: MySqlServer(server.url) for name, server in self.servers.items()}
        self.admin = ClusterServers("a", DATASTORE, SHARDS, nodes, semi_sync=True)
        init_cluster(self.admin, even_map(DATASTORE, SHARDS, ["a"]))
        for _ in range(chance.choice([0, 0, 1])):
            done = promote(self.admin)
            follow_again(self.admin, done.old_master)
        with closing(self._engine()) as engine:
            assert all(result.acknowledged for result in engine.put(_their_cells()))
            until(
                lambda: sum(map(len, log_of(engine).values())) == len(_their_cells()),
                "staging shows its cells",
            )
        self.role, _ = cluster_role(self.admin)
        if chance.random() < 0.5:
            self.servers[self.role.master].sql(
                f"SET gtid_seq_no = {FAR_AHEAD}",
                "REPLACE INTO trips_meta.state_entry VALUES ('note', 'x', 0)",
            )
        self.log = self._log()
        self.one = chance.choice(sorted(self.servers))
        """The node that stands in production's configuration."""

    @property
    def server(self) -> MariaDB:
        return self.servers[self.one]

    def _engine(self) -> ClusteredEngine:
        nodes = {name: partial(_open, server.url) for name, server in self.servers.items()}
        return ClusteredEngine(DATASTORE, SHARDS, {"a": nodes})

    def _log(self) -> dict[int, list[Seen]]:
        with closing(self._engine()) as engine:
            return log_of(engine)

    def connections(self) -> int:
        [(_, count)] = self.server.sql("SHOW GLOBAL STATUS LIKE 'Connections'")
        return int(str(count))

    def differences(self) -> list[str]:
        """Its fate."""
        role, silent = cluster_role(self.admin)
        closed = is_read_only(self.admin.server(role.master))
        found = ["staging's master takes no writes"] if closed else []
        found += [f"staging's {name}: {reason}" for name, reason in silent.items()]
        if role != self.role:
            found.append(f"staging's role was {self.role}, and is {role}")
        master = self.admin.server(role.master)
        found += [
            f"staging's {name} does not follow {role.master}"
            for name in role.minions
            if (status := minion_status(self.admin.server(name))) is None
            or not status.follows(master)
        ]
        return found + (["staging's log has changed"] if self._log() != self.log else [])


def foreign_node(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """See the module."""
    joins = Joins()
    with ExitStack() as stack:
        servers = stack.enter_context(bare_servers(2, first_id=11))
        staging = Staging(servers, chance)
        stack.callback(staging.admin.close)
        place = chance.choice(["a1", "a2", "a3"])
        mixed = stack.enter_context(_mixed(system, staging, place))
        ours = cluster_role(system.admin["a"])[0].history_id
        ids = ours, staging.role.history_id
        witnessed = [
            f"staging's {staging.one} in the place of {place}, epoch {staging.role.epoch}, at"
            f" {staging.server.sql('SELECT @@GLOBAL.gtid_current_pos')[0][0]}"
        ]
        with suppress(WrongJoin):
            joins.try_("cluster init", partial(_init, system, staging, place), ids)
            with _process(system, staging, place, chance):
                if place != "a1":
                    joins.try_("a rejoin", partial(follow_again, mixed, place), ids)
                _supervise(mixed)
                joins.violations["joins"] += staging.differences()
                witnessed.append(_promoted(system, datastore, mixed, place, joins, ids, chance))
                witnessed += _swapped(system, datastore, staging, chance)
        witnessed.append(f"refused: {', '.join(joins.refused)}")
        joins.violations["joins"] += staging.differences()
    system.violations = merge(system.violations, joins.violations)
    return witnessed


@contextmanager
def _mixed(system: ClusterSystem, staging: Staging, place: str) -> Iterator[ClusterServers]:
    """Production's cluster as the wrong configuration has it."""
    nodes = {name: MySqlServer(url) for name, url in _urls(system, staging, place).items()}
    semi_sync = system.admin["a"].semi_sync
    with closing(ClusterServers("a", DATASTORE, SHARDS, nodes, semi_sync=semi_sync)) as made:
        yield made


def _urls(system: ClusterSystem, staging: Staging, place: str) -> dict[str, str]:
    return {
        name: staging.server.url if name == place else system.url(name) for name in system.servers
    }


def _init(system: ClusterSystem, staging: Staging, place: str) -> None:
    nodes = [NodeConfig(name, url) for name, url in _urls(system, staging, place).items()]
    config = Config(
        datastore=DatastoreConfig(
            name=DATASTORE, shards=SHARDS, clusters=[ClusterConfig("a", nodes)]
        )
    )
    list(init_clusters(config, ["a"]))


@contextmanager
def _process(
    system: ClusterSystem, staging: Staging, place: str, chance: random.Random
) -> Iterator[None]:
    """A process with the wrong configuration: it tails, and reads by key, from minions too."""

    def engine() -> ClusteredEngine:
        nodes = {name: partial(_open, url) for name, url in _urls(system, staging, place).items()}
        return ClusteredEngine(DATASTORE, SHARDS, {"a": nodes})

    ledger, shown = system.work.ledger, Shown()
    system.work.tailers.append(Tailer(engine()))
    with Datastore(engine()) as store:
        by_key = KeyReader(
            "the misconfigured reader", store, ledger, shown, random.Random(chance.random())
        )
        with reading(by_key):
            yield
    shown.answers(ledger)
    system.violations = merge(
        system.violations, by_key.violations(), shown.violations(ledger, ("BASE",), ())
    )


@contextmanager
def _quiet(system: ClusterSystem, chance: random.Random) -> Iterator[Callable[[], None]]:
    """A process that asks for some cells now and then, and looks at the nodes twice a second: its
    first request after a swap comes before it has looked."""
    ledger, shown = system.work.ledger, Shown()
    with Datastore(system.engine(0)) as store:
        reader = KeyReader("the quiet reader", store, ledger, shown, chance)

        def look() -> None:
            for _ in range(3):
                reader.look_for(chance.sample(ledger.puts[: _WRITERS * _ROWS], 4))

        yield look
    shown.answers(ledger)
    system.violations = merge(
        system.violations, reader.violations(), shown.violations(ledger, ("BASE",), ())
    )


def _supervise(mixed: ClusterServers) -> None:
    """A supervisor with the wrong configuration looks for a while."""
    supervisor = FailoverSupervisor(mixed)
    for _ in range(4):
        with suppress(CellfeedError):  # told, and waited out
            supervisor.look()
        time.sleep(0.2)
    supervisor.close()


def _promoted(
    system: ClusterSystem,
    datastore: Datastore,
    mixed: ClusterServers,
    place: str,
    joins: Joins,
    ids: Sequence[str],
    chance: random.Random,
) -> str:
    """Promotions in the wrong configuration, and the return of everybody in the right one."""
    role, _ = cluster_role(system.admin["a"])
    if place == role.master:
        done = promote(mixed)
    else:
        joins.try_(f"a promotion of {place}", partial(promote, mixed, to=place), ids)
        joins.try_("a promotion of the node that has most", partial(promote, mixed), ids)
        if chance.random() < 0.5:
            return "no promotion"
        # Cells that only the minion holds are given up with it: nothing is acknowledged meanwhile
        # that the other one lacks.
        system.work.writers.pause()
        done = promote(mixed, give_up=[place])
        system.work.writers.resume()
    bring_all_back(system, datastore, done)
    return f"{done.master} promoted in epoch {done.epoch} beside staging's server"


def bring_all_back(system: ClusterSystem, datastore: Datastore, done: Promotion) -> None:
    """Every node but the new master; one whose cells have to be put again waits for another one,
    without which no put is acknowledged."""
    left = [name for name in system.servers if name != done.master]
    for _ in range(2 * len(left)):
        if not left:
            return
        try:
            bring_back(system, datastore, left[0])
        except Unavailable:
            left.append(left.pop(0))
        else:
            left.pop(0)
    raise RuntimeError(f"{left} cannot be brought back")


def _swapped(
    system: ClusterSystem, datastore: Datastore, staging: Staging, chance: random.Random
) -> list[str]:
    """Staging's server has the address of a minion, then of the dead master."""
    role, _ = cluster_role(system.admin["a"])
    minion = chance.choice(role.minions)
    before = staging.connections()
    with _quiet(system, chance) as look:
        for _ in range(SWAPS):
            look()
            _address(system, minion, staging.server.port)
            look()
            time.sleep(chance.uniform(0.2, 0.6))
            _address(system, minion, system.servers[minion].port)
            time.sleep(chance.uniform(0.2, 0.6))
    asked = staging.connections() - before
    if asked < SWAPS:
        raise RuntimeError(f"staging's server was asked {asked} times: the fault did not happen")
    master = role.master
    _address(system, master, staging.server.port)
    system.servers[master].kill()
    time.sleep(chance.uniform(0.3, 1.0))
    done = promote(system.admin["a"])
    time.sleep(chance.uniform(0.3, 0.8))
    _address(system, master, system.servers[master].port)
    system.servers[master].start()
    bring_back(system, datastore, master)
    return [
        f"staging's server had the address of {minion} {SWAPS} times, connected to {asked} times;"
        f" and that of {master}, which was killed: {done.master} promoted in epoch {done.epoch}"
    ]


def _address(system: ClusterSystem, name: str, port: int) -> None:
    system.proxies[name].target_port = port
    system.proxies[name].cut()


def _their_cells() -> list[NewCell]:
    """The row keys of production's first cells, the last one first."""
    return [
        new_cell(uuid5(NAMESPACE, f"{writer}-{n}"), "BASE", 1, {"writer": -1 - writer, "n": -n})
        for n in range(_ROWS, 0, -1)
        for writer in range(_WRITERS)
    ]


def _open(url: str, timeout_s: float) -> MySqlEngine:
    return MySqlEngine(MySqlServer(parse_mysql_url(url), timeout_s), DATASTORE, SHARDS)


IDENTITY_FAULTS: Final = {"foreign-node": foreign_node}
