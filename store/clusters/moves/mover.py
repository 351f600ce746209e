"""Moves one shard, resumes the move of a killed mover, takes it back, drops kept copies. The steps
and their argument are in :mod:`cellfeed.store.clusters.moves`.

Each call reads from the servers where the shard is, and resumes there. When a master dies on the
way, the call looks for the new one and does so again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, TypeVar

from cellfeed.store.clusters.model.shard_map import merged, read_map
from cellfeed.store.clusters.model.shard_notes import Clusters, notes_of_master
from cellfeed.store.clusters.moves.copying import AGAIN_S
from cellfeed.store.clusters.moves.shard_copies import copy_on
from cellfeed.store.clusters.moves.shard_diff import refuse_loss
from cellfeed.store.clusters.moves.steps import Move, Moved, opened_side
from cellfeed.store.clusters.moves.take_back import take_back
from cellfeed.store.clusters.moves.underway import Underway, underway_of
from cellfeed.store.clusters.moves.waiting import DROP_WAIT_S, TooSlow, wait_for_minions
from cellfeed.store.clusters.operating.present_role import cluster_role, master_state
from cellfeed.store.errors import (
    InvalidRequest,
    NotFound,
    ProtectData,
    StorageUnavailable,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint

declare("move.inside_clean")

_log = logging.getLogger("cellfeed.moves")

_PAUSE_S: Final = 0.2

T = TypeVar("T")


def move_shard(
    clusters: Clusters,
    shard: int,
    to: str,
    complete_dictionaries: Callable[[], None],
    on_cells: Callable[[int], None] = lambda _: None,
    again_s: float = AGAIN_S,
) -> Moved:
    """Moves a shard, or resumes a move of it to that cluster. ``complete_dictionaries`` brings
    every dictionary to every cluster. ``on_cells`` gets the numbers of cells copied.

    Raises NotFound, InvalidRequest (it is under way to another cluster), StorageUnavailable when it
    has to be resumed.
    """
    if to not in clusters:
        raise NotFound(f"the configuration has no cluster {to!r}; it has {', '.join(clusters)}")
    return _again(lambda: Move(clusters, shard, complete_dictionaries, on_cells).to(to), again_s)


def resume(
    clusters: Clusters,
    found: Underway,
    complete_dictionaries: Callable[[], None],
    again_s: float = AGAIN_S,
) -> Moved:
    """Resumes a move that was left."""
    return move_shard(clusters, found.shard, found.target, complete_dictionaries, again_s=again_s)


def roll_back(clusters: Clusters, shard: int, again_s: float = AGAIN_S) -> Underway:
    """Takes a move back that has not been switched yet: the source serves the shard again, the copy
    is dropped. Raises NotFound when there is none, InvalidRequest when it was switched,
    StorageUnavailable when it has to be tried again."""

    def once() -> Underway:
        found = underway_of(clusters, shard)
        if found.stage in ("switched", "kept"):
            raise InvalidRequest(
                f"shard {shard} is on {found.target} already; to have it back, move it: cellfeed"
                f" shard move --shard {shard} --to {found.source}"
            )
        if found.stage == "fenced" and found.target not in clusters:
            raise InvalidRequest(
                f"the configuration does not name cluster {found.target}, which alone knows whether"
                f" shard {shard} was switched to it: name it"
            )
        if found.stage == "fenced" and (elsewhere := _unknown_owner(clusters, shard)) is not None:
            raise InvalidRequest(
                f"the shard map says that shard {shard} is on cluster {elsewhere}, which the"
                " configuration does not name: name it"
            )
        with ExitStack() as opened:
            source = opened.enter_context(opened_side(clusters[found.source], shard))
            target = (
                opened.enter_context(opened_side(clusters[found.target], shard))
                if found.target in clusters
                else None
            )
            take_back(source, target, found.target)
        return found

    return _again(once, again_s)


def _unknown_owner(clusters: Clusters, shard: int) -> str | None:
    """The cluster that the newest shard map names for the shard, when it is not one of these: an
    apparent fence may be left from moves before."""
    maps = [read_map(master_state(each)) for each in clusters.values()]
    name = merged([each for each in maps if each is not None]).by_shard()[shard]
    return None if name in clusters else name


def clean(clusters: Clusters, shard: int, complete_dictionaries: Callable[[], None]) -> str:
    """Drops the tables that the source keeps of a shard that was moved; returns the source's name.
    Raises NotFound when nothing is kept. Raises ProtectData when not every node of the target says
    that it serves the shard, or a cluster does not know the new map. Raises it as well when the
    source has a cell in good order that a node of the target lacks or has otherwise."""
    notes = {
        each: notes_of_master(cluster, cluster_role(cluster)[0])
        for each, cluster in clusters.items()
    }
    if not any(shard in served for served, *_ in notes.values()):
        raise ProtectData(
            f"no cluster serves shard {shard}: `cellfeed shard moves` says where its move is"
        )
    noted = [
        (each, each_notes.leaving[shard])
        for each, each_notes in notes.items()
        if shard in each_notes.leaving
    ]
    if not noted:
        raise NotFound(f"no cluster keeps anything of shard {shard}")
    name, left = noted[0]
    for owner in clusters.values():
        known = read_map(master_state(owner))
        if known is None or known.by_shard()[shard] == name:
            raise ProtectData(
                f"cluster {owner.name} does not know yet that shard {shard} has left {name}:"
                f" cellfeed shard resume --shard {shard}"
            )
    target = clusters[next(each for each, (served, *_) in notes.items() if shard in served)]
    complete_dictionaries()
    with opened_side(target, shard) as side:
        members = side.on_members()
        lacking = [
            node
            for node, each in members.items()
            if not each.serves or each.serves[1] < left.next_added_id
        ]
        if lacking:
            raise ProtectData(
                f"node {lacking[0]} of cluster {target.name} does not have all of shard {shard}"
                " yet; clean later"
            )
        with opened_side(clusters[name], shard) as source:

            def alive(_: int) -> None:
                """Both locks are used while tables are compared: nobody takes this process for
                dead."""
                side.notes()
                source.notes()

            served = [
                copy_on(target, node, shard, each, is_master=node == side.role.master)
                for node, each in members.items()
            ]
            if (
                kept := copy_on(
                    clusters[name], source.role.master, shard, source.notes(), is_master=True
                )
            ) is not None and kept.kind == "kept":
                refuse_loss(shard, [each for each in served if each is not None], kept, alive)
            failpoint("move.inside_clean")
            source.drop_kept()
            try:
                # While the note is there an erasure names the kept tables: a promotion must not
                # bring them back without it.
                wait_for_minions(
                    source,
                    lambda each: not each.has_tables,
                    DROP_WAIT_S,
                    f"no node of {name} but its master has dropped shard {shard} yet",
                )
            except TooSlow as error:
                raise StorageUnavailable(
                    f"{error}; clean again when they follow (`cellfeed cluster status`)"
                ) from error
            source.forget_kept()
    return name


def _again(once: Callable[[], T], again_s: float) -> T:
    """Calls until a master that died has been replaced, or is back."""
    deadline_s = time.monotonic() + again_s
    while True:
        try:
            return once()
        except (Unavailable, TooSlow) as error:
            if time.monotonic() > deadline_s:
                if isinstance(error, Unavailable):
                    raise
                raise StorageUnavailable(
                    f"{error}; `cellfeed shard moves` says where the move is, `cellfeed shard"
                    " resume` continues it"
                ) from error
            _log.info("a move is tried again: %s", error)
            time.sleep(_PAUSE_S)
