"""Trims and erasures over clusters: cells that other clusters buffer or keep of the shard count
too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.model.shard_map import ranges_text
from cellfeed.store.clusters.model.shard_notes import Clusters
from cellfeed.store.clusters.moves.heal import take_back_left_copy
from cellfeed.store.clusters.serving.buffer_drain import BufferDrain
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node_engine import READ_TIMEOUT_S
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.log_start import check_trim
from cellfeed.store.engines.contract.values import (
    ErasedStep,
)
from cellfeed.store.errors import CellfeedError, ShardMoving, StorageUnavailable, Unavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import ERASE_STEP_CELLS, TRIM_STEP_CELLS

declare("cluster.erase.before_buffers")

_log = logging.getLogger("cellfeed.moves")

UNBUFFERED_S: Final = 60
"""A cell is buffered by one master's clock and written by another's, in seconds by which they may
differ: a trim leaves the cells of so long before the oldest that is still buffered."""


class ClusteredRemovals:
    """See the module. ``servers``: the clusters as their operator has them, for an erasure that
    finds a copy left by a dead mover. ``locate``: the engine's, of a shard and a moment."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        placement: Placement,
        shards: int,
        drain: BufferDrain,
        servers: Clusters,
        locate: Callable[[int, int], int],
    ) -> None:
        self._clusters = clusters
        self._placement, self._shards = placement, shards
        self._drain, self._servers, self._locate = drain, servers, locate

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        """As the contract's, and at most up to the cells of ``UNBUFFERED_S`` before the oldest that
        a cluster still buffers, for whichever one: a shard may have moved since. The drain puts
        buffered cells again, and must find them stored rather than store them a second time."""
        limits: dict[int, int] = {}
        for shard in shards:
            cluster = self._placement.cluster_of(shard)
            if shard not in limits:
                limits.update(cluster.trim_limits())
        oldest_us = self._oldest_buffered_us(
            ", ".join(sorted({self._placement.name_of(shard) for shard in shards}))
        )
        if oldest_us is None:
            return {shard: limits[shard] for shard in shards}
        return {
            shard: min(limits[shard], self._locate(shard, oldest_us - UNBUFFERED_S * 1_000_000))
            for shard in shards
        }

    def _oldest_buffered_us(self, owners: str) -> int | None:
        """When the oldest cell was buffered that waits on a cluster, microseconds; None when none
        does. Raises StorageUnavailable."""
        oldest = []
        for name, counts in self._drain.counts().items():
            if isinstance(counts, str):
                raise StorageUnavailable(
                    f"nothing trimmed: cluster {name} cannot report its buffer for {owners}:"
                    f" {counts}"
                )
            oldest += [each.oldest_at_us for each in counts if each.cells]
        return min(oldest, default=None)

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        limit = self.trim_limits([shard])[shard]
        check_trim(shard, below, limit)
        return self._placement.retry_while_moving(
            lambda: self._placement.cluster_of(shard).trim(shard, below, cells_max)
        )

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        """As the contract's. With the last step the copies go that other clusters buffer of the
        row; raises OutcomeUnknown while one of them does not answer: then it is repeated. From the
        first step on no copy is written to the log any more, the drain drops it
        (:mod:`cellfeed.store.clusters.serving.buffer`). While the shard is copied for a move
        nothing is erased (ShardMoving), unless the mover is dead: then the copy is dropped first
        (:mod:`cellfeed.store.clusters.moves.heal`)."""
        shard = shard_of(row_key, self._shards)

        def erase() -> ErasedStep:
            return self._placement.cluster_of(shard).erase(row_key, cells_max)

        try:
            step = self._placement.retry_while_moving(erase)
        except ShardMoving as refused:
            self._take_back_copy(shard, refused)
            step = self._placement.retry_while_moving(erase)
        failpoint("cluster.erase.before_buffers")
        if not step.done:
            return step
        self._drain.forget_row(row_key)
        return step._replace(kept=tuple(self._copies_elsewhere()))

    def _take_back_copy(self, shard: int, refused: ShardMoving) -> None:
        """Drops a copy of the shard that a dead mover has left. Raises the refusal of the erasure,
        and the reason, when there is none that can be dropped."""
        try:
            copied_to = take_back_left_copy(self._servers, self._placement.name_of(shard), shard)
        except CellfeedError as error:
            raise ShardMoving(f"{refused}; {error}") from error
        if copied_to is None:
            raise refused
        _log.warning(
            "shard %d: a dead mover had left a copy on cluster %s, which was dropped so that a row"
            " can be erased",
            shard,
            copied_to,
        )

    def _copies_elsewhere(self) -> list[str]:
        """The kept copies of shards that have left a cluster: as it was then, the cells of a row in
        its own shard, its entries of indexes in any."""
        copies = []
        for name, cluster in self._clusters.items():
            try:
                shards = ranges_text(
                    cluster.write(lambda engine, _: engine.kept_shards(), READ_TIMEOUT_S)
                )
            except Unavailable as error:
                copies.append(
                    f"cluster {name} does not say whether it keeps copies of shards that have left"
                    f" it: cellfeed shard moves: {error}"
                )
                continue
            if shards:
                copies.append(
                    f"cluster {name} keeps shards {shards} as they were when they left it: cellfeed"
                    f" shard clean --shard {shards}"
                )
        return copies
