"""Promotion: a minion becomes master, the old master is fenced, the others follow.

Steps, and what a kill after each leaves:

    1. lock          a user lock on a majority of the nodes: one promotion at a time; it ends with
                     its connections.
    2. fence         the old master, if it answers: read-only, its clients cut off. Then the minions
                     reach its position, in either mode of replication. Killed here: no writes until
                     a promotion is run again.
    3. collect       the minions stop receiving, apply what they have, and follow nobody from then
                     on, also after a restart. The one with most is chosen among those that have
                     heard of the present epoch. Then a majority of nodes remembers the epoch that
                     is to be raised (:mod:`cellfeed.store.clusters.model.promises`). Killed here:
                     the next promotion takes a higher epoch; no minion follows until then.
    4. raise         on the chosen one, in one transaction: the shards' leader epochs, where each
                     begins, and the role. From its commit on, processes that hear of the role send
                     writes there; they are refused (definitely not written) until step 6.
    5. re-point      the other minions follow the new master.
    6. open          the new master takes writes.

Run again after a kill it does what is left: a role whose master is still read-only is opened,
minions are pointed to it. A promotion that is refused before step 4 gives the old master its writes
back, and the minions receive again.

What is lost by it. Of a master that answers, nothing: it is fenced, and its minions have its
position before one is chosen. Of one that does not answer, semi-synchronous replication loses
nothing that was acknowledged: it is on a minion. Without it, the old master's last commits may be
on no minion. They were never shown (the watermark counts minions), and return under new ids: from
the buffer of another cluster, or with the old master (``rejoin``). A minion that is left out may
hold cells that were shown; so every minion must answer, unless the operator names it as given up. A
master that answers, and that no minion catches up with, can be given up in the same way. An old
master that has not rejoined is no minion: it may hold more than any of them, but of another
history, and takes no part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from cellfeed.store.clusters.model.promises import promise, promised_epoch
from cellfeed.store.clusters.model.roles import Role, newest, of_other_histories, read_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.contract.state_limits import revision_of_next_history
from cellfeed.store.engines.mysql.connections import has_database, query, run_script
from cellfeed.store.engines.mysql.guard import ROLE_KEY
from cellfeed.store.engines.mysql.replication import (
    Gtid,
    check_mariadb,
    follow,
    is_read_only,
    make_read_only,
    minion_status,
    open_for_writes,
    position,
    promotion_lock,
    set_semi_sync,
    start_receiving,
    stop_following,
    stop_receiving,
)
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import (
    CellfeedError,
    ProtectData,
    StaleWriter,
    StorageUnavailable,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint, marked
from cellfeed.store.histories import is_same_history

declare(
    "promote.after_fence",
    "promote.after_collect",
    "promote.after_promise",
    "promote.after_raise",
    "promote.after_repoint",
    "promote.after_open",
)

_log = logging.getLogger("cellfeed.failover")
QUICK_TIMEOUT_S: Final = 1.0
"""How long a node is waited for that may be the one that hangs, in seconds."""

HANDOVER_S: Final = 10.0
"""How long a fenced master waits for the minion that takes over to come to its position, in
seconds: nobody writes meanwhile."""

ALL_HANDOVER_S: Final = 2.0
"""How long the other minions are waited for as well, in seconds: one that lags catches up from the
new master."""

_PAUSE_S: Final = 0.02

_EPOCH_MAX: Final = (1 << 31) - 1


@dataclass
class Promotion:
    """The result of a promotion. ``gave_up``: nodes that were left out; ``position``: the new
    master's when it became one."""

    cluster: str
    master: str
    epoch: int
    old_master: str
    fenced: bool
    minions: list[str] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Nodes that are no minions: they do not follow the old master, and never have."""

    position: str = ""


def cluster_role(cluster: ClusterServers) -> tuple[Role, dict[str, str]]:
    """The role of the highest epoch that a node tells, and why the others tell none. Raises
    StorageUnavailable when nobody does."""
    roles: dict[str, Role | None] = {}
    silent: dict[str, str] = {}
    for name, server in cluster.servers.items():
        try:
            roles[name] = read_role(MySqlState(server, cluster.meta))
        except CellfeedError as error:
            silent[name] = str(error)
    foreign = of_other_histories(cluster.name, roles)
    silent.update(foreign)
    role = newest(role for name, role in roles.items() if name not in foreign)
    if role is None:
        raise StorageUnavailable(
            f"cluster {cluster.name}: no node tells who is master:"
            f" {'; '.join(silent.values()) or 'it was never made (cluster init)'}"
        )
    return role, silent


def master_state(cluster: ClusterServers) -> MySqlState:
    """The state table on the present master, for commits under its role. Raises as
    :func:`cluster_role`."""
    role, _ = cluster_role(cluster)
    return MySqlState(cluster.server(role.master), cluster.meta, role.terms)


def promote(
    cluster: ClusterServers,
    to: str | None = None,
    give_up: Collection[str] = (),
    gone_in: int | None = None,
) -> Promotion:
    """Makes ``to`` (the most advanced minion, when not given) master. ``give_up``: nodes to
    continue without, minions or the master, with what only they hold. ``gone_in``: the epoch whose
    master was found to be gone; only if that is still the epoch, and its master still takes no
    writes, is anything done. See the module.

    Raises StaleWriter when that is so no more. Raises ProtectData when cells that were shown could
    be lost by it, StorageUnavailable when a node that is needed does not answer.
    """
    for node in (*give_up, *([to] if to else [])):
        cluster.server(node)
    # A master that hangs must not hold up its own replacement: it is asked, and fenced, with little
    # patience.
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        return _promote_locked(cluster, quick, to, give_up, gone_in)
    finally:
        quick.close()


def _promote_locked(
    cluster: ClusterServers,
    quick: ClusterServers,
    to: str | None,
    give_up: Collection[str],
    gone_in: int | None,
) -> Promotion:
    silent = minority(quick)
    with settled_role(cluster, quick) as role:
        if gone_in is not None and (
            gone_in != role.epoch or (role.master not in silent and takes_writes(quick, role))
        ):
            raise StaleWriter(
                f"cluster {cluster.name} is in epoch {role.epoch} by now, with {role.master} as"
                " master"
            )
        is_promised = promised_epoch(quick, role.history_id, silent) > role.epoch
        if (
            not is_promised
            and _is_unfinished(quick, role)
            and to in (None, role.master)
            and role.master not in give_up
        ):
            return _finish(cluster, role, give_up)
        return _promote(cluster, quick, role, to, give_up, silent)


def minority(quick: ClusterServers) -> dict[str, str]:
    """The nodes that do not answer, and why. Raises StorageUnavailable when they are not a
    minority."""
    _, silent = cluster_role(quick)
    answering = [name for name in quick.servers if name not in silent]
    if 2 * len(answering) <= len(quick.servers):
        raise StorageUnavailable(
            f"cluster {quick.name}: only {', '.join(answering)} answer; a majority of"
            f" {len(quick.servers)} nodes is needed: {silent}"
        )
    return silent


@contextmanager
def settled_role(cluster: ClusterServers, quick: ClusterServers) -> Iterator[Role]:
    """The role, which no promotion changes meanwhile: a lock on the nodes that answer. ``quick``:
    the same servers with little patience. Raises StorageUnavailable while another holds it."""
    _, silent = cluster_role(quick)
    for server in cluster.servers.values():
        # a fence, by this promotion or one before, cuts connections that were kept
        server.drop_idle()
    with promotion_lock(
        [server for name, server in cluster.servers.items() if name not in silent], cluster.name
    ):
        role, _ = cluster_role(quick)
        yield role


def takes_writes(cluster: ClusterServers, role: Role) -> bool:
    try:
        if _why_foreign(cluster, role.master, role):
            return False
        return not is_read_only(cluster.server(role.master))
    except Unavailable:
        return False


def _is_unfinished(cluster: ClusterServers, role: Role) -> bool:
    """Whether a promotion was killed between raising the epoch and opening the new master, or right
    after fencing the old one: either way the role's master has every cell that was acknowledged,
    and is closed."""
    try:
        server = cluster.server(role.master)
        if _why_foreign(cluster, role.master, role):
            return False
        return is_read_only(server) and minion_status(server) is None
    except Unavailable:
        return False


def _promote(
    cluster: ClusterServers,
    quick: ClusterServers,
    role: Role,
    to: str | None,
    give_up: Collection[str],
    silent: Collection[str],
) -> Promotion:
    if to == role.master:
        raise ProtectData(f"{to} is the master of cluster {cluster.name} already")
    candidates = _candidates(cluster, role, give_up)
    if to and to not in candidates:
        raise ProtectData(
            f"{to} does not follow {role.master}, and has not heard of its epoch {role.epoch}: what"
            " it holds may be another history"
        )
    for name in candidates:
        check_mariadb(cluster.servers[name])
    done = Promotion(
        cluster.name,
        "",
        next_epoch(quick, role, silent),
        role.master,
        fenced=False,
        gave_up=sorted(give_up),
    )
    done.left_out = sorted(set(cluster.servers) - {role.master, *candidates, *give_up})
    was_open = takes_writes(quick, role)
    done.fenced = _fence(quick, role)
    failpoint("promote.after_fence")
    try:
        if role.master not in give_up:
            if done.fenced:
                _hand_over(cluster, role, candidates, to)
            elif was_open and not role.semi_sync:
                raise StorageUnavailable(
                    f"cluster {cluster.name}: nobody was promoted: {role.master} answers but could"
                    " not be fenced, so it may acknowledge what no minion has; try again, or"
                    f" continue without what only it has: cellfeed cluster promote {cluster.name}"
                    f" --give-up {role.master}"
                )
        positions = {name: stop_receiving(cluster.servers[name]) for name in candidates}
        for name in candidates:
            # a server that restarts would receive again from the old master, behind what was
            # counted
            stop_following(cluster.servers[name])
        failpoint("promote.after_collect")
        heard = {
            name: told
            for name in candidates
            if (told := _told(cluster, name)) and told.epoch == role.epoch
        }
        role = newest([role, *heard.values()]) or role
        _check_left_out(cluster, role, candidates, heard, give_up)
        done.master = _chosen(cluster, {name: positions[name] for name in heard}, to)
        _refuse_newer(quick, role, silent)
        promise(quick, role, done.epoch, silent)
        failpoint("promote.after_promise")
    except CellfeedError:
        _take_back(cluster, role, candidates, reopen=was_open)
        raise
    done.position = positions[done.master].text
    done.minions = [name for name in candidates if name != done.master]
    raised = role.promoted(done.master, done.minions, done.position, done.epoch)
    raise_epoch(cluster, raised)
    failpoint("promote.after_raise")
    _open(cluster, raised)
    return done


def next_epoch(cluster: ClusterServers, role: Role, silent: Collection[str]) -> int:
    """Above every epoch that a node which answers tells, or remembers."""
    return max(role.epoch, promised_epoch(cluster, role.history_id, silent)) + 1


def _refuse_newer(cluster: ClusterServers, role: Role, silent: Collection[str]) -> None:
    """Raises StorageUnavailable when a node has come back that tells a higher epoch: what the
    candidates hold was counted without it."""
    for name in set(cluster.servers) - set(silent):
        told = _told(cluster, name)
        if (
            told is not None
            and told.epoch > role.epoch
            and is_same_history(told.history_id, role.history_id)
        ):
            raise StorageUnavailable(
                f"cluster {cluster.name}: nobody was promoted: {name} has come back and tells epoch"
                f" {told.epoch}; promote again"
            )


def _hand_over(
    cluster: ClusterServers, role: Role, candidates: Collection[str], to: str | None
) -> None:
    """Until the minion that takes over, and if possible all, have what the fenced master has.
    Raises StorageUnavailable."""
    fenced = cluster.server(role.master)
    fenced.drop_idle()
    for name in candidates:
        if minion_status(cluster.server(name)) is None:  # since a promotion that was killed
            follow(cluster.server(name), fenced)
    wanted = position(fenced)
    began_s = time.monotonic()
    while True:
        positions = {name: position(cluster.server(name)) for name in candidates}
        behind = [name for name, told in positions.items() if told.sequence < wanted.sequence]
        waited_s = time.monotonic() - began_s
        enough = to not in behind if to else len(behind) < len(positions)
        if not behind or (enough and waited_s > ALL_HANDOVER_S):
            return
        if waited_s > HANDOVER_S:
            told_of = ", ".join(f"{name} at {positions[name].text or 'nothing'}" for name in behind)
            raise StorageUnavailable(
                f"cluster {cluster.name}: nobody was promoted: {role.master} is at {wanted.text},"
                f" and after {HANDOVER_S:.0f} s {told_of}; see why replication lags, or continue"
                f" without what only {role.master} has by naming it as given up: cellfeed cluster"
                f" promote {cluster.name} --give-up {role.master}"
            )
        time.sleep(_PAUSE_S)


def _check_left_out(
    cluster: ClusterServers,
    role: Role,
    candidates: Collection[str],
    heard: Mapping[str, Role],
    give_up: Collection[str],
) -> None:
    """Raises ProtectData when cells may have been shown that none of the candidates has to have."""
    if missing := sorted(set(role.minions) - set(candidates) - set(give_up)):
        raise ProtectData(
            f"{', '.join(missing)} came back as minion of {role.master}, and may hold cells that"
            " were shown; bring it back, or give it up by name"
        )
    if (
        heard
        and role.master not in give_up
        and not any(name in told.minions for name, told in heard.items())
    ):
        raise ProtectData(
            f"cluster {cluster.name}: {', '.join(heard)} has not caught up with {role.master} since"
            f" it came, and may lack cells that were shown; bring {role.master} back, or continue"
            " without what only it has by naming it as given up"
        )


def _take_back(
    cluster: ClusterServers, role: Role, candidates: Collection[str], *, reopen: bool
) -> None:
    """Undoes the steps before the epoch is raised, as far as nodes answer: the minions receive
    again, and the master takes writes if it did before."""
    for name in candidates:
        with suppress(CellfeedError):
            if minion_status(cluster.servers[name]) is None:
                follow(cluster.servers[name], cluster.server(role.master))
            else:
                start_receiving(cluster.servers[name])
    if reopen:
        try:
            open_for_writes(cluster.server(role.master))
        except CellfeedError as error:
            _log.error(
                "cluster %s: %s is fenced still: cellfeed cluster promote %s opens it again: %s",
                cluster.name,
                role.master,
                cluster.name,
                error,
            )


def _finish(cluster: ClusterServers, role: Role, give_up: Collection[str]) -> Promotion:
    _log.warning(
        "cluster %s: finishing the promotion of %s that was begun before", cluster.name, role.master
    )
    minions = [name for name in role.minions if name not in give_up]
    for name in list(minions):
        if foreign := _why_foreign(cluster, name, role):
            _log.error("cluster %s: %s is left alone: %s", cluster.name, name, foreign)
            minions.remove(name)
    _open(cluster, msgspec.structs.replace(role, minions=minions))
    position = dict(role.promotions).get(role.epoch, "")
    return Promotion(
        cluster.name,
        role.master,
        role.epoch,
        "",
        fenced=True,
        minions=minions,
        gave_up=sorted(give_up),
        position=position,
    )


def _candidates(cluster: ClusterServers, role: Role, give_up: Collection[str]) -> list[str]:
    """The nodes whose history is the master's: they have heard of its epoch, or follow it. Every
    node that is known as a minion must be one of them."""
    candidates = []
    for name in cluster.servers:
        if name == role.master or name in give_up:
            continue
        try:
            if foreign := _why_foreign(cluster, name, role):
                if name in role.minions:
                    raise ProtectData(
                        f"another server has the address of minion {name}, which may hold cells"
                        f" that were shown: {foreign}. Bring the minion back, or name it as given"
                        f" up: cellfeed cluster promote {cluster.name} --give-up {name}"
                    )
                _log.warning("cluster %s: %s is left alone: %s", cluster.name, name, foreign)
            elif _shares_history(cluster, name, role):
                candidates.append(name)
            elif name in role.minions:
                raise ProtectData(
                    f"node {name} has not heard of epoch {role.epoch} of {role.master}; it must"
                    " catch up, or be given up by name, first"
                )
            else:
                _log.warning(
                    "cluster %s: %s does not follow %s and takes no part in the promotion",
                    cluster.name,
                    name,
                    role.master,
                )
        except Unavailable as error:
            if name in role.minions:
                raise ProtectData(
                    f"minion {name} does not answer, and may hold cells that were shown; bring it"
                    f" back, or name it as given up: {error}"
                ) from error
    return candidates


def _shares_history(cluster: ClusterServers, name: str, role: Role) -> bool:
    told = _told(cluster, name)
    if told is None or told.epoch == role.epoch:
        return told is not None
    status = minion_status(cluster.servers[name])
    return status is not None and status.follows(cluster.server(role.master)) and not status.error


def _why_foreign(cluster: ClusterServers, name: str, role: Role) -> str:
    """Why the server at the node's address is no node of the cluster; empty where it is one, or
    tells no role. Raises Unavailable."""
    told = _told(cluster, name)
    return "" if told is None else role.why_foreign(told)


def _told(cluster: ClusterServers, name: str) -> Role | None:
    server = cluster.servers[name]
    return (
        read_role(MySqlState(server, cluster.meta)) if has_database(server, cluster.meta) else None
    )


def _fence(cluster: ClusterServers, role: Role) -> bool:
    try:
        if foreign := _why_foreign(cluster, role.master, role):
            raise StorageUnavailable(f"another server has its address: {foreign}")
        make_read_only(cluster.server(role.master))
    except CellfeedError as error:
        _log.warning(
            "cluster %s: the old master %s could not be fenced: %s",
            cluster.name,
            role.master,
            error,
        )
        return False
    return True


def _chosen(cluster: ClusterServers, positions: dict[str, Gtid], to: str | None) -> str:
    if not positions:
        raise StorageUnavailable(
            f"cluster {cluster.name} has no minion to promote: none has heard of its present epoch"
        )
    if to and to not in positions:
        raise ProtectData(
            f"{to} has not heard of the present epoch of cluster {cluster.name}, so it lacks what"
            " was written in it"
        )
    most = max(positions.values(), key=lambda gtid: gtid.sequence)
    chosen = to or next(name for name in positions if positions[name].sequence == most.sequence)
    if positions[chosen].sequence < most.sequence:
        ahead = ", ".join(
            f"{name} is at {gtid.text}"
            for name, gtid in positions.items()
            if gtid.sequence > positions[chosen].sequence
        )
        raise ProtectData(
            f"{chosen} is at {positions[chosen].text}, but {ahead}: promoting it would lose cells"
        )
    return chosen


@marked("role.raise")
def raise_epoch(cluster: ClusterServers, role: Role) -> None:
    """One transaction on the new master: the epoch of every shard, where it begins, and the
    role."""
    if role.epoch > _EPOCH_MAX:
        raise ProtectData(f"leader epoch {role.epoch} does not fit Kafka's 32 bits")
    server = cluster.server(role.master)
    stop_following(server)
    with server.connection() as connection:
        [(last,)] = query(connection, f"SELECT revision FROM {cluster.meta}.state_revision")
        revision = revision_of_next_history(int(last))
        run_script(
            connection,
            [
                "BEGIN",
                f"UPDATE {cluster.meta}.shard_counter SET leader_epoch = {role.epoch}",
                (
                    f"INSERT INTO {cluster.meta}.leader_epoch (shard, leader_epoch, first_added_id)"
                    f" SELECT shard, {role.epoch} + epoch_base, next_added_id FROM"
                    f" {cluster.meta}.shard_counter"
                ),
                f"UPDATE {cluster.meta}.state_revision SET revision = {revision}",
                (
                    f"REPLACE INTO {cluster.meta}.state_entry (entry_key, value, version) VALUES"
                    f" ('{ROLE_KEY}', X'{msgspec.json.encode(role).hex()}', {revision})"
                ),
                "COMMIT",
            ],
        )


def _open(cluster: ClusterServers, role: Role) -> None:
    master = cluster.server(role.master)
    set_semi_sync(master, master=True, wanted=role.semi_sync)
    for name in role.minions:
        set_semi_sync(cluster.server(name), master=False, wanted=role.semi_sync)
        follow(cluster.server(name), master)
    failpoint("promote.after_repoint")
    open_for_writes(master)
    failpoint("promote.after_open")
    _log.info(
        "cluster %s: %s is master in epoch %d, from %s on",
        cluster.name,
        role.master,
        role.epoch,
        position(master).text,
    )
