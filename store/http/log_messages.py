"""The messages of reads of logs, as both sides write and read them."""

from __future__ import annotations

import msgspec

from cellfeed.store.api import ShardCells
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.http.messages import CellMessage, cell_message, cell_of


class HeadMessage(msgspec.Struct):
    """The ends of a shard's log, as added_ids: readers see ``log_start <= id < watermark``.
    ``erasures``: another number when bodies were erased since."""

    log_start: int
    watermark: int
    next_added_id: int
    leader_epoch: int
    last_created_at_us: int
    erasures: int = 0


class HeadsMessage(msgspec.Struct):
    """The head of every shard; ``heads[n]`` is shard n."""

    datastore: str
    shards: int
    heads: list[HeadMessage]


class ShardLocation(msgspec.Struct, forbid_unknown_fields=True):
    """``location``: the next added_id to read, or an RFC 3339 timestamp with a time zone."""

    shard: int
    location: int | str = 0


class ScanShardsMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Pieces of many shards' logs; ``limit`` counts cells per shard."""

    locations: list[ShardLocation]
    limit: int = 1000


class ShardCellsMessage(msgspec.Struct):
    """A piece of a shard's log. Continue from ``next_location``; no cells means the end of the log
    for now."""

    shard: int
    cells: list[CellMessage]
    next_location: int
    head: HeadMessage


class ShardsCellsMessage(msgspec.Struct):
    """One piece per shard asked for, in order."""

    shards: list[ShardCellsMessage]


def shard_cells_message(piece: ShardCells) -> ShardCellsMessage:
    """A piece of a log as it goes over the wire."""
    return ShardCellsMessage(
        piece.shard,
        [cell_message(cell) for cell in piece.cells],
        piece.next_location,
        HeadMessage(*piece.head),
    )


def shard_cells_of(message: ShardCellsMessage) -> ShardCells:
    """The piece of a log of a message."""
    return ShardCells(
        message.shard,
        [cell_of(cell) for cell in message.cells],
        message.next_location,
        head_of(message.head),
    )


def head_of(message: HeadMessage) -> Head:
    """The head of a message."""
    return Head(
        message.log_start,
        message.watermark,
        message.next_added_id,
        message.leader_epoch,
        message.last_created_at_us,
        message.erasures,
    )
