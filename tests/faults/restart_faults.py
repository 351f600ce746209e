"""Faults of clusters beside the paths that are guarded by design: restarts that forget settings
made at run time, minions that join within an epoch, and servers whose own configuration disagrees
with ours.

master-restarts-then-dies   a master restarts while its minions are cut off, so that it has
                            forgotten semi-synchronous replication; state commits, leases,
                            offsets, then puts and index writes are tried; it dies. The same with
                            the master of the cluster that buffers another one's cells
minions-join                asynchronous; a promotion leaves nobody behind the new master, two
                            minions come back within its epoch. Processes from before and one
                            from after must agree, with both minions cut off, too; then the master
                            dies with cells that nobody else has
server-settings             a master restarts read-only; with semi-synchronous replication that
                            falls back after a second; without syncing its files
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.master_buffer import buffer_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, NotFound, StorageUnavailable, Unavailable
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.records import VersionRecord
from tests.faults import general_log
from tests.faults.cluster_faults import bring_back, kill_and_start, until
from tests.faults.cluster_system import NAMESPACE, ClusterSystem, Tailer

FALLS_BACK: Final = (
    "--rpl-semi-sync-master-enabled=ON",
    "--rpl-semi-sync-master-timeout=1000",
    "--rpl-semi-sync-master-wait-point=AFTER_COMMIT",
)
"""As MariaDB's defaults, but for the time-out, which is ten seconds there."""

DOES_NOT_SYNC: Final = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")

SECOND_INDEX: Final = parse_definition("""
table: cells_by_number
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: n, type: int}, {field: writer, type: int}]
""")

AGREE_S: Final = 3.0
"""Processes agree within a second; and the slack of a busy machine."""

_TRIED_S: Final = (1.5, 2.5)
"""How long work is tried while a master is alone: above the second after which a commit may fall
back."""

Head3 = tuple[dict[int, int], dict[int, int], dict[int, int] | str]
"""A process's view of a cluster: watermarks, the ends of minions, how far may be trimmed (or why
nothing)."""


def master_restarts_then_dies(
    system: ClusterSystem, datastore: Datastore, chance: random.Random
) -> list[str]:
    writers, ledger = system.work.writers, system.work.ledger
    _rest(system, datastore)
    witnessed, began_s = _restarted_alone(system, "a1"), time.monotonic()
    tried = _tried(system, began_s, chance.uniform(*_TRIED_S))
    puts, made = len(ledger.puts), list[VersionRecord]()
    making = threading.Thread(target=_make_index, args=(system, made), name="makes an index")
    making.start()  # its worker writes an entry for every cell
    time.sleep(chance.uniform(0.5, 1.0))
    writers.resume()
    time.sleep(chance.uniform(0.5, 1.0))
    witnessed.append(
        f"{tried} commits of the state, an index ({'made' if made else 'not made'}) and"
        f" {len(ledger.puts) - puts} puts tried meanwhile"
    )
    system.servers["a1"].kill()
    done = promote(system.admin["a"])
    witnessed.append(f"a1 killed, {done.master} promoted")
    making.join()
    _replace(system, "a1")
    _check_index(system, made)

    _rest(system, datastore)
    witnessed += _restarted_alone(system, "b1")
    system.servers[done.master].kill()
    began_s, puts = time.monotonic(), len(ledger.puts)
    writers.resume(datastore.engine.clusters["a"].shards)  # type: ignore[attr-defined]
    time.sleep(chance.uniform(*_TRIED_S))
    buffered = sum(
        put.outcome == "buffered" and put.begun_s >= began_s for put in list(ledger.puts)
    )
    if len(ledger.puts) == puts:
        raise RuntimeError("no put was tried while b1 was alone: the fault did not happen")
    system.servers["b1"].kill()
    promoted = promote(system.admin["b"])
    witnessed.append(
        f"{done.master} killed, {len(ledger.puts) - puts} puts tried, {buffered} of them buffered"
        f" on b1; b1 killed, {promoted.master} promoted"
    )
    promote(system.admin["a"])
    writers.resume()
    for node in (done.master, "b1"):
        _replace(system, node)
    return witnessed


def minions_join(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    work, writing = system.work, datastore.engine
    assert isinstance(writing, ClusteredEngine)
    before = [
        ("writing", writing),
        *((f"tailer {number}", each.engine) for number, each in enumerate(work.tailers)),
    ]
    system.servers["a3"].kill()
    done = promote(system.admin["a"], to="a2", give_up=["a3"])
    until(
        lambda: all(engine.clusters["a"].role().epoch == done.epoch for _, engine in before),
        "all processes have heard of the promotion",
    )
    minions = [engine.clusters["a"].role().minions for _, engine in before]
    system.servers["a3"].start()
    for node in ("a1", "a3"):
        bring_back(system, datastore, node)
    role, _ = cluster_role(system.admin["a"])
    if (role.master, role.epoch, sorted(role.minions)) != ("a2", done.epoch, ["a1", "a3"]):
        raise RuntimeError(
            f"the role is {role}: no minions joined within the epoch, the fault did not happen"
        )
    work.tailers.append(Tailer(system.engine(0)))
    after = work.tailers[-1].engine
    everybody = [*before, ("the new process", after)]
    work.writers.pause()
    told = _agree(everybody, "at rest")
    for name in ("a1", "a3"):
        system.servers[name].sql("STOP SLAVE IO_THREAD")
    written = system.written("a2")
    work.writers.resume()
    until(lambda: system.written("a2") > written + 20, "the master has cells that nobody else has")
    work.writers.pause()
    told += _agree(everybody, "with both minions cut off")
    system.violations.setdefault("I6", []).extend(told)
    alone = system.written("a2") - written
    time.sleep(0.5)  # the tailers read all that they may
    system.servers["a2"].kill()
    promoted = promote(system.admin["a"])
    work.writers.resume()
    until(
        lambda: system.written(promoted.master) > written + 2 * alone,
        "the ids of what was lost are other cells'",
    )
    system.servers["a2"].start()
    bring_back(system, datastore, "a2")
    return [
        f"a2 promoted without minions ({minions} known by processes), a1 and a3 joined in epoch"
        f" {done.epoch}, {alone} cells on a2 alone, a2 killed, {promoted.master} promoted"
    ]


def server_settings(
    system: ClusterSystem, datastore: Datastore, chance: random.Random
) -> list[str]:
    cell = new_cell(NAMESPACE, "REFUSED", 1, {})
    a1 = system.servers["a1"]
    witnessed = _restarted_with(system, ("--read-only=ON",))
    began_s = time.monotonic()
    _refused(system, "a put", lambda: datastore.engine.put([cell]))
    _buffer_refused(system, datastore, cell)
    tried = _tried(system, began_s, chance.uniform(0.5, 1.0))
    _not_acknowledged(system, began_s, time.monotonic(), "while the master was read-only")
    witnessed.append(f"{tried} commits of the state tried while it was read-only")
    if a1.sql("SELECT @@GLOBAL.read_only") != [(1,)]:
        raise RuntimeError("a1 is not read-only: the fault did not happen")
    promote(system.admin["a"])  # opens the master again, or has another one

    if cluster_role(system.admin["a"])[0].master != "a1":
        raise RuntimeError("a1 is the master no longer")
    minions = ("a2", "a3")
    for name in minions:
        system.servers[name].sql("STOP SLAVE IO_THREAD")
    witnessed += _restarted_with(system, FALLS_BACK)
    began_s = time.monotonic()
    tried = _tried(system, began_s, chance.uniform(*_TRIED_S) + 1.0)
    _not_acknowledged(system, began_s, time.monotonic(), "while the master was alone")
    witnessed.append(f"{tried} commits of the state tried while a2 and a3 were cut off")
    a1.kill()
    done = promote(system.admin["a"])
    witnessed.append(f"a1 killed, {done.master} promoted")
    a1.options = general_log.OPTIONS
    _replace(system, "a1")

    server = system.servers[done.master]
    witnessed += _restarted_with(system, DOES_NOT_SYNC, done.master)
    began_s = time.monotonic()
    witnessed.append(
        f"{_tried(system, began_s, chance.uniform(0.8, 1.2))} commits of the state tried while it"
        " did not sync"
    )
    ended_s, settings = (
        time.monotonic(),
        server.sql("SELECT @@GLOBAL.sync_binlog, @@GLOBAL.innodb_flush_log_at_trx_commit"),
    )
    if settings != [(1, 1)]:  # somebody may correct them, or refuse
        _not_acknowledged(
            system, began_s, ended_s, f"while the master did not sync its files {settings}"
        )
    return witnessed + kill_and_start_with(system, done.master, ())


# --- steps ----------------------------------------------------------------------------------------


def _rest(system: ClusterSystem, datastore: Datastore) -> None:
    """No put is begun, and none waits in a buffer or for the index: a guarded write would begin
    semi-synchronous replication again behind a restart."""
    system.work.writers.pause()
    drain = datastore.engine.drain  # type: ignore[attr-defined]
    until(
        lambda: (
            not any(
                counts if isinstance(counts, str) else sum(each.cells for each in counts)
                for counts in drain.counts().values()
            )
        ),
        "the buffers are empty",
    )
    time.sleep(1.0)


def _make_index(system: ClusterSystem, made: list[VersionRecord]) -> None:
    with suppress(Unavailable):
        made.append(system.work.indexed.indexes.catalog.create(SECOND_INDEX))


def _check_index(system: ClusterSystem, made: Sequence[VersionRecord]) -> None:
    """An index whose making was acknowledged is there, and is compared with the cells in the end,
    as the first one is."""
    try:
        system.work.indexes.extend(
            system.work.indexed.indexes.version(record)
            for record in made
            if system.work.indexed.indexes.catalog.get(record.definition.table)
        )
    except NotFound as error:
        system.violations.setdefault("I18", []).append(f"an index was made, and is gone: {error}")


def _replace(system: ClusterSystem, node: str) -> None:
    """Another machine takes the place of one that is lost with all that it had: cells that only
    that one had are gone."""
    system.servers[node].start()
    clone(system.admin[node[0]], node)


def _restarted_alone(system: ClusterSystem, master: str) -> list[str]:
    """Its minions receive nothing from it, and it has been started again."""
    minions = [name for name in system.servers if name[0] == master[0] and name != master]
    for name in minions:
        system.servers[name].sql("STOP SLAVE IO_THREAD")
    witnessed = kill_and_start(system, [master], 0.1)
    for name in minions:
        if [row[10] for row in system.servers[name].sql("SHOW SLAVE STATUS")] != ["No"]:
            raise RuntimeError(f"{name} receives from {master}: the fault did not happen")
    return [*witnessed, f"{' and '.join(minions)} cut off"]


def _restarted_with(system: ClusterSystem, options: tuple[str, ...], name: str = "a1") -> list[str]:
    """A master is started again with a configuration of its own."""
    return [*kill_and_start_with(system, name, options), f"{name} has {' '.join(options)}"]


def kill_and_start_with(system: ClusterSystem, name: str, options: tuple[str, ...]) -> list[str]:
    """Kills a server and starts it with these options, beside those that every server has."""
    system.servers[name].options = (*general_log.OPTIONS, *options)
    return kill_and_start(system, [name], 0.1)


def _tried(system: ClusterSystem, began_s: float, seconds: float) -> int:
    """Commits of the state that were tried since, some seconds after the first: a process leaves a
    master that has died alone for a while."""
    ledger = system.work.state.ledger
    until(
        lambda: ledger.begun_between(began_s, time.monotonic()) > 0,
        "commits of the state are tried",
    )
    time.sleep(seconds)
    return ledger.begun_between(began_s, time.monotonic())


def _not_acknowledged(system: ClusterSystem, began_s: float, ended_s: float, when: str) -> None:
    """Nothing that was begun since was acknowledged as stored until then."""
    told = [
        f"{put.triple} as {put.shard}/{put.added_id}"
        for put in list(system.work.ledger.puts)
        if put.outcome == "stored"
        and put.answered_s is not None
        and began_s <= put.begun_s
        and put.answered_s <= ended_s
    ]
    told += system.work.state.ledger.acknowledged_inside(began_s, ended_s)
    system.violations.setdefault("I1", []).extend(
        f"{each} was acknowledged {when} ({len(told)} such)" for each in told[:3]
    )


def _refused(system: ClusterSystem, what: str, write: Callable[[], object]) -> None:
    try:
        write()
    except CellfeedError:
        return
    system.violations.setdefault("I1", []).append(
        f"{what} was taken by a master that is fenced (read_only)"
    )


def _buffer_refused(system: ClusterSystem, datastore: Datastore, cell: NewCell) -> None:
    """A copy for another cluster, and its acceptance, on a fenced master."""
    table = buffer_of(datastore.engine.clusters["a"])  # type: ignore[attr-defined]
    _refused(system, "a buffer copy", partial(table.add, "z", [cell]))
    try:
        if table.accept("z", [cell]) == [True]:
            system.violations.setdefault("I1", []).append(
                "a fenced master (read_only) accepted a buffer copy"
            )
            table.remove_row("z", cell.row_key)
    except CellfeedError:
        pass


def _agree(processes: Sequence[tuple[str, ClusteredEngine]], when: str) -> list[str]:
    """Their remaining differences, once they have had the time to agree."""
    deadline_s = time.monotonic() + AGREE_S
    while True:
        told = {name: _believed(engine) for name, engine in processes}
        [(_, wanted)] = list(told.items())[-1:]
        if all(each == wanted for each in told.values()) or time.monotonic() > deadline_s:
            break
        time.sleep(0.1)
    names = ("watermarks", "replicated", "trim limits")
    return [
        f"{when}: {what} of {name} are {each[index]}, of {list(told)[-1]} {wanted[index]}"
        for name, each in told.items()
        for index, what in enumerate(names)
        if each[index] != wanted[index]
    ]


def _believed(engine: ClusteredEngine) -> Head3:
    watermarks = {shard: head.watermark for shard, head in engine.heads().items()}
    try:
        limits: dict[int, int] | str = engine.clusters["a"].trim_limits()
    except StorageUnavailable as error:
        limits = str(error)
    return watermarks, engine.clusters["a"].replicated(), limits


RESTART_FAULTS: Final = {
    "master-restarts-then-dies": master_restarts_then_dies,
    "minions-join": minions_join,
    "server-settings": server_settings,
}
