"""Headers that records share: each names its own cell, beside any others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.record_headers import LeaderEpochs, SharedHeaders, added_id_of
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX

CELLS = st.lists(
    st.tuples(st.sampled_from(["BASE", "STATUS", "Größe"]), st.integers(-3, 3)), max_size=30
)


@given(CELLS, st.lists(st.integers(0, 40), unique=True, max_size=3))
def test_every_record_has_the_headers_of_its_own_cell(
    drawn: list[tuple[str, int]], promotions: list[int]
) -> None:
    cells = [
        StoredCell(number + 5, bytes(16), column, ref_key, 1_790_000_000_000_000, b"")
        for number, (column, ref_key) in enumerate(drawn)
    ]
    begins = [(epoch, first) for epoch, first in enumerate(sorted({0, *promotions}), 7)]
    shared = SharedHeaders([("content-type", b"x")]).of(cells, LeaderEpochs(begins, begins[-1][0]))
    assert [dict(each) for each in shared] == [
        {
            "column_name": cell.column_name.encode(),
            "ref_key": str(cell.ref_key).encode(),
            "leader_epoch": str(
                max(epoch for epoch, first in begins if first <= cell.added_id)
            ).encode(),
            "content-type": b"x",
        }
        for cell in cells
    ]


def test_a_records_first_header_is_its_added_id() -> None:
    cells = [
        StoredCell(number, bytes(16), "BASE", 1, 1_790_000_000_000_000, encode_body(b'{"n":1}'))
        for number in (3, 4)
    ]
    records = (
        RecordEncoder(Export("trips", "broker:9092"), "trips", 1)
        .encode(0, cells, LeaderEpochs([(2, 0)], 2))
        .records
    )
    assert [added_id_of(record.headers) for record in records] == [3, 4]
    assert records[0].headers == [
        ("added_id", b"3"),
        ("column_name", b"BASE"),
        ("ref_key", b"1"),
        ("leader_epoch", b"2"),
    ]
    assert records[0].shared is records[1].shared


def test_a_header_that_no_cell_can_have_is_damage() -> None:
    assert added_id_of([("other", b"x"), ("added_id", b"%d" % ADDED_ID_MAX)]) == ADDED_ID_MAX
    assert added_id_of([("other", b"x")]) is added_id_of(None) is None
    for text in (b"%d" % (ADDED_ID_MAX + 1), b"9" * 40, b"-1", b"", b"x"):
        with pytest.raises(DataDamaged, match="no added_id"):
            added_id_of([("added_id", text)])
