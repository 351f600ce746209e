"""``restore-twice``: one backup is restored into two clusters, and into two embedded stores. All
names are the same, and the ids of both continue where the backup ends; both take puts, of the same
row keys with other bodies.

Then files of one are joined to the other: a server at `cluster init`, at a rejoin, by a supervisor,
and at a promotion; increments onto each other's backups, and onto the backup that both came from;
files of one embedded store in the other. Every join is refused with both histories (``joins``). A
promotion follows, in the wrong configuration or beside it. No acknowledged cell of either is lost
or shown as another (I1 to I8, I12, I13); the increments of the right store restore to all that it
acknowledged.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid5

from cellfeed.assembly.clusters import init_clusters
from cellfeed.config.model import ClusterConfig, Config, DatastoreConfig, NodeConfig
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.cells import canonical_json
from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.read_only import is_read_only
from cellfeed.store.engines.sqlite.store_files import INDEX_FILE, STATE_FILE
from cellfeed.store.errors import CellfeedError
from cellfeed.store.indexes.definition_file import parse_definition
from tests.faults.cluster_faults import until
from tests.faults.cluster_system import DATASTORE, NAMESPACE, SHARDS
from tests.faults.identity_faults import bring_all_back
from tests.faults.invariants import merge, verdict
from tests.faults.ledger import Ledger
from tests.faults.restored import (
    JOINS,
    Joins,
    WrongJoin,
    backed_up,
    lacking,
    restore_into,
    restored_log,
    unsound,
)
from tests.faults.restored_clusters import CLUSTER, RestoredCluster
from tests.faults.run import FaultRun
from tests.support.mariadb_cluster import bare_servers

RESTORE_TWICE: Final = "restore-twice"
RESTORE_KINDS: Final = (RESTORE_TWICE,)
RECOVERY_MAX_S: Final = 10.0
_INDEX: Final = parse_definition("""
table: cells_by_number
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: n, type: int}]
""")
_PUTS: Final = 60
"""That each restore has acknowledged before anything is joined."""


def run_restore_faults(kind: str, seed: int, directory: Path) -> FaultRun:
    """Runs and checks."""
    chance, result, joins = random.Random(f"{kind}-{seed}"), FaultRun(kind, seed), Joins()
    folder = BackupFolder(directory / "backups")
    ledgers = Ledger(), Ledger()
    backup, parent = _source(directory / "source", folder, ledgers, chance)
    with ExitStack() as stack:
        servers = stack.enter_context(bare_servers(5))
        first = RestoredCluster("the first restore", servers[:3], ledgers[0])
        second = RestoredCluster("the second restore", servers[3:], ledgers[1])
        for says, each in enumerate((first, second)):
            stack.callback(each.admin[CLUSTER].close)
            each.restore(folder, backup)
            stack.enter_context(each.at_work(chance, says))
        began_s = time.monotonic()
        for each in (first, second):
            until(partial(_has_put, each.ledger, began_s, _PUTS), f"{each.name} takes puts")
        began_s = time.monotonic()
        result.witnessed.append(
            f"restored as {first.role().history_id} in epoch {first.role().epoch} and as"
            f" {second.role().history_id} in epoch {second.role().epoch}"
        )
        try:
            result.witnessed += _servers_joined(first, second, joins, chance)
            base = _increments_joined(first, second, folder, backup, parent, joins)
            _files_joined(directory, folder, backup, joins)
        except WrongJoin:
            result.violations = joins.violations
            return result
        healed_s = time.monotonic()
        for each in (first, second):
            until(partial(_has_put, each.ledger, healed_s, 1), f"{each.name} takes puts again")
            result.recovery_s.append(time.monotonic() - healed_s)
            result.operations_inside += each.ledger.acknowledged_between(began_s, healed_s)
        found = _restored_again(first, folder, base, directory)
        for each in (first, second):
            each.writers.stop()
        result.violations = merge(
            joins.violations,
            {"I1": found},
            *(verdict(each.name, each.violations) for each in (first, second)),
        )
        result.witnessed.append(f"refused: {', '.join(joins.refused)}")
    slow = [f"recovery took {each:.1f} s" for each in result.recovery_s if each > RECOVERY_MAX_S]
    result.violations = merge(result.violations, {"I21": slow})
    return result


def _source(
    place: Path, folder: BackupFolder, ledgers: Sequence[Ledger], chance: random.Random
) -> tuple[Backup, str]:
    """A store with cells that both restores have; its backup, and its history."""
    with Datastore.open_embedded(place, DATASTORE, SHARDS) as store:
        for number in range(chance.randint(80, 160)):
            row_key, body = uuid5(NAMESPACE, f"before {number}"), {"n": number}
            json = canonical_json.canonical(body)
            puts = [ledger.begin(row_key, "BASE", 1, json) for ledger in ledgers]
            done = store.put_cell(row_key, "BASE", 1, body)
            for ledger, put in zip(ledgers, puts, strict=True):
                ledger.answer(put, done.outcome.value, done.shard, done.added_id)
        return backed_up(folder, store.engine), store.engine.history.history_id


def _has_put(ledger: Ledger, since_s: float, count: int) -> bool:
    return ledger.acknowledged_between(since_s, time.monotonic()) >= count


# --- joins ----------------------------------------------------------------------------------------


def _servers_joined(
    first: RestoredCluster, second: RestoredCluster, joins: Joins, chance: random.Random
) -> list[str]:
    """A server of the second restore in the configuration of the first; then a promotion."""
    place, theirs = chance.choice(["a2", "a3"]), chance.choice(sorted(second.servers))
    urls = {**first.urls, place: second.urls[theirs]}
    ids = first.role().history_id, second.role().history_id
    with closing(first.configured(urls)) as mixed:
        joins.try_("cluster init", partial(_init, urls), ids)
        joins.try_("a rejoin", partial(follow_again, mixed, place), ids)
        server = second.admin[CLUSTER].server(theirs)
        supervisor = FailoverSupervisor(mixed)
        for _ in range(3):
            with suppress(CellfeedError):  # told, and waited out
                supervisor.look()
            time.sleep(0.1)
        supervisor.close()
        if theirs == second.role().master and is_read_only(server):
            joins.violations[JOINS].append("the other restore's master was fenced")
        joins.try_(f"a promotion of {place}", partial(promote, mixed, to=place), ids)
        joins.try_("a promotion of the node that has most", partial(promote, mixed), ids)
        killed = chance.random() < 0.5
        if killed:
            first.servers["a1"].kill()
        if beside := killed or chance.random() < 0.5:
            done = promote(first.admin[CLUSTER])
        else:
            # Cells that only the minion holds are given up with it: nothing is acknowledged
            # meanwhile that the other one lacks.
            first.writers.pause()
            done = promote(mixed, give_up=[place])
            first.writers.resume()
    if killed:
        first.servers["a1"].start()
    bring_all_back(first, first.datastore, done)  # type: ignore[arg-type]
    return [
        f"{theirs} of the second restore in the place of {place}; a1"
        f" {'killed' if killed else 'fenced'}, {done.master} promoted"
        f" {'in the right' if beside else 'in the wrong'} configuration"
    ]


def _init(urls: dict[str, str]) -> None:
    nodes = [NodeConfig(name, url) for name, url in urls.items()]
    config = Config(
        datastore=DatastoreConfig(
            name=DATASTORE, shards=SHARDS, clusters=[ClusterConfig(CLUSTER, nodes)]
        )
    )
    list(init_clusters(config, [CLUSTER]))


def _increments_joined(
    first: RestoredCluster,
    second: RestoredCluster,
    folder: BackupFolder,
    backup: Backup,
    parent: str,
    joins: Joins,
) -> Backup:
    """Increments onto a backup that the store does not continue. Returns a full backup of the
    first."""
    with closing(first.engine()) as of_first, closing(second.engine()) as of_second:
        base = backed_up(folder, of_first)
        other = backed_up(folder, of_second)
        histories = {
            each.name: each.manifest.history.history_id for each in (backup, base, other)
        } | {backup.name: parent}
        for engine, onto in (
            (of_first, backup),
            (of_second, backup),
            (of_first, other),
            (of_second, base),
        ):
            joins.try_(
                "an increment",
                partial(backed_up, folder, engine, onto),
                (engine.history.history_id, histories[onto.name]),
            )
    joins.try_("a restore beside cells", partial(second.restore, folder, backup), ())
    return base


def _files_joined(directory: Path, folder: BackupFolder, backup: Backup, joins: Joins) -> None:
    """Two embedded restores, and a file of one in the place of the other's."""
    histories = []
    for name in ("one", "other"):
        place = directory / name
        with SqliteTarget(place / DATASTORE, DATASTORE, SHARDS) as target:
            restore_into(target, folder, backup)
        with Datastore.open_embedded(place, DATASTORE, SHARDS) as store:
            histories.append(store.engine.history.history_id)
            store.put_cell(uuid5(NAMESPACE, "behind the backup"), "BASE", 1, {"in": name})
            made = store.indexes.version(store.indexes.catalog.create(_INDEX))
            store.engine.indexes.create(made.table)
    for file in (STATE_FILE, INDEX_FILE):
        mixed = directory / f"mixed with {file}"
        shutil.copytree(directory / "one", mixed)
        for suffix in ("-wal", "-shm"):
            (mixed / DATASTORE / f"{file}{suffix}").unlink(missing_ok=True)
        shutil.copy(directory / "other" / DATASTORE / file, mixed / DATASTORE / file)
        joins.try_(
            f"{file} of the other restore",
            partial(_opened, mixed),
            histories,
        )


def _opened(place: Path) -> None:
    with Datastore.open_embedded(place, DATASTORE, SHARDS) as store:
        store.state.get("anything")
        store.indexes.catalog.all()
        assert store.engine.indexes


# --- the right chain ------------------------------------------------------------------------------


def _restored_again(
    first: RestoredCluster, folder: BackupFolder, base: Backup, directory: Path
) -> list[str]:
    """The cells acknowledged before an increment of the right store began that it lacks."""
    began_s = time.monotonic()
    with closing(first.engine()) as engine:
        increment = backed_up(folder, engine, base)
    acknowledged = [
        put
        for put in list(first.ledger.puts)
        if put.acknowledged and put.answered_s is not None and put.answered_s < began_s
    ]
    log = restored_log(folder, increment, directory / "again")
    return [*unsound(folder), *lacking(acknowledged, log)[:5]]
