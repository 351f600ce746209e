"""How far each shard of a lake table is, and this vector as text in the table's own commits."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from cellfeed.store.errors import DataDamaged


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The next added_id that a shard of the table lacks, and the Kafka offset to read from."""

    next_id: int
    next_offset: int


Positions = Mapping[int, Position]
"""By shard. A shard without rows has none."""

START: Final = Position(0, 0)

_decode: Final = msgspec.json.Decoder(dict[int, Position]).decode


def encode_positions(positions: Positions) -> str:
    """As text without spaces: compressed, since every snapshot of a table has it and a store has
    thousands of shards."""
    plain = msgspec.json.encode({str(shard): positions[shard] for shard in sorted(positions)})
    return base64.b64encode(zlib.compress(plain, 9)).decode()


def decode_positions(text: str, place: str) -> dict[int, Position]:
    """Raises DataDamaged, naming ``place``, for a text that :func:`encode_positions` never made."""
    try:
        return _decode(zlib.decompress(base64.b64decode(text, validate=True)))
    except (binascii.Error, zlib.error, msgspec.MsgspecError) as error:
        raise DataDamaged(f"{place} has positions that cannot be read: {error}") from None


def moved(before: Positions, ends: Positions) -> dict[int, Position]:
    """The vector after a commit that moved the shards of ``ends``."""
    return {**before, **ends}


def stand_at(positions: Positions, wanted: Positions) -> bool:
    """Whether every shard of ``wanted`` is exactly there."""
    return all(positions.get(shard, START) == each for shard, each in wanted.items())
