"""Compares the copies of a shard: source and target of a move, a master and its minions.

Digests of ranges of ids are made by the servers (:mod:`cellfeed.store.engines.mysql.digest`). Where
two differ the range is halved, down to a few rows, which are read on both sides and compared value
by value. So equal nodes cost one pass of each server over the table, and a difference is named by
its id.

These are no differences: cells below the start of either log; ids behind the end of a minion's or a
copy's; a body that the serving side has erased since, as its log says; and the same body in another
encoding. Nodes at work change meanwhile, each at its own moment. So a difference counts when it is
still there after ``SETTLE_S``.

``loses``: the compared copy has a cell in good order that the reference lacks, or has otherwise.
Dropping that copy drops the only good one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from cellfeed.store.clusters.model.shard_notes import Clusters
from cellfeed.store.clusters.moves.copy_pair import CopyPair, Difference
from cellfeed.store.clusters.moves.shard_copies import ShardCopy, copies_of
from cellfeed.store.errors import NotFound, ProtectData

STEP_CELLS: Final = 20_000
"""Ids in one digest: a tenth of a second of a server."""


NAMED_MAX: Final = 10
"""Differences of one copy that are named; the operator needs the first."""


@dataclass
class ShardDiff:
    """The result of :func:`diff_shard`. ``compared``: the copies, and how many ids of each;
    ``silent``: nodes that could not be compared, and why."""

    shard: int
    reference: str
    compared: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether every node was compared, and none differs."""
        return not self.differences and not self.silent


def diff_shard(
    clusters: Clusters, shard: int, on_ids: Callable[[int], None] = lambda _: None
) -> ShardDiff:
    """Compares every node's copy with the master that serves the shard, or is about to give it
    away. ``on_ids`` gets the numbers of ids compared. Raises NotFound when no node has it,
    StorageUnavailable when the shard moves meanwhile, or no node says who is master."""
    copies, silent = copies_of(clusters, shard)
    masters = sorted(
        (each for each in copies if each.is_master),
        key=lambda each: ("serves", "kept", "arriving").index(each.kind),
    )
    if not masters:
        raise NotFound(
            f"no master has cells of shard {shard}:"
            f" {'; '.join(silent.values()) or 'cellfeed shard moves says where its move is'}"
        )
    reference = masters[0]
    found = ShardDiff(shard, str(reference), silent=silent)
    for copy in copies:
        if copy is not reference:
            found.compared[str(copy)] = len(common_ids(reference, copy))
            found.differences += islice(differences(shard, reference, copy, on_ids), NAMED_MAX)
    return found


def refuse_loss(
    shard: int,
    served: Sequence[ShardCopy],
    kept: ShardCopy,
    on_ids: Callable[[int], None] = lambda _: None,
) -> None:
    """Raises ProtectData when the kept copy has a cell in good order that one of the nodes that
    serve the shard lacks, or has otherwise."""
    for reference in served:
        for each in differences(shard, reference, kept, on_ids):
            if each.loses:
                raise ProtectData(
                    f"nothing dropped: {kept} has the good copy of a cell. {each}. `cellfeed shard"
                    f" diff --shard {shard}` names the differences; mend the nodes that serve the"
                    " shard first (`cellfeed check --repair`)"
                )


def common_ids(reference: ShardCopy, copy: ShardCopy) -> range:
    """The ids that both say they have."""
    start = max(reference.ids.start, copy.ids.start)
    return range(start, max(start, min(reference.ids.stop, copy.ids.stop)))


def differences(
    shard: int,
    reference: ShardCopy,
    copy: ShardCopy,
    on_ids: Callable[[int], None] = lambda _: None,
) -> Iterator[Difference]:
    """Every difference, by added_id. Raises StorageUnavailable, ShardMoving, DataDamaged (a table
    that a server cannot read)."""
    ids = common_ids(reference, copy)
    if copy.kind == "kept" and copy.ids.stop > max(ids.stop, reference.ids.start):
        what = f"the log ends at {reference.ids.stop} there, and at {copy.ids.stop} here"
        yield Difference(shard, reference.ids.stop, str(reference), str(copy), what, loses=True)
    pair = CopyPair(shard, reference, copy)
    with ThreadPoolExecutor(1, thread_name_prefix="shard-diff") as other:
        for start in range(ids.start, ids.stop, STEP_CELLS):
            step = range(start, min(start + STEP_CELLS, ids.stop))
            yield from pair.in_range(other, step)
            on_ids(len(step))
