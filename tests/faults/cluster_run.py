"""One fault run on clusters: writers and tailers work while servers and networks fail; afterwards
every invariant is checked from outside.

I1–I13 (I4 and I12 only where no tail can be lost), I18 an index that is kept meanwhile (the same:
entries may be in the tail), I19 the buffers drain, I21 recovery, I22 threads. E11 and I20 of state
entries, claims and offsets that are written meanwhile. I1 to I3 of all that readers by key, row,
index and log were shown; on the master and on minions, during the fault and after it. Rule 10: the
servers' general logs have no write without the guard.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from unittest.mock import patch

from cellfeed.store.clusters.moves import waiting
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import Unavailable
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.limits import ADDED_ID_MAX
from tests.faults.backup_faults import BACKUP_FAULTS
from tests.faults.cluster_faults import CLUSTER_FAULTS, until
from tests.faults.cluster_readers import CLIENT_PATHS, Exported, Followed, exporting, following
from tests.faults.cluster_system import (
    ClusterSystem,
    DirectWriters,
    Tailer,
    Work,
    cluster_system,
)
from tests.faults.identity_faults import IDENTITY_FAULTS
from tests.faults.invariants import (
    Violations,
    check_gapless,
    check_log,
    check_reader,
    merge,
    verdict,
)
from tests.faults.key_readers import (
    INDEX_PATH,
    PATHS,
    IndexQuestion,
    KeyReader,
    look_at_all,
    reading,
)
from tests.faults.ledger import Ledger, Put
from tests.faults.restart_faults import RESTART_FAULTS
from tests.faults.run import FaultRun
from tests.faults.shown import Shown
from tests.faults.state_work import StateWork
from tests.support.kept_index import differences, index_worker, made_index
from tests.support.mariadb_cluster import BUSY_FENCE_MAX_S

_FAULTS = {**CLUSTER_FAULTS, **RESTART_FAULTS, **BACKUP_FAULTS, **IDENTITY_FAULTS}
CLUSTER_KINDS = tuple(_FAULTS)
LONG_KINDS = (
    "shard-moves-mover-killed",
    "shard-moves-master-killed",
    "shard-moves-back-killed",
    "shard-moves-promoted",
)
"""Minutes each: by command only."""

RECOVERY_MAX_S = 10.0
CALL_MAX_S = 17.0
"""The datastore's own limit for a put, and the slack of a busy machine."""

SETTLE_S = 60.0
INDEX = parse_definition("""
table: cells_by_writer
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: writer, type: int}, {field: n, type: int}]
""")
OTHER_PROCESSES = 5
"""That write beside the first one where COMMITs are held back: enough for some of them not to wait
for each other's shards."""

CELLS_BESIDE_MOVES = 5
"""In one put while shards move: some hundred cells a second, about as many as all readers of one
process follow."""


def run_cluster_faults(kind: str, seed: int, *, all_readers: bool = False) -> FaultRun:
    """Runs and checks one kind. ``all_readers``: with Kafka clients of a gateway, a warehouse
    loader among them; a trigger that charges, and an exporter to a real Kafka broker (I14 to I17).
    """
    result = FaultRun(kind, seed)
    chance = random.Random(f"{kind}-{seed}")
    threads_before = threading.active_count()
    lossy = kind in ("lost-tail", "minions-join")
    moves = kind.startswith("shard-moves")
    clusters = 2 if moves or kind in ("buffered", "lost-tail", "master-restarts-then-dies") else 1
    supervised = moves or kind == "supervised"
    with (
        patch.object(waiting, "FENCE_MAX_S", BUSY_FENCE_MAX_S),
        cluster_system(
            semi_sync=not lossy,
            clusters=clusters,
            supervised=supervised,
            with_small_disk=kind == "disk-full",
        ) as system,
        ExitStack() as closing,
    ):
        copies = 1 if len(system.admin) > 1 else 0
        # An error from here on, a broker that does not start among them, ends all threads.
        datastore = closing.enter_context(Datastore(writing := system.engine(copies)))
        writing.drain.start()
        # Only connections of several processes can have commits under way at once: each process has
        # one group commit.
        others = [
            closing.enter_context(Datastore(system.engine(copies)))
            for _ in range(OTHER_PROCESSES if kind == "commits-held" else 0)
        ]
        tailers: list[Tailer] = []  # a fault may add some
        closing.callback(_end, tailers)
        tailers += [Tailer(system.engine(0)), Tailer(system.engine(0))]
        indexed = closing.enter_context(Datastore(system.engine(0)))
        coordinating = closing.enter_context(Datastore(system.engine(0)))
        closing.enter_context(index_worker(indexed))
        version = made_index(indexed, INDEX)
        ledger, shown = Ledger(), Shown()
        readers: list[Exported | Followed] = []
        if all_readers:
            readers = [
                closing.enter_context(exporting(system.engine(0))),
                closing.enter_context(following(system.engine(0), shown)),
            ]
        writers = DirectWriters(
            [datastore, *others],
            ledger,
            threads=1 if others else 4,
            cells=CELLS_BESIDE_MOVES if moves else 1,
        )
        state = StateWork(coordinating.state, lossy=lossy)
        system.work = Work(writers, tailers, state, ledger, indexed, [version])
        # One process that reads of its own, and one that also keeps the index: each has its own
        # view of the cluster.
        by_key = [
            KeyReader(
                f"reader {number}",
                store,
                ledger,
                shown,
                random.Random(f"{kind}-{seed}-{number}"),
                question=question,
                places_count=not lossy,
            )
            for number, (store, question) in enumerate(((indexed, _in_index), (coordinating, None)))
        ]
        looking = ExitStack()
        looking.enter_context(reading(*by_key))
        try:
            until(
                lambda: (
                    ledger.acknowledged_between(0, time.monotonic()) > 50
                    and all(t.at() > 20 for t in tailers)
                ),
                "the work is under way",
            )
            time.sleep(chance.uniform(0.2, 0.6))
            began_s, looks = time.monotonic(), sum(len(tailer.heads) for tailer in tailers)
            result.witnessed += _FAULTS[kind](system, datastore, chance)
            healed_s = time.monotonic()
            # Writes may have to wait while the fault lasts; reads continue.
            result.operations_inside = (
                ledger.acknowledged_between(began_s, healed_s)
                + sum(len(tailer.heads) for tailer in tailers)
                - looks
            )
            result.recovery_s.append(_recovered(ledger, tailers, healed_s))
            time.sleep(0.5)
            writers.stop()
            state.stop()
            result.violations = merge(
                system.violations, _checks(system, datastore, ledger, tailers, shown, lossy=lossy)
            )
            looking.close()
            look_at_all(by_key[0])
            result.violations = merge(
                result.violations,
                {
                    "I18": (
                        []
                        if lossy
                        else [
                            told
                            for each in system.work.indexes
                            for told in differences(indexed, each)
                        ]
                    )
                },
                state.violations(),
                *(each.violations() for each in by_key),
                {"rule 10": system.unguarded()},
                {
                    "errors": [
                        *writers.errors,
                        *(told for tailer in tailers for told in tailer.errors),
                    ]
                },
                *(verdict("a reader", partial(each.violations, datastore)) for each in readers),
            )
            paths = [
                *PATHS,
                INDEX_PATH,
                "the answer of a put",
                *(f"tailer {number}" for number in range(len(tailers))),
                *(CLIENT_PATHS if readers else ()),
            ]
            result.violations = merge(result.violations, shown.violations(ledger, ("BASE",), paths))
            slow = [
                f"recovery took {each:.1f} s" for each in result.recovery_s if each > RECOVERY_MAX_S
            ]
            if writers.longest_call_s > CALL_MAX_S:
                slow.append(f"a put took {writers.longest_call_s:.1f} s")
            result.violations = merge(result.violations, {"I21": slow})
        finally:
            writers.stop()
            state.stop()
            looking.close()
            closing.close()
    left = threading.active_count() - threads_before
    result.violations = merge(
        result.violations, {"I22": [f"{left} threads were left behind"] if left > 0 else []}
    )
    return result


def _end(tailers: Sequence[Tailer]) -> None:
    for tailer in tailers:
        tailer.stop()
        tailer.engine.close()


def _in_index(put: Put) -> IndexQuestion:
    body = json.loads(put.body_json)
    return IndexQuestion(INDEX.table, body["writer"], [("n", "=", body["n"])], ("writer", "n"))


# --- checks ---------------------------------------------------------------------------------------


def _checks(
    system: ClusterSystem,
    datastore: Datastore,
    ledger: Ledger,
    tailers: Sequence[Tailer],
    shown: Shown,
    *,
    lossy: bool,
) -> Violations:
    violations: Violations = {}
    drain = datastore.engine.drain  # type: ignore[attr-defined]

    def buffered() -> int:
        return sum(
            -1 if isinstance(lines, str) else sum(line.cells for line in lines)
            for lines in drain.counts().values()
        )

    if len(system.admin) > 1 and not _in_time(lambda: buffered() == 0):
        violations["I19"] = [f"the buffers were not emptied: {drain.counts()}"]
    ends: dict[int, int] = {}

    def has_ends() -> bool:
        ends.update({shard: head.next_added_id for shard, head in datastore.heads().items()})
        return ADDED_ID_MAX not in ends.values()  # as long as the master is not confirmed

    if not _in_time(has_ends):
        violations["I21"] = [f"the ends of the logs are not known: {ends}"]
    if not _in_time(lambda: all(tailer.at() == sum(ends.values()) for tailer in tailers)):
        violations["I8"] = [
            f"a tailer has not come to the end: {[tailer.at() for tailer in tailers]} of"
            f" {sum(ends.values())}"
        ]
    log: dict[int, list] = {}  # type: ignore[type-arg]
    for name, cluster in system.admin.items():
        role, _ = cluster_role(cluster)
        log.update(
            {
                shard: cells
                for shard, cells in system.node_log(role.master).items()
                if cells or shard not in log
            }
        )
        violations = merge(violations, _check_minions(system, name))
    told = check_log(ledger, log)
    if lossy:
        # A cell that was never shown may come back under another id; nothing else may change.
        told = {**told, "I4": [], "I12": []}
    shown.answers(ledger, place_counts=not lossy)
    shown.log("the log in the end", log)
    for number, tailer in enumerate(tailers):
        shown.log(f"tailer {number}", tailer.read)
        violations = merge(
            violations,
            check_reader(log, tailer.read, f"tailer {number}"),
            _check_heads(tailer.heads),
        )
    return merge(violations, told, check_gapless(log))


def _check_minions(system: ClusterSystem, cluster: str) -> Violations:
    """I13: each minion's log is a prefix of its master's, and all of it in the end."""
    role, _ = cluster_role(system.admin[cluster])
    minions = [name for name in system.servers if name[0] == cluster and name != role.master]
    return {
        "I13": [
            f"{name} is no copy of {role.master}"
            for name in minions
            if not _in_time(partial(_is_copy, system, name, role.master))
        ]
    }


def _is_copy(system: ClusterSystem, minion: str, master: str) -> bool:
    return system.node_log(minion) == system.node_log(master)


def _check_heads(samples: Sequence[dict[int, Head]]) -> Violations:
    """I9 and I10 of everything that one process was shown."""
    last: dict[int, Head] = {}
    violations: Violations = {"I9": [], "I10": []}
    for heads in samples:
        for shard, head in heads.items():
            before = last.get(shard)
            if before is not None and head.watermark < before.watermark:
                violations["I9"].append(
                    f"shard {shard}: the watermark fell from {before.watermark} to {head.watermark}"
                )
            if before is not None and head.leader_epoch < before.leader_epoch:
                violations["I10"].append(
                    f"shard {shard}: the leader epoch fell from {before.leader_epoch} to"
                    f" {head.leader_epoch}"
                )
            last[shard] = head
    return violations


def _recovered(ledger: Ledger, tailers: Sequence[Tailer], healed_s: float) -> float:
    """Seconds until a put that began after the healing is acknowledged as stored and read by both
    tailers."""
    deadline_s = healed_s + 3 * RECOVERY_MAX_S
    while time.monotonic() < deadline_s:
        fresh = [
            put for put in list(ledger.puts) if put.begun_s >= healed_s and put.outcome == "stored"
        ]
        for put in fresh[:20]:
            assert put.shard is not None
            if all(
                tailer.read[put.shard]
                and tailer.read[put.shard][-1].added_id >= (put.added_id or 0)
                for tailer in tailers
            ):
                return time.monotonic() - healed_s
        time.sleep(0.02)
    return 3 * RECOVERY_MAX_S


def _in_time(done: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        try:
            if done():
                return True
        except Unavailable:
            pass
        time.sleep(0.1)
    return False
