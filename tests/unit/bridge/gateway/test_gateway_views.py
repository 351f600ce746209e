"""Views of a log as topics: the exporter's records at the log's offsets, and batches that cover the
cells that the view leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import cast, get_args

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.cloud_events import CONTENT_TYPE
from cellfeed.bridge.events.named_formats import FormatName, event_format
from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.bridge.events.record_headers import LeaderEpochs
from cellfeed.bridge.events.registry import envelope_schema_id
from cellfeed.bridge.events.views import Condition, View
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import Topic, make_topic
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import InvalidRequest
from tests.support.log_of_cells import LogOfCells, log_cell

FORMATS = get_args(FormatName)
CARDS = [Condition("pay.kind", "=", value="card")]


def topic_of(view: View, name: FormatName = "json") -> Topic:
    return make_topic("a-view", view, event_format(name, "trips", envelope_schema_id()))


def read(
    log: LogOfCells,
    topic: Topic,
    offset: int,
    watermark: int,
    bytes_max: int = 1 << 40,
    until_s: float = 1e12,
) -> list[Batch]:
    async def run(executor: ThreadPoolExecutor) -> list[Batch]:
        return await Blocks(log, executor).read(topic, 0, offset, watermark, 0, bytes_max, until_s)  # type: ignore[arg-type]

    with ThreadPoolExecutor(1) as executor:
        return asyncio.run(run(executor))


bodies = st.fixed_dictionaries(
    {},
    optional={
        "pay": st.fixed_dictionaries({}, optional={"kind": st.sampled_from(["card", "cash", 1])}),
        "x": st.integers(0, 3),
    },
)
cells = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["BASE", "NOTES"]), bodies), max_size=40
)
"""With holes between the ids, as erased cells leave them."""
views = st.builds(
    View,
    st.none() | st.just("BASE"),
    st.just([]) | st.just(CARDS) | st.just([Condition("x", "exists")]),
    st.just([]) | st.just(["x"]) | st.just(["pay.kind", "x"]),
)


def numbered(drawn: Sequence[tuple[int, str, dict[str, object]]]) -> list[StoredCell]:
    found: list[StoredCell] = []
    added_id = -1
    for step, column, body in drawn:
        added_id += step
        found.append(log_cell(added_id, added_id, column, added_id, body))
    return found


@given(cells, views, st.sampled_from(FORMATS), st.data())
def test_a_view_has_the_exporters_records_at_their_offsets_and_its_batches_cover_the_rest(
    drawn: list[tuple[int, str, dict[str, object]]],
    view: View,
    name: FormatName,
    data: st.DataObject,
) -> None:
    log = numbered(drawn)
    end = log[-1].added_id + 1 if log else 5
    start, stop = sorted(
        data.draw(st.lists(st.integers(0, end), min_size=2, max_size=2, unique=True))
    )
    engine = LogOfCells(log, scan_cells_max=data.draw(st.integers(1, 50)))
    batches = encode_range(engine, topic_of(view, name), 0, start, stop, 0)  # type: ignore[arg-type]
    assert (batches[0].start, batches[-1].end) == (start, stop)
    assert all(before.end == after.start for before, after in pairwise(batches))
    export = Export(
        "e", "b", topic="t", format=name, column=view.column, filter=view.filter, fields=view.fields
    )
    encoder = RecordEncoder(export, "trips", envelope_schema_id())
    wanted = encoder.encode(
        0, [cell for cell in log if start <= cell.added_id < stop], LeaderEpochs([], 0)
    ).records
    found = list(decode_record_batches(b"".join(batch.data for batch in batches)))
    assert [each[:] for each in found] == [
        (each.added_id, each.timestamp_ms, each.key, each.value) for each in wanted
    ]


def test_many_blocks_without_a_match_are_passed_in_one_answer_that_ends_at_the_watermark() -> None:
    end = 20 * BLOCK_CELLS + 7
    log = LogOfCells(
        [log_cell(added_id, added_id, body={"pay": {"kind": "cash"}}) for added_id in range(end)]
    )
    batches = read(log, topic_of(View(filter=CARDS)), 3, end)
    assert batches[0].start == 0
    assert batches[-1].end == end
    assert list(decode_record_batches(b"".join(batch.data for batch in batches))) == []
    assert sum(len(batch.data) for batch in batches) < 2_000


def test_an_answer_of_a_view_ends_when_its_time_is_used_up_but_always_advances() -> None:
    log = LogOfCells([log_cell(added_id, added_id) for added_id in range(3 * BLOCK_CELLS)])
    topic = topic_of(View("RARE"))
    offset, answers = 0, 0
    while offset < 3 * BLOCK_CELLS:
        [batch] = read(log, topic, offset, 3 * BLOCK_CELLS, until_s=0.0)
        assert batch.end > offset
        offset, answers = batch.end, answers + 1
    assert answers == 3


def test_large_bodies_that_a_projection_makes_small_are_one_batch_and_large_ones_end_theirs() -> (
    None
):
    log = LogOfCells(
        [
            log_cell(added_id, added_id, body={"x": added_id, "text": "x" * 300_000})
            for added_id in range(6)
        ]
    )
    [small] = encode_range(log, topic_of(View(fields=["x"])), 0, 0, 6, 0)  # type: ignore[arg-type]
    assert [record.offset for record in decode_record_batches(small.data)] == list(range(6))
    large = encode_range(log, topic_of(View(filter=[Condition("x", "!=", value=1)])), 0, 0, 6, 0)  # type: ignore[arg-type]
    assert len(large) > 1
    assert all(len(batch.data) < 1 << 20 for batch in large), "each fits a consumer's default fetch"
    assert [record.offset for batch in large for record in decode_record_batches(batch.data)] == [
        0,
        2,
        3,
        4,
        5,
    ]


def test_topics_with_the_same_records_share_their_kept_blocks() -> None:
    log = LogOfCells([log_cell(added_id, added_id) for added_id in range(BLOCK_CELLS)])
    avro, as_json = (event_format(name, "trips", 1) for name in ("avro", "json"))

    async def run(executor: ThreadPoolExecutor) -> tuple[int, int]:
        blocks = Blocks(log, executor)  # type: ignore[arg-type]
        for topic in (
            make_topic("trips", View(), avro),
            make_topic("trips@latest", View(), avro, latest=True),
            make_topic("other", View(), avro),
            make_topic("as-json", View(), as_json),
        ):
            await blocks.read(topic, 0, 0, BLOCK_CELLS, 0, 1)
        return blocks.encoded, blocks.kept.hits

    with ThreadPoolExecutor(1) as executor:
        assert asyncio.run(run(executor)) == (2, 2)


@pytest.mark.parametrize("name", FORMATS)
def test_only_a_cloud_event_has_the_header_that_marks_its_format(name: FormatName) -> None:
    [batch] = encode_range(
        cast("Engine", LogOfCells([log_cell(0), log_cell(1)])), topic_of(View(), name), 0, 0, 2, 0
    )
    wanted = [("content-type", CONTENT_TYPE)] if name == "cloudevents" else []
    assert [list(record.headers) for record in DefaultRecordBatch(batch.data)] == [wanted, wanted]


def test_an_unknown_format_is_reported_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidRequest, match="'protobuf' does not exist; known are avro, json, cloudevents"
    ):
        event_format("protobuf", "trips", 1)
