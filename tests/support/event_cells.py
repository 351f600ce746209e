"""Strategies and stand-ins for the tests of events: cells of one shard's log, with values on every
border of the encodings."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st

from cellfeed.bridge.events.envelope import AvroFormat, EventFormat, JsonFormat
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from tests.support.json_values import BODIES

FORMATS: list[EventFormat] = [AvroFormat(100_001), JsonFormat()]

BORDERS = [
    border + off
    for border in (1 << 6, 1 << 13, 1 << 20, 1 << 25, 1 << 27, 1 << 31, 1 << 34, 1 << 46)
    for off in (-1, 0, 1)
]
"""Where an encoding gets a byte longer, or is put together in another way."""

ADDED_IDS = st.integers(0, (1 << 47) - 1) | st.sampled_from(BORDERS) | st.integers(0, 300)
REF_KEYS = (
    st.integers(-(1 << 63), (1 << 63) - 1)
    | st.sampled_from(BORDERS)
    | st.sampled_from(BORDERS).map(lambda border: -border)
)
SHARDS = st.integers(0, 65_535)
COLUMNS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
MOMENTS_US = st.integers(0, 4_000_000_000_000_000) | st.sampled_from(BORDERS)


@st.composite
def cells(draw: st.DrawFn, first_id: int = 0, span: int = 5_000) -> list[StoredCell]:
    """Up to twelve cells with ids from ``first_id`` on, within ``span``, with holes; some share
    their moment."""
    ids = sorted(draw(st.sets(st.integers(first_id, first_id + span - 1), max_size=12)))
    moments = sorted(draw(st.lists(MOMENTS_US, min_size=len(ids), max_size=len(ids))))
    if draw(st.booleans()):
        moments = moments[:1] * len(moments)
    return [
        StoredCell(
            added_id,
            draw(st.binary(min_size=16, max_size=16)),
            draw(COLUMNS),
            draw(REF_KEYS),
            moment_us,
            encode_body(canonical_json.canonical(draw(BODIES))),
        )
        for added_id, moment_us in zip(ids, moments, strict=True)
    ]


def plain_cells(count: int, first_id: int = 0) -> list[StoredCell]:
    """``count`` cells of column BASE, one after another."""
    return [
        StoredCell(
            n,
            uuid.UUID(int=n).bytes,
            "BASE",
            n,
            1_700_000_000_000_000 + n,
            encode_body(b'{"n":%d}' % n),
        )
        for n in range(first_id, first_id + count)
    ]
