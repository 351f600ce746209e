"""One fault run on clusters: writers and tailers work while servers and networks fail; afterwards every invariant is checked from outside.

I1–I13 as design §6 has them (I4 and I12 only where no tail can be lost), I19 the buffers drain, I21 recovery, I22 threads.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from store.body_codec import decode_body
from store.cells import NewCell
from store.clusters.failover import cluster_role, promote
from store.clusters.rejoin import clone, extra_buffered, extra_cells, follow_again, is_prefix
from store.datastore import Datastore
from store.engines.contract import Head
from store.errors import CellfeedError, ProtectData, Unavailable
from tests.faults.cluster_system import ClusterSystem, DirectWriters, Tailer, cluster_system, put_again
from tests.faults.invariants import Violations, check_gapless, check_log, check_reader, merge
from tests.faults.ledger import Ledger
from tests.faults.run import FaultRun
from tests.services.tcp_proxy import Action

CLUSTER_KINDS = (
    "master",
    "minion",
    "both-minions",
    "master-paused",
    "promote",
    "promote-twice",
    "lost-tail",
    "buffered",
    "replication",
    "commit-reset",
    "supervised",
)
RECOVERY_MAX_S = 10.0
CALL_MAX_S = 17.0
"""The datastore's own limit for a put, and the slack of a busy machine."""

SETTLE_S = 60.0


def run_cluster_faults(kind: str, seed: int) -> FaultRun:
    """Runs and checks one kind."""
    result = FaultRun(kind, seed)
    chance = random.Random(f"{kind}-{seed}")
    threads_before = threading.active_count()
    lossy = kind == "lost-tail"
    with cluster_system(semi_sync=not lossy, clusters=2 if kind in ("buffered", "lost-tail") else 1, supervised=kind == "supervised") as system:
        copies = 1 if len(system.admin) > 1 else 0
        datastore = Datastore(writing := system.engine(copies))
        writing.drain.start()
        tailers = [Tailer(system.engine(0)) for _ in range(2)]
        ledger = Ledger()
        writers = DirectWriters(datastore, ledger)
        try:
            _until(lambda: ledger.acknowledged_between(0, time.monotonic()) > 50 and all(t.at() > 20 for t in tailers), "the work is under way")
            time.sleep(chance.uniform(0.2, 0.6))
            began_s, looks = time.monotonic(), sum(len(tailer.heads) for tailer in tailers)
            result.witnessed += _FAULTS[kind](system, datastore, chance)
            healed_s = time.monotonic()
            # Writes may have to wait while the fault lasts; reads go on.
            result.operations_inside = ledger.acknowledged_between(began_s, healed_s) + sum(len(tailer.heads) for tailer in tailers) - looks
            result.recovery_s.append(_recovered(ledger, tailers, healed_s))
            time.sleep(0.5)
            writers.stop()
            result.violations = _checks(system, datastore, ledger, tailers, lossy=lossy)
            slow = [f"recovery took {each:.1f} s" for each in result.recovery_s if each > RECOVERY_MAX_S]
            if writers.longest_call_s > CALL_MAX_S:
                slow.append(f"a put took {writers.longest_call_s:.1f} s")
            result.violations = merge(result.violations, {"I21": slow})
        finally:
            writers.stop()
            for tailer in tailers:
                tailer.stop()
                tailer._engine.close()
            datastore.close()
    left = threading.active_count() - threads_before
    result.violations = merge(result.violations, {"I22": [f"{left} threads were left behind"] if left > 0 else []})
    return result


# --- faults ------------------------------------------------------------------------------------------------------------------


def _kill_and_start(system: ClusterSystem, names: Sequence[str], away_s: float) -> list[str]:
    witnessed = []
    for name in names:
        server = system.servers[name]
        assert server.process is not None
        pid = server.process.pid
        server.kill()
        witnessed.append(f"{name}: pid {pid} killed")
    time.sleep(away_s)
    for name in names:
        system.servers[name].start()
        process = system.servers[name].process
        assert process is not None
        witnessed.append(f"{name}: pid {process.pid} started")
    return witnessed


def _master(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    return _kill_and_start(system, ["a1"], chance.uniform(0.2, 1.0))


def _minion(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    return _kill_and_start(system, [chance.choice(["a2", "a3"])], chance.uniform(0.5, 1.5))


def _both_minions(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    return _kill_and_start(system, ["a2", "a3"], chance.uniform(0.5, 1.5))


def _master_paused(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Longer than every time-out; another is promoted meanwhile; then the old master goes on (split brain)."""
    system.servers["a1"].pause()
    time.sleep(1.0)
    done = promote(system.admin["a"])
    time.sleep(chance.uniform(3.0, 5.0))
    system.servers["a1"].resume()
    _come_back(system, datastore, "a1")
    return [f"a1 stopped, {done.master} promoted in epoch {done.epoch}, a1 went on and follows"]


def _promote(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    done = promote(system.admin["a"])
    _come_back(system, datastore, "a1")
    return [f"{done.master} promoted in epoch {done.epoch}, a1 {'fenced' if done.fenced else 'not fenced'}"]


def _promote_twice(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    witnessed = []
    for _ in range(2):
        role, _ = cluster_role(system.admin["a"])
        system.servers[role.master].kill()
        done = promote(system.admin["a"])
        witnessed.append(f"{role.master} killed, {done.master} promoted in epoch {done.epoch}")
        time.sleep(chance.uniform(0.3, 0.8))
        system.servers[role.master].start()
        _come_back(system, datastore, role.master)
    return witnessed


def _lost_tail(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Asynchronous: the minions hear nothing for a while, then the master dies, and comes back with what it never sent on."""
    for name in ("a2", "a3"):
        system.servers[name].sql("STOP SLAVE IO_THREAD")
    time.sleep(chance.uniform(0.5, 1.0))
    system.servers["a1"].kill()
    done = promote(system.admin["a"])
    time.sleep(chance.uniform(0.5, 1.0))
    system.servers["a1"].start()
    role, _ = cluster_role(system.admin["a"])
    extra = [cell for _, cell in extra_cells(system.admin["a"], "a1", role)]
    if not extra:
        raise RuntimeError("no tail was lost: the fault did not happen")
    try:
        follow_again(system.admin["a"], "a1")
    except ProtectData:
        pass
    else:
        raise RuntimeError("an old master with a tail of its own was let in")
    _come_back(system, datastore, "a1")
    return [f"a1 killed with {len(extra)} cells that no minion had, {done.master} promoted in epoch {done.epoch}, a1 cloned"]


def _buffered(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    system.servers["a1"].kill()
    time.sleep(1.5)
    counts = datastore.engine.drain.counts()["b"]  # type: ignore[attr-defined]
    waiting = [line for line in counts if not isinstance(line, str) and line.owner == "a"]
    if not waiting or not waiting[0].accepted:
        raise RuntimeError(f"nothing was buffered: the fault did not happen: {counts}")
    done = promote(system.admin["a"])
    time.sleep(0.5)
    system.servers["a1"].start()
    _come_back(system, datastore, "a1")
    return [f"a1 killed, {waiting[0].accepted} cells answered `buffered` on b, {done.master} promoted"]


def _replication(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Replication stopped on one minion, slow on the other."""
    system.servers["a2"].sql("STOP SLAVE SQL_THREAD")
    system.proxies["a1"].delay(0.02)
    time.sleep(chance.uniform(1.0, 2.0))
    [(behind,)] = system.servers["a2"].sql("SELECT SUM(next_added_id) FROM trips_meta.shard_counter")
    [(now,)] = system.servers["a1"].sql("SELECT SUM(next_added_id) FROM trips_meta.shard_counter")
    system.proxies["a1"].clear()
    system.servers["a2"].sql("START SLAVE SQL_THREAD")
    if not now > behind:
        raise RuntimeError("the minion was not behind: the fault did not happen")
    return [f"a2 stopped at {behind} while the master came to {now}; 20 ms a packet on the way to and from the master"]


def _commit_reset(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    proxy = system.proxies["a1"]
    rules = []
    for action in (Action.CUT_BEFORE, Action.CUT_AFTER, Action.CUT_BLIND) * 3:
        rules.append(proxy.on_query("COMMIT", action))
        time.sleep(chance.uniform(0.1, 0.4))
    happened = [rule for rule in rules if rule.happened]
    proxy.clear()
    if len(happened) < 6:
        raise RuntimeError(f"only {len(happened)} COMMITs were cut: the fault did not happen")
    return [f"{len(happened)} COMMITs cut before, after and while the master ran them"]


def _supervised(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    if chance.random() < 0.5:
        system.servers["a1"].kill()
        how = "killed"
    else:
        system.servers["a1"].pause()
        how = "paused"
    _until(lambda: bool(system.promoted), "the supervisor promotes", 20)
    time.sleep(1.0)
    if how == "killed":
        system.servers["a1"].start()
    else:
        system.servers["a1"].resume()
    role, _ = cluster_role(system.admin["a"])
    _until(lambda: _follows(system, "a1") or not is_prefix(system.admin["a"], "a1", role), "the supervisor brings the old master back, or refuses it", 30)
    if _follows(system, "a1"):
        return [f"a1 {how}, {role.master} promoted by the supervisor, which brought a1 back"]
    # A commit that was on its way to the minions when the master was killed: nobody was told of it, and only a person has it put again.
    time.sleep(1.0)
    if not system.servers["a1"].sql("SELECT @@GLOBAL.read_only") == [(1,)]:
        raise RuntimeError("a1 is back with cells of its own, and takes writes")
    _come_back(system, datastore, "a1")
    return [f"a1 {how}, {role.master} promoted by the supervisor, a1 refused, its cells put again and cloned"]


_FAULTS: dict[str, Callable[[ClusterSystem, Datastore, random.Random], list[str]]] = {
    "master": _master,
    "minion": _minion,
    "both-minions": _both_minions,
    "master-paused": _master_paused,
    "promote": _promote,
    "promote-twice": _promote_twice,
    "lost-tail": _lost_tail,
    "buffered": _buffered,
    "replication": _replication,
    "commit-reset": _commit_reset,
    "supervised": _supervised,
}


def _come_back(system: ClusterSystem, datastore: Datastore, node: str) -> None:
    """``cellfeed cluster rejoin NODE --put-again``."""
    cluster = system.admin[node[0]]
    role, _ = cluster_role(cluster)
    if is_prefix(cluster, node, role):
        follow_again(cluster, node)
        return
    extra = [NewCell(cell.row_key, cell.column_name, cell.ref_key, decode_body(cell.body)) for _, cell in extra_cells(cluster, node, role)]
    put_again(datastore, extra + extra_buffered(cluster, node))
    clone(cluster, node)


def _follows(system: ClusterSystem, node: str) -> bool:
    try:
        role, silent = cluster_role(system.admin[node[0]])
        if node in silent or node == role.master:
            return False
        return is_prefix(system.admin[node[0]], node, role) and bool(system.servers[node].sql("SHOW SLAVE STATUS"))
    except CellfeedError:
        return False


# --- checks ------------------------------------------------------------------------------------------------------------------


def _checks(system: ClusterSystem, datastore: Datastore, ledger: Ledger, tailers: Sequence[Tailer], *, lossy: bool) -> Violations:
    violations: Violations = {}
    drain = datastore.engine.drain  # type: ignore[attr-defined]

    def buffered() -> int:
        return sum(-1 if isinstance(lines, str) else sum(line.cells for line in lines) for lines in drain.counts().values())

    if len(system.admin) > 1 and not _in_time(lambda: buffered() == 0):
        violations["I19"] = [f"the buffers were not emptied: {drain.counts()}"]
    ends = {shard: head.next_added_id for shard, head in datastore.heads().items()}
    if not _in_time(lambda: all(tailer.at() == sum(ends.values()) for tailer in tailers)):
        violations["I8"] = [f"a tailer has not come to the end: {[tailer.at() for tailer in tailers]} of {sum(ends.values())}"]
    log: dict[int, list] = {}  # type: ignore[type-arg]
    for name, cluster in system.admin.items():
        role, _ = cluster_role(cluster)
        log.update({shard: cells for shard, cells in system.node_log(role.master).items() if cells or shard not in log})
        violations = merge(violations, _check_minions(system, name))
    told = check_log(ledger, log)
    if lossy:
        # What was never shown may come back under another id; nothing else may change.
        told = {**told, "I4": [], "I12": []}
    for number, tailer in enumerate(tailers):
        violations = merge(violations, check_reader(log, tailer.read, f"tailer {number}"), _check_heads(tailer.heads))
    return merge(violations, told, check_gapless(log))


def _check_minions(system: ClusterSystem, cluster: str) -> Violations:
    """I13: each minion's log is a prefix of its master's, and all of it in the end."""
    role, _ = cluster_role(system.admin[cluster])
    minions = [name for name in system.servers if name[0] == cluster and name != role.master]
    return {"I13": [f"{name} is no copy of {role.master}" for name in minions if not _in_time(partial(_is_copy, system, name, role.master))]}


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
                violations["I9"].append(f"shard {shard}: the watermark fell from {before.watermark} to {head.watermark}")
            if before is not None and head.leader_epoch < before.leader_epoch:
                violations["I10"].append(f"shard {shard}: the leader epoch fell from {before.leader_epoch} to {head.leader_epoch}")
            last[shard] = head
    return violations


def _recovered(ledger: Ledger, tailers: Sequence[Tailer], healed_s: float) -> float:
    """Seconds until a put that began after the healing is acknowledged as stored and read by both tailers."""
    deadline_s = healed_s + 3 * RECOVERY_MAX_S
    while time.monotonic() < deadline_s:
        fresh = [put for put in list(ledger.puts) if put.begun_s >= healed_s and put.outcome == "stored"]
        for put in fresh[:20]:
            assert put.shard is not None
            if all(tailer.read[put.shard] and tailer.read[put.shard][-1].added_id >= (put.added_id or 0) for tailer in tailers):
                return time.monotonic() - healed_s
        time.sleep(0.02)
    return 3 * RECOVERY_MAX_S


def _until(done: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)


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
