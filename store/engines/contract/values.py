"""The values that pass between an engine and its callers
(:mod:`cellfeed.store.engines.contract.engine`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from cellfeed.store.cells.cell import StoredCell


class Replica(StrEnum):
    """Where a read goes first. On storage without minions both are the same."""

    MASTER = "master"
    MINION = "minion"


class Head(NamedTuple):
    """The ends of one shard's log, as added_ids. Readers see ``log_start <= id < watermark``. No id
    at or above ``next_added_id`` has been given out; while the master is away and nobody can say,
    it is ``ADDED_ID_MAX``. ``erasures`` is another number when bodies of the shard were erased
    since, on any node that can be read: drop cached bodies then."""

    log_start: int
    watermark: int
    next_added_id: int
    leader_epoch: int
    last_created_at_us: int
    erasures: int = 0


class HeadChanges(NamedTuple):
    """The answer of :meth:`cellfeed.store.engines.contract.engine.Engine.heads_since`. ``heads``:
    the heads of the shards that changed. ``mark``: for the next call; only the engine that gave it
    can read it."""

    heads: dict[int, Head]
    mark: object


def changed_since(before: Mapping[int, Head], heads: Mapping[int, Head]) -> dict[int, Head]:
    """Of ``heads`` those that are others than ``before``."""
    return {shard: head for shard, head in heads.items() if before.get(shard) != head}


class ErasedStep(NamedTuple):
    """The result of one step of an erasure. ``added_id``: of the cell that marks the erasure.
    ``cells``: bodies taken away. ``done``: none is left. ``kept``: with the last step, unread
    copies that may still have bodies of the row, each with the command that drops it."""

    shard: int
    added_id: int
    cells: int
    done: bool
    kept: tuple[str, ...] = ()


class NamedBodies(NamedTuple):
    """Cells whose stored bodies begin in a certain way. ``next_location``: behind the last cell
    that was looked at; None where there was none."""

    cells: list[StoredCell]
    next_location: int | None


class LocatedCell(NamedTuple):
    """A cell found by key, and the shard whose log it is in. ``stale``: it is not the master's word
    but a minion's; a later one may be missing."""

    shard: int
    cell: StoredCell
    stale: bool = False


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One entry of the state table. ``version`` is the table's revision at its last write, never
    used twice: an entry that was deleted and made again differs."""

    key: str
    value: bytes
    version: int


class WriteTerms(NamedTuple):
    """The conditions of a write to a master: the leader epoch of the role that its process
    believes, whether that role is semi-synchronous, and the history that it belongs to (empty: one
    that was made before histories had an identity). The master compares them with its own role."""

    leader_epoch: int
    semi_sync: bool = False
    history_id: str = ""


class LogRange(NamedTuple):
    """At most ``limit`` cells of a shard's log from added_id ``location`` on."""

    shard: int
    location: int
    limit: int


class Look(NamedTuple):
    """The state of one node of a cluster, as its own single answer. ``entry``: the value of the
    state entry asked for. ``token``: for the next look. ``heads``: the counters, or None when none
    has changed since the look whose token was given. ``confirmed``: its commits wait for a minion,
    and one has all of them. ``changed``: the shards whose counters differ from those of the look
    whose token was given, gone ones with them; None when the node cannot say."""

    entry: bytes | None
    token: object
    heads: Mapping[int, Head] | None
    confirmed: bool = True
    changed: Collection[int] | None = None
