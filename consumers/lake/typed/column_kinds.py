"""The tables of one column of a log: its typed rows, the newest version of each row, and the cells
that fit no schema."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from cellfeed.consumers.lake.contract import TableKind
from cellfeed.consumers.lake.typed.uuid_arrays import BYTES

COLUMN: Final = "cellfeed.column"
"""Property of a table: the column that it is of."""

LATEST: Final = "_latest"
PARKED: Final = "_parked"

_KEYS: Final = [
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("added_id", pa.int64(), nullable=False),
    pa.field("row_key", BYTES, nullable=False),
    pa.field("ref_key", pa.int64(), nullable=False),
    pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
]
_OF_TYPED: Final = [*_KEYS, pa.field("schema_version", pa.int32(), nullable=False)]
_OF_PARKED: Final = pa.schema(
    [
        *_KEYS,
        pa.field("schema_versions", pa.int32(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
    ]
)
_ORDER: Final = ("row_key", "ref_key", "added_id")
_PLAIN: Final = re.compile(r"[A-Z][A-Z0-9_]{0,59}|[a-z][a-z0-9_]{0,59}")
_TAKEN: Final = ("cells", "latest")


def table_name(column: str) -> str:
    """In lower case, as every engine can write it. A name that is not all in one case, or of other
    characters, gets a part of its hash: so no two columns have one table.

    ``BASE`` and ``base`` would have one; the second one is refused by :data:`COLUMN`.
    """
    name = column.lower()
    if _PLAIN.fullmatch(column) and name not in _TAKEN and not name.endswith((LATEST, PARKED)):
        return name
    plain = re.sub(r"[^a-z0-9]+", "_", name).strip("_")[:40]
    return f"c_{plain}_{hashlib.sha256(column.encode()).hexdigest()[:8]}"


def typed_kind(column: str, body: Sequence[pa.Field]) -> TableKind:
    return TableKind(
        table_name(column),
        pa.schema([*_OF_TYPED, *body]),
        _ORDER,
        properties={COLUMN: column},
    )


def latest_kind(column: str, body: Sequence[pa.Field]) -> TableKind:
    """Without days: a merge looks for a row by its key alone."""
    return TableKind(
        table_name(column) + LATEST,
        pa.schema([*_OF_TYPED, *body]),
        _ORDER,
        by_day=False,
        properties={COLUMN: column},
    )


def parked_kind(column: str) -> TableKind:
    return TableKind(
        table_name(column) + PARKED,
        _OF_PARKED,
        _ORDER,
        by_day=False,
        properties={COLUMN: column},
    )
