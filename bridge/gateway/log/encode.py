"""Cells of the log as record batches: each small enough to be sent alone, and together they cover
all offsets of their range, also where the topic's view shows no cell.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from cellfeed.bridge.events.record_batch import encode_record_batch
from cellfeed.bridge.gateway.limits import BLOCK_BYTES_MAX
from cellfeed.bridge.gateway.log.batch import Batch, Block, block_bytes
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.cells.body_codec import decoded_bytes_bound
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LogRange

_BATCH_BYTES: Final = 768 << 10
"""Body bytes after which a batch ends: below the 1 MiB that consumers fetch from a partition by
default; one larger body goes alone."""


class Piece(NamedTuple):
    topic: Topic
    shard: int
    start: int
    end: int
    leader_epoch: int


def encode_pieces(engine: Engine, pieces: Sequence[Piece]) -> list[Block]:
    """As :func:`encode_range` for each, read together."""
    found = engine.scan_many(
        [LogRange(piece.shard, piece.start, piece.end - piece.start) for piece in pieces]
    )
    blocks: list[Block] = []
    left = BLOCK_BYTES_MAX
    for piece, first in zip(pieces, found, strict=True):
        blocks.append(encode_range(engine, *piece, first, bytes_max=max(left, 1)))
        left -= block_bytes(blocks[-1])
    return blocks


def encode_range(
    engine: Engine,
    topic: Topic,
    shard: int,
    start: int,
    end: int,
    leader_epoch: int,
    first: Sequence[StoredCell] | None = None,
    left_out: Collection[int] = (),
    bytes_max: int = BLOCK_BYTES_MAX,
) -> Block:
    """The batches of one range of offsets, in order and without a gap between them; an offset
    without a record is a hole in its batch. They end before the range does with the batch that
    brings them to ``bytes_max``.

    ``first``: cells from its start on that were read already. ``left_out``: added_ids that are not
    shown, even where the view has them.
    """
    column = topic.view.column
    batches = _OpenBatch(topic, shard, start, leader_epoch)
    position = start
    while position < end:
        found = _below(
            end, engine.scan(shard, position, end - position) if first is None else first
        )
        first = None
        piece: list[StoredCell] = []
        piece_bytes = 0
        for cell in found:
            if (
                column is None or cell.column_name == column or cell.column_name == ERASED_COLUMN
            ) and cell.added_id not in left_out:
                size = decoded_bytes_bound(cell.body)
                if piece and piece_bytes + size > _BATCH_BYTES:
                    batches.add(piece)
                    piece, piece_bytes = [], 0
                    if batches.record_bytes >= bytes_max:
                        batches.close(cell.added_id)
                        return batches.block
                piece.append(cell)
                piece_bytes += size
        batches.add(piece)
        position = found[-1].added_id + 1 if found else end
    batches.close(end)
    return batches.block


class _OpenBatch:
    """Batches of the cells of a range that the topic's view shows. Bodies are decoded in pieces of
    a batch's size, so that a few more of them than a batch has are in memory at once."""

    def __init__(self, topic: Topic, shard: int, start: int, leader_epoch: int) -> None:
        self._topic = topic
        self._shard = shard
        self._start = start
        self._leader_epoch = leader_epoch
        self._cells: list[StoredCell] = []
        self._bodies: list[bytes] = []
        self._bytes = 0
        self._closed_bytes = 0
        self.block: Block = []

    @property
    def record_bytes(self) -> int:
        """Of the records, those of the open batch before they are compressed."""
        return self._closed_bytes + self._bytes

    def add(self, cells: Sequence[StoredCell]) -> None:
        """Adds the next cells of the range; a cell that the view leaves out has no record."""
        shown, bodies = self._topic.reader.read(cells)
        size = sum(map(len, bodies))
        if self._cells and self._bytes + size > _BATCH_BYTES:
            self.close(shown[0].added_id)
        self._cells += shown
        self._bodies += bodies
        self._bytes += size

    def close(self, end: int) -> None:
        """Ends the batch: it covers the offsets up to, not including, ``end``."""
        data = encode_record_batch(
            self._topic.event_format,
            self._shard,
            self._cells,
            self._bodies,
            base_offset=self._start,
            next_offset=end,
            leader_epoch=self._leader_epoch,
            compression=self._topic.compression,
        )
        self.block.append(Batch(self._start, end, data))
        self._closed_bytes += len(data)
        self._cells, self._bodies, self._bytes, self._start = [], [], 0, end


def _below(end: int, found: Sequence[StoredCell]) -> Sequence[StoredCell]:
    """Drops cells beyond the range: where ids are missing, a scan of as many cells as ids reaches
    there."""
    return (
        [cell for cell in found if cell.added_id < end]
        if found and found[-1].added_id >= end
        else found
    )
