"""Puts over clusters: each cluster's cells in one transaction of its own, buffered on others first
where that is asked for, and again where a shard moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.serving.buffer import BufferedWriter
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.buffer import BufferTable
from cellfeed.store.errors import CellfeedError, ShardMoving


class ClusteredPuts:
    """``buffers``: by cluster, where copies can be kept; ``copies``: on how many other clusters a
    put is buffered first."""

    def __init__(
        self, placement: Placement, shards: int, buffers: Mapping[str, BufferTable], copies: int
    ) -> None:
        self._placement, self._shards = placement, shards
        self._buffered = (
            BufferedWriter(buffers, self._write, self._shard_of, copies)
            if copies and buffers
            else None
        )

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        groups: dict[str, list[int]] = {}
        for index, cell in enumerate(cells):
            groups.setdefault(self._placement.name_of(self._shard_of(cell)), []).append(index)
        if len(groups) == 1:
            return self._put(next(iter(groups)), cells)
        results: dict[int, PutResult] = {}
        for name, indexes in groups.items():
            members = [cells[index] for index in indexes]
            try:
                written = self._put(name, members)
            except CellfeedError as error:
                written = [self._failed(cell, error) for cell in members]
            results.update(zip(indexes, written, strict=True))
        return [results[index] for index in range(len(cells))]

    def _put(self, cluster: str, cells: Sequence[NewCell]) -> list[PutResult]:
        return self._buffered.put(cluster, cells) if self._buffered else self._write(cells)

    def _write(self, cells: Sequence[NewCell]) -> list[PutResult]:
        """Puts cells of one cluster, and waits for those whose shard moves meanwhile. Raises when
        none was written, and one error says why."""
        owners = list({self._placement.cluster_of(self._shard_of(cell)): None for cell in cells})
        if len(owners) == 1:
            with suppress(ShardMoving):
                return owners[0].put(cells)
        return self._write_apart(cells)

    def _write_apart(self, cells: Sequence[NewCell]) -> list[PutResult]:
        """As :meth:`_write`, shard by shard: those that do not move go first."""
        waiting: dict[int, list[int]] = {}
        for index, cell in enumerate(cells):
            waiting.setdefault(self._shard_of(cell), []).append(index)
        results: dict[int, PutResult] = {}
        errors: list[CellfeedError] = []

        def put_each() -> None:
            moving: ShardMoving | None = None
            for shard, indexes in list(waiting.items()):
                members = [cells[index] for index in indexes]
                try:
                    written = self._placement.cluster_of(shard).put(members)
                except ShardMoving as error:
                    moving = error
                    continue
                except CellfeedError as error:
                    errors.append(error)
                    written = [self._failed(cell, error) for cell in members]
                results.update(zip(indexes, written, strict=True))
                del waiting[shard]
            if moving is not None:
                raise moving

        try:
            self._placement.retry_while_moving(put_each)
        except ShardMoving as error:
            errors.append(error)
            results.update(
                {
                    index: self._failed(cells[index], error)
                    for indexes in waiting.values()
                    for index in indexes
                }
            )
        if (
            errors
            and not any(result.error is None for result in results.values())
            and len({str(error) for error in errors}) == 1
        ):
            raise errors[0]
        return [results[index] for index in range(len(cells))]

    def _failed(self, cell: NewCell, error: CellfeedError) -> PutResult:
        return PutResult.of_error(error, self._shard_of(cell))

    def _shard_of(self, cell: NewCell) -> int:
        return shard_of(cell.row_key, self._shards)
