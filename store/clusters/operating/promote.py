"""Promotion: a minion becomes master, the old master is fenced, the others follow.

Steps, and the state after a kill in each:

    1. lock          a user lock on a majority of the nodes: one promotion at a time; it ends with
                     its connections.
    2. fence         the old master, if it answers: read-only, its clients cut off. Then the minions
                     reach its position, in either mode of replication. Killed here: no writes until
                     a promotion is run again.
    3. collect       the minions stop receiving, apply all that they have, and follow nobody from
                     then on, also after a restart. The one with most is chosen among those that
                     have heard of the present epoch. Then a majority of nodes remembers the epoch
                     that is to be raised (:mod:`cellfeed.store.clusters.model.promises`). Killed
                     here: the next promotion takes a higher epoch; no minion follows until then.
    4. raise         on the chosen one, in one transaction: the shards' leader epochs, where each
                     begins, and the role. From its commit on, processes that hear of the role send
                     writes there; they are refused (definitely not written) until step 6.
    5. re-point      the other minions follow the new master.
    6. open          the new master takes writes, not before its role could be read for
                     ``TAKEOVER_S``: a reader that reaches it never takes an old master's word that
                     something is not there (:mod:`cellfeed.store.clusters.serving.succession`).

Run again after a kill it does the remaining steps: a role whose master is still read-only is
opened, minions are pointed to it. A promotion that is refused before step 4 gives the old master
its writes back, and the minions receive again.

**Losses.** A master that answers loses nothing: it is fenced, and its minions have its position
before one is chosen. One that does not answer loses no acknowledged cell under semi-synchronous
replication: each is on a minion. Without that replication, the old master's last commits may be on
no minion. They were never shown (the watermark counts minions), and return under new ids: from the
buffer of another cluster, or with the old master (``rejoin``). A minion that is left out may hold
cells that were shown; so every minion must answer, unless the operator names it as given up. A
master that answers, and that no minion catches up with, can be given up in the same way. An old
master that has not rejoined is no minion: it may hold more than any of them, but of another
history, and takes no part.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from cellfeed.store.clusters.model.promises import promise, promised_epoch
from cellfeed.store.clusters.model.roles import Role, newest
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.candidates import check_left_out, choose, find_candidates
from cellfeed.store.clusters.operating.new_master import open_master, raise_epoch
from cellfeed.store.clusters.operating.old_master import fence, hand_over, take_back
from cellfeed.store.clusters.operating.present_role import (
    QUICK_TIMEOUT_S,
    locked_role,
    minority,
    role_on,
    takes_writes,
)
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.clusters.operating.unfinished import finish, is_unfinished
from cellfeed.store.engines.mysql.replication import check_mariadb, stop_following, stop_receiving
from cellfeed.store.errors import CellfeedError, ProtectData, StaleWriter, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import is_same_history

declare(
    "promote.after_fence", "promote.after_collect", "promote.after_promise", "promote.after_raise"
)

_log = logging.getLogger("cellfeed.failover")


def promote(
    cluster: ClusterServers,
    to: str | None = None,
    give_up: Collection[str] = (),
    gone_in: int | None = None,
) -> Promotion:
    """Makes ``to`` (the most advanced minion, when not given) master. ``give_up``: nodes to
    continue without, minions or the master, and without the cells that only they hold. ``gone_in``:
    the epoch whose master was found to be gone; only if that is still the epoch, and its master
    still takes no writes, is anything done. See the module.

    Raises StaleWriter when that is no longer so. Raises ProtectData when cells that were shown
    could be lost by it, StorageUnavailable when a node that is needed does not answer.
    """
    cluster.refuse_managed("promote")
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
    with locked_role(cluster, quick) as role:
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
            and is_unfinished(quick, role)
            and to in (None, role.master)
            and role.master not in give_up
        ):
            return finish(cluster, role, give_up)
        return _promote(cluster, quick, role, to, give_up, silent)


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
    candidates = find_candidates(cluster, role, give_up)
    if to and to not in candidates:
        raise ProtectData(
            f"{to} does not follow {role.master}, and has not heard of its epoch {role.epoch}: its"
            " cells may be of another history"
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
    done.fenced = fence(quick, role)
    failpoint("promote.after_fence")
    try:
        if role.master not in give_up:
            if done.fenced:
                hand_over(cluster, role, candidates, to)
            elif was_open and not role.semi_sync:
                raise StorageUnavailable(
                    f"cluster {cluster.name}: nobody was promoted: {role.master} answers but could"
                    " not be fenced, so it may acknowledge cells that no minion has; try again, or"
                    f" continue without its cells: cellfeed cluster promote {cluster.name}"
                    f" --give-up {role.master}"
                )
        positions = {name: stop_receiving(cluster.servers[name]) for name in candidates}
        for name in candidates:
            # a server that restarts would receive again from the old master, behind its counted
            # position
            stop_following(cluster.servers[name])
        failpoint("promote.after_collect")
        heard = {
            name: found
            for name in candidates
            if (found := role_on(cluster, name)) and found.epoch == role.epoch
        }
        role = newest([role, *heard.values()]) or role
        check_left_out(cluster, role, candidates, heard, give_up)
        done.master = choose(cluster, {name: positions[name] for name in heard}, to)
        _refuse_newer(quick, role, silent)
        promise(quick, role, done.epoch, silent)
        failpoint("promote.after_promise")
    except CellfeedError:
        take_back(cluster, role, candidates, reopen=was_open)
        raise
    done.position = positions[done.master].text
    done.minions = [name for name in candidates if name != done.master]
    raised = role.promoted(done.master, done.minions, done.position, done.epoch)
    raise_epoch(cluster, raised)
    failpoint("promote.after_raise")
    open_master(cluster, raised)
    return done


def next_epoch(cluster: ClusterServers, role: Role, silent: Collection[str]) -> int:
    """Above every epoch that an answering node reports, or remembers."""
    return max(role.epoch, promised_epoch(cluster, role.history_id, silent)) + 1


def _refuse_newer(cluster: ClusterServers, role: Role, silent: Collection[str]) -> None:
    """Raises StorageUnavailable when a node has returned that reports a higher epoch: the
    candidates' positions were compared without it."""
    for name in set(cluster.servers) - set(silent):
        found = role_on(cluster, name)
        if (
            found is not None
            and found.epoch > role.epoch
            and is_same_history(found.history_id, role.history_id)
        ):
            raise StorageUnavailable(
                f"cluster {cluster.name}: nobody was promoted: {name} has come back and"
                " reports epoch"
                f" {found.epoch}; promote again"
            )
