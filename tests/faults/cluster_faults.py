"""The faults of a cluster in a fault run: one function per kind. Each proves that its fault
happened, and raises RuntimeError when it did not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

from pymysql.err import MySQLError

from cellfeed.store.cells.cell import StoredCell, new_cell
from cellfeed.store.clusters.model.roles import read_role
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.never_replicated import extra_cells, never_replicated
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import come_back, follow_again, is_prefix
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import CellfeedError, ProtectData, StorageUnavailable
from tests.faults.cluster_system import NAMESPACE, ClusterSystem, put_again
from tests.faults.ledger import Put
from tests.faults.move_faults import back_killed, master_killed, mover_killed, promoted, shard_moves
from tests.support.small_disk import fill, make_room
from tests.support.tcp_proxy import Action, Rule

HELD_AT_ONCE: Final = 3
"""COMMITs that are kept back together, each of another connection."""

Fault = Callable[[ClusterSystem, Datastore, random.Random], list[str]]


def kill_and_start(system: ClusterSystem, names: Sequence[str], away_s: float) -> list[str]:
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
    return kill_and_start(system, ["a1"], chance.uniform(0.2, 1.0))


def _minion(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    return kill_and_start(system, [chance.choice(["a2", "a3"])], chance.uniform(0.5, 1.5))


def _both_minions(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    return kill_and_start(system, ["a2", "a3"], chance.uniform(0.5, 1.5))


def _master_paused(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Longer than every time-out; another is promoted meanwhile; then the old master continues
    (split brain)."""
    system.servers["a1"].pause()
    time.sleep(1.0)
    done = promote(system.admin["a"])
    time.sleep(chance.uniform(3.0, 5.0))
    system.servers["a1"].resume()
    bring_back(system, datastore, "a1")
    return [f"a1 stopped, {done.master} promoted in epoch {done.epoch}, a1 went on and follows"]


def _promote(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    done = promote(system.admin["a"])
    bring_back(system, datastore, "a1")
    return [
        f"{done.master} promoted in epoch {done.epoch}, a1"
        f" {'fenced' if done.fenced else 'not fenced'}"
    ]


def _promote_twice(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    witnessed = []
    for _ in range(2):
        role, _ = cluster_role(system.admin["a"])
        system.servers[role.master].kill()
        done = promote(system.admin["a"])
        witnessed.append(f"{role.master} killed, {done.master} promoted in epoch {done.epoch}")
        time.sleep(chance.uniform(0.3, 0.8))
        system.servers[role.master].start()
        bring_back(system, datastore, role.master)
        # One that had not even heard of this promotion could not be promoted in the next: nobody
        # could name the cells that it lacks.
        until(
            partial(_has_heard, system, role.master, done.epoch),
            f"{role.master} has heard of epoch {done.epoch}",
        )
    return witnessed


def _has_heard(system: ClusterSystem, node: str, epoch: int) -> bool:
    cluster = system.admin[node[0]]
    try:
        told = read_role(MySqlState(cluster.server(node), cluster.meta))
    except CellfeedError:
        return False  # it has not come to the state yet
    return told is not None and told.epoch == epoch


def _lost_tail(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """The minions hear nothing for a while, then the master dies, and returns with cells that it
    never sent on: asynchronous, acknowledged ones; semi-synchronous, ones that waited for their
    acknowledgement."""
    # A semi-synchronous master writes one group of transactions that waits, and no other behind it:
    # where none of them is a put, it is let continue.
    until(
        partial(_has_tail, system, chance.uniform(0.5, 1.0)),
        "the master has cells that nobody else has",
    )
    system.servers["a1"].kill()
    done = promote(system.admin["a"])
    time.sleep(chance.uniform(0.5, 1.0))
    system.servers["a1"].start()
    role, _ = cluster_role(system.admin["a"])
    extra = [cell for _, cell in extra_cells(system.admin["a"], "a1", role)]
    if not extra:
        raise RuntimeError("no tail was lost: the fault did not happen")
    returned = _returned(system, datastore, extra) if "b" in system.admin else 0
    try:
        follow_again(system.admin["a"], "a1")
    except ProtectData:
        pass
    else:
        raise RuntimeError("an old master with a tail of its own was let in")
    bring_back(system, datastore, "a1")
    return [
        f"a1 killed with {len(extra)} cells that no minion had, {done.master} promoted in epoch"
        f" {done.epoch}, {returned} put again by b, a1 cloned"
    ]


def _returned(system: ClusterSystem, datastore: Datastore, extra: Sequence[StoredCell]) -> int:
    """How many cells of the tail were acknowledged. Each must come back from the buffer of the
    other cluster: nobody else puts it again before the node is back."""
    puts = [
        put
        for cell in extra
        if (put := system.work.ledger.by_row.get(UUID(bytes=cell.row_key))) is not None
        and put.outcome == "stored"
    ]
    if not puts:
        raise RuntimeError("nothing that was acknowledged was lost: the fault did not happen")

    def absent() -> list[Put]:
        try:
            found = [datastore.get_cell(*put.triple) for put in puts]
        except StorageUnavailable:
            return puts
        return [put for put, cell in zip(puts, found, strict=True) if cell is None]

    deadline_s = time.monotonic() + 30
    while (lacking := absent()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    if lacking:
        system.violations.setdefault("I1", []).append(
            f"{len(lacking)} of {len(puts)} cells were acknowledged, were on a1 alone, and no copy"
            f" was put again, the first of {lacking[0].triple}"
        )
    return len(puts) - len(lacking)


def _has_tail(system: ClusterSystem, alone_s: float) -> bool:
    """Leaves the master alone, and looks whether it has written cells since; if not, the minions
    hear of it again."""
    minions = [system.servers[name] for name in ("a2", "a3")]
    for minion in minions:
        minion.sql("STOP SLAVE IO_THREAD")
    log = system.servers["a1"].directory / "data"
    # By its files: while a commit waits for a minion, the server answers no question about its
    # binary log.
    before = {path: path.stat().st_size for path in log.glob("binlog.0*")}
    time.sleep(alone_s)
    if any(
        b"\x04cell\x00" in path.read_bytes()[before.get(path, 0) :]
        for path in log.glob("binlog.0*")
    ):
        return True
    for minion in minions:
        minion.sql("START SLAVE IO_THREAD")
    return False


def _buffered(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    system.servers["a1"].kill()
    time.sleep(1.5)
    counts = datastore.engine.drain.counts()["b"]  # type: ignore[attr-defined]
    waiting = [line for line in counts if not isinstance(line, str) and line.owner == "a"]
    if not waiting:
        raise RuntimeError(f"nothing was buffered: the fault did not happen: {counts}")
    answered = [put for put in list(system.work.ledger.puts) if put.outcome == "buffered"]
    if not answered:
        raise RuntimeError("no put was answered `buffered`: the fault did not happen")
    if lacking := _not_kept(system, answered):
        told = (
            f"{len(lacking)} of {len(answered)} puts were answered `buffered`, and no minion of b"
            f" has an accepted copy, the first of {lacking[0].triple}"
        )
        system.violations.setdefault("I19", []).append(told)
    done = promote(system.admin["a"])
    time.sleep(0.5)
    system.servers["a1"].start()
    bring_back(system, datastore, "a1")
    return [
        f"a1 killed, {len(answered)} puts answered `buffered` with copies on b, {done.master}"
        " promoted"
    ]


def _not_kept(system: ClusterSystem, answered: Sequence[Put]) -> list[Put]:
    """Puts whose accepted copy no minion of b has: the death of b's master would take them. A
    minion may have received cells that it has not applied yet."""
    deadline_s = time.monotonic() + 5
    while True:
        kept = {
            row_key
            for name in ("b2", "b3")
            for (row_key,) in system.servers[name].sql(
                "SELECT row_key FROM trips_meta.buffered_cell WHERE accepted = 1 AND owner = 'a'"
            )
        }
        lacking = [put for put in answered if put.row_key.bytes not in kept]
        if not lacking or time.monotonic() > deadline_s:
            return lacking
        time.sleep(0.1)


def _replication(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Replication stopped on one minion, slow on the other."""
    system.servers["a2"].sql("STOP SLAVE SQL_THREAD")
    system.proxies["a1"].delay(0.02)
    time.sleep(chance.uniform(1.0, 2.0))
    [(behind,)] = system.servers["a2"].sql(
        "SELECT SUM(next_added_id) FROM trips_meta.shard_counter"
    )
    [(now,)] = system.servers["a1"].sql("SELECT SUM(next_added_id) FROM trips_meta.shard_counter")
    system.proxies["a1"].clear()
    system.servers["a2"].sql("START SLAVE SQL_THREAD")
    if not int(str(now)) > int(str(behind)):
        raise RuntimeError("the minion was not behind: the fault did not happen")
    return [
        f"a2 stopped at {behind} while the master came to {now}; 20 ms a packet on the way to and"
        " from the master"
    ]


def _commit_reset(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    proxy = system.proxies["a1"]
    rules = []
    for action in (Action.CUT_BEFORE, Action.CUT_AFTER, Action.CUT_BLIND) * 3:
        rules.append(proxy.on_query("COMMIT", action))
        time.sleep(chance.uniform(0.1, 0.4))
    happened = [rule for rule in rules if rule.happened.is_set()]
    proxy.clear()
    if len(happened) < 6:
        raise RuntimeError(f"only {len(happened)} COMMITs were cut: the fault did not happen")
    return [f"{len(happened)} COMMITs cut before, after and while the master ran them"]


def _commits_held(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """COMMITs of several connections are kept back together and let go in the opposite order, while
    tailers read."""
    proxy = system.proxies["a1"]
    reordered = 0
    for _ in range(8):
        rules = [proxy.on_query("COMMIT", Action.HOLD_QUERY) for _ in range(HELD_AT_ONCE)]
        # Connections that wait for a shard whose COMMIT is held never come to their own: so not
        # always are all of them held.
        with suppress(RuntimeError):
            until(lambda rules=rules: _held(rules) == HELD_AT_ONCE, "all are held", 0.5)  # type: ignore[misc]
        reordered += _held(rules) > 1
        time.sleep(chance.uniform(0.05, 0.2))
        for rule in reversed(rules):
            rule.release()
            time.sleep(0.02)
        proxy.clear()
    if reordered < 3:
        raise RuntimeError(
            f"COMMITs were held together only {reordered} times: the fault did not happen"
        )
    return [
        f"{reordered} times COMMITs of several connections were held, and let go in the opposite"
        " order"
    ]


def _held(rules: Sequence[Rule]) -> int:
    return sum(rule.happened.is_set() for rule in rules)


def _delayed(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Both minions receive at once but apply a second later."""
    _delay_minions(system, 1)
    lags = []
    for _ in range(10):
        time.sleep(chance.uniform(0.1, 0.3))
        [standing] = datastore.engine.status()  # type: ignore[attr-defined]
        lags.append(standing.lag_cells or 0)
    _delay_minions(system, 0)
    if not max(lags):
        raise RuntimeError("the minions were not behind: the fault did not happen")
    return [f"both minions a second behind: up to {max(lags)} cells not on one yet"]


def _delay_minions(system: ClusterSystem, seconds: int) -> None:
    for name in ("a2", "a3"):
        system.servers[name].sql(
            "STOP SLAVE", f"CHANGE MASTER TO MASTER_DELAY = {seconds}", "START SLAVE"
        )


def _read_only(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """Somebody makes the master read-only, and takes writes again later."""
    system.servers["a1"].sql("SET GLOBAL read_only = 1")
    time.sleep(chance.uniform(0.5, 1.5))
    try:
        datastore.engine.put([new_cell(NAMESPACE, "REFUSED", 1, {})])
    except StorageUnavailable as error:
        refused = str(error)
    else:
        raise RuntimeError("a read-only master took a put: the fault did not happen")
    system.servers["a1"].sql("SET GLOBAL read_only = 0")
    return [f"a1 read-only: {refused}"]


def _disk_full(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    """The master's disk is full: a minion is promoted. There is room again later, and the old
    master returns."""
    disk = system.disk
    assert disk is not None
    fill(disk)
    before = system.written("a1")
    time.sleep(chance.uniform(1.0, 2.0))
    first = system.written("a1")
    time.sleep(1.0)
    if system.written("a1") != first:
        raise RuntimeError("the master went on to write: the fault did not happen")
    done = promote(system.admin["a"])
    time.sleep(chance.uniform(0.5, 1.0))
    make_room(disk)
    # A server that waits for room looks only once a minute; an operator restarts it.
    system.servers["a1"].kill()
    system.servers["a1"].start()
    bring_back(system, datastore, "a1")
    return [
        f"the disk of a1 was full: it stood still at {first} cells ({first - before} more than"
        f" before), {done.master} promoted, a1 back after a restart"
    ]


def _supervised(system: ClusterSystem, datastore: Datastore, chance: random.Random) -> list[str]:
    if chance.random() < 0.5:
        system.servers["a1"].kill()
        how = "killed"
    else:
        system.servers["a1"].pause()
        how = "paused"
    until(lambda: bool(system.promoted), "the supervisor promotes")
    time.sleep(1.0)
    if how == "killed":
        system.servers["a1"].start()
    else:
        system.servers["a1"].resume()
    role, _ = cluster_role(system.admin["a"])
    until(
        lambda: _follows(system, "a1") or _is_left_to_people(system, "a1"),
        "the supervisor brings the old master back, or refuses it",
        30,
    )
    if _follows(system, "a1"):
        return [f"a1 {how}, {role.master} promoted by the supervisor, which brought a1 back"]
    # A commit that was on its way to the minions when the master was killed: nobody was told of it,
    # and only a person has it put again.
    time.sleep(1.0)
    if not system.servers["a1"].sql("SELECT @@GLOBAL.read_only") == [(1,)]:
        raise RuntimeError("a1 is back with cells of its own, and takes writes")
    bring_back(system, datastore, "a1")
    return [
        f"a1 {how}, {role.master} promoted by the supervisor, a1 refused, its cells put again and"
        " cloned"
    ]


def bring_back(system: ClusterSystem, datastore: Datastore, node: str) -> None:
    """``cellfeed cluster rejoin NODE --put-again``."""
    cluster = system.admin[node[0]]
    if (beyond := come_back(cluster, node)) is not None:
        put_again(datastore, beyond)
        clone(cluster, node, listed=beyond)


def _follows(system: ClusterSystem, node: str) -> bool:
    try:
        role, silent = cluster_role(system.admin[node[0]])
        if node in silent or node == role.master:
            return False
        return is_prefix(system.admin[node[0]], node, role) and bool(
            system.servers[node].sql("SHOW SLAVE STATUS")
        )
    except (CellfeedError, MySQLError):  # it starts again just now
        return False


def _is_left_to_people(system: ClusterSystem, node: str) -> bool:
    """Whether it holds cells that were never replicated."""
    cluster = system.admin[node[0]]
    try:
        role, _ = cluster_role(cluster)
        return (
            not is_prefix(cluster, node, role) and not never_replicated(cluster, node, role).nothing
        )
    except CellfeedError:
        return False  # it is being copied to


def until(done: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Raises RuntimeError when it does not come to that in time."""
    deadline_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)


CLUSTER_FAULTS: Final[dict[str, Fault]] = {
    "master": _master,
    "minion": _minion,
    "both-minions": _both_minions,
    "master-paused": _master_paused,
    "promote": _promote,
    "promote-twice": _promote_twice,
    "lost-tail": _lost_tail,
    "lost-tail-semi-sync": _lost_tail,
    "buffered": _buffered,
    "replication": _replication,
    "commit-reset": _commit_reset,
    "commits-held": _commits_held,
    "delayed": _delayed,
    "read-only": _read_only,
    "disk-full": _disk_full,
    "supervised": _supervised,
    "shard-moves": shard_moves,
    "shard-moves-mover-killed": mover_killed,
    "shard-moves-master-killed": master_killed,
    "shard-moves-back-killed": back_killed,
    "shard-moves-promoted": promoted,
}
