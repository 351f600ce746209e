"""Parked cells of typed topics are listed, counted, and erased with their rows."""

from __future__ import annotations

from uuid import UUID

import pytest

from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import Topics
from cellfeed.bridge.gateway.topics.typed_topics import TypedTopics
from cellfeed.bridge.typed.rejected_cells import (
    forget_row,
    left_out,
    note_rejected,
    rejected_cells,
    try_again,
)
from cellfeed.bridge.typed.typed_column import TypedColumns
from cellfeed.bridge.typed.versions import (
    register,
)
from cellfeed.store.datastore import Datastore
from tests.support.log_of_cells import log_cell
from tests.support.typed_versions import PARK, TIP, V1, put, trip


def test_a_rejected_cell_is_listed_as_parked_first_and_off_the_list_once_a_version_takes_it(
    datastore: Datastore,
) -> None:
    register(datastore.state, "BASE", V1, PARK)
    places = put(datastore, {"fare": 1}, {"fare": 2, "tip": 3}, {"fare": "4"})
    shard = places[0][0]
    topics = Topics(
        "trips",
        datastore.engine.columns,
        {"*": RecordEncoder(Export("e", "b"), "trips", 1)._format},
    )
    typed = TypedTopics(datastore.state)
    typed.follow(topics)
    topics.refresh()
    topic = topics.named("trips.BASE")
    assert topic is not None
    for _ in range(2):  # again, as another gateway does
        block = encode_range(datastore.engine, topic, shard, 0, 3, 0)
        assert [
            record.offset for batch in block for record in decode_record_batches(batch.data)
        ] == [0]
        listed = list(rejected_cells(datastore.state))
        assert [(cell.added_id, cell.ref_key, cell.reason) for cell in listed] == [
            (1, 1, "tip is a member that the schema does not have"),
            (2, 2, "fare is text, not an integer"),
        ]
    register(datastore.state, "BASE", trip(TIP), PARK)
    done = try_again(datastore.engine, TypedColumns(datastore.state))
    assert (
        [cell.added_id for cell in done.fits],
        [cell.added_id for cell in done.still_rejected],
        done.trimmed,
    ) == ([1], [2], [])
    assert [cell.added_id for cell in rejected_cells(datastore.state, "BASE")] == [2]
    typed.look()
    renewed = topics.named("trips.BASE")
    assert renewed is not None
    assert renewed.content != topic.content, "what is kept of it from before is not shown any more"
    block = encode_range(datastore.engine, renewed, shard, 0, 3, 0)
    assert [record.offset for batch in block for record in decode_record_batches(batch.data)] == [
        0,
        1,
    ]
    assert datastore.engine.trim(shard, 3) == 3
    assert len(try_again(datastore.engine, TypedColumns(datastore.state)).trimmed) == 1
    assert not list(rejected_cells(datastore.state))


def test_many_parked_cells_are_few_entries(datastore: Datastore) -> None:
    cells = [log_cell(number) for number in range(2_500)]
    note_rejected(datastore.state, "BASE", 3, [(cell, "because " * 100) for cell in cells])
    note_rejected(datastore.state, "BASE", 3, [(cell, "because") for cell in cells[990:1010]])
    assert len(datastore.state.list("unfit/")) == 3
    assert [cell.added_id for cell in rejected_cells(datastore.state)] == list(range(2_500))


def test_rejected_bodies_are_counted_by_a_bounded_read(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = datastore.state
    assert left_out(state, "BASE", 16) is None
    note_rejected(state, "BASE", 3, [(log_cell(7), "fare is text")])
    note_rejected(state, "OTHER", 1, [(log_cell(0), "of another column")])
    note_rejected(state, "BASE", 9, [(log_cell(number), "because") for number in range(1_500)])
    found = left_out(state, "BASE", 16)
    assert found is not None
    assert (found.column, found.cells, found.or_more) == ("BASE", 1_501, False)
    assert (found.first.shard, found.first.added_id, found.first.reason) == (3, 7, "fare is text")
    monkeypatch.setattr("cellfeed.bridge.typed.rejected_cells.COUNTED_ENTRIES", 1)
    bounded = left_out(state, "BASE", 16)
    assert bounded is not None
    assert (bounded.cells, bounded.or_more) == (1, True)
    note_rejected(state, "LAST", 15, [(log_cell(0), "because")])
    last = left_out(state, "LAST", 16)
    assert last is not None
    assert not last.or_more, "no shard is left to be read"


def test_the_reasons_of_an_erased_row_go_with_its_bodies(datastore: Datastore) -> None:
    erased, other = log_cell(0), log_cell(1)._replace(row_key=UUID(int=77).bytes)
    note_rejected(
        datastore.state,
        "BASE",
        3,
        [(erased, "fare is 12.5, not an integer"), (other, "fare is text, not an integer")],
    )
    forget_row(datastore.state, UUID(bytes=erased.row_key))
    assert [cell.reason for cell in rejected_cells(datastore.state)] == [
        "fare is text, not an integer"
    ]
    forget_row(datastore.state, UUID(int=77))
    assert datastore.state.list("unfit/") == []
