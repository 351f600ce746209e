"""The needed form of a topic, how an export is declared, and how positions are looked for: no
broker needed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.record_headers import COLUMN_NAME, REF_KEY, LeaderEpochs
from cellfeed.bridge.events.views import Condition
from cellfeed.bridge.export.batches import BatchReader, Throttle
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_terms import (
    ExportTerms,
    agree_terms,
    read_terms,
    start_over,
    terms_key,
)
from cellfeed.bridge.export.foreign_topics import not_of_logs
from cellfeed.bridge.export.limits import (
    LIVE_CELLS_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_CELLS_MAX,
    UNITS,
)
from cellfeed.bridge.export.records import CLAIM_CHECK, RecordEncoder
from cellfeed.bridge.export.resume import Tail
from cellfeed.bridge.export.tails import LastRecord, PartitionTail
from cellfeed.bridge.export.topics import check_partitions, check_settings, wanted_settings
from cellfeed.bridge.export.translate import Found, offset_of
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head, LogRange
from cellfeed.store.errors import InvalidRequest, ProtectData
from tests.support.export_steps import put

EXPORT = Export("trips", "broker:9092")
GOOD = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": "2000000",
}


def test_a_topic_as_it_is_made_passes_the_check() -> None:
    assert check_settings(EXPORT, "trips", wanted_settings(EXPORT)) == []
    assert check_settings(EXPORT, "trips", GOOD) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000"),
        ("message.timestamp.type", "LogAppendTime"),
        ("max.message.bytes", "1000"),
    ],
)
def test_a_setting_that_would_cost_cells_is_refused_with_the_command_that_mends_it(
    name: str, value: str
) -> None:
    [wrong] = check_settings(EXPORT, "trips", {**GOOD, name: value})
    assert f"{name} is {value}" in wrong
    assert (
        "kafka-configs.sh --bootstrap-server broker:9092 --alter --entity-type topics --entity-name"
        " trips --add-config " + name in wrong
    )


def test_retention_that_was_configured_is_meant() -> None:
    export = msgspec.structs.replace(
        EXPORT, topic_settings={"retention.ms": "86400000", "min.insync.replicas": "2"}
    )
    assert check_settings(export, "trips", {**GOOD, "retention.ms": "86400000"}) == []
    assert wanted_settings(export)["min.insync.replicas"] == "2"
    for name, value in (("cleanup.policy", "compact"), ("max.message.bytes", "10")):
        with pytest.raises(InvalidRequest, match=name):
            wanted_settings(msgspec.structs.replace(EXPORT, topic_settings={name: value}))


def test_a_topic_has_a_partition_for_each_shard() -> None:
    assert check_partitions(EXPORT, "trips", 16, 16) is None
    assert (
        "kafka-topics.sh --bootstrap-server broker:9092 --alter --topic trips --partitions 16"
        in (check_partitions(EXPORT, "trips", 16, 4) or "")
    )
    assert "cannot be taken away" in (check_partitions(EXPORT, "trips", 16, 32) or "")


def test_a_declaration_that_cannot_be_meant_is_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"client": {"transactional.id": "mine"}},
        {"client": {"isolation.level": "read_uncommitted"}},
        {"filter": [Condition("a", "exists")]},
        {"format": "json", "registry": "http://registry:8081"},
        {"registry": "registry:8081"},
        {"fields": ["a", "a.b"]},
    ]
    for each in wrong:
        with pytest.raises(InvalidRequest, match="export trips"):
            msgspec.structs.replace(EXPORT, **each).check()
    assert EXPORT.topic_of("trips") == "trips"
    assert msgspec.structs.replace(EXPORT, column="BASE").topic_of("trips") == "trips.BASE"


def test_recorded_terms_apply_to_every_process_and_a_changed_export_is_refused(
    datastore: Datastore,
) -> None:
    assert read_terms(datastore, "trips") is None
    first = agree_terms(datastore, EXPORT, "id-1", "kafka-a")
    assert first.units == 1
    assert first.starts == [0] * 16
    assert agree_terms(datastore, EXPORT, "id-2", "kafka-a") == first, "the first one stands"
    for changed in ({"format": "json"}, {"units": 4}, {"column": "BASE"}, {"topic": "elsewhere"}):
        with pytest.raises(ProtectData, match="was begun with another"):
            agree_terms(datastore, msgspec.structs.replace(EXPORT, **changed), "id-1", "kafka-a")
    again = start_over(datastore, EXPORT, first, "id-2")
    assert (again.topic_id, again.generation) == ("id-2", 2)
    assert start_over(datastore, EXPORT, first, "id-3") == again, "another process was faster"


def test_an_export_goes_to_one_cluster_and_terms_without_one_are_adopted(
    datastore: Datastore,
) -> None:
    old = msgspec.structs.replace(agree_terms(datastore, EXPORT, "id-1", "kafka-a"), cluster_id="")
    datastore.state.commit({terms_key("trips"): msgspec.msgpack.encode(old)})
    first = agree_terms(datastore, EXPORT, "id-1", "kafka-a")
    assert first.cluster_id == "kafka-a"
    elsewhere = msgspec.structs.replace(EXPORT, on_lost_topic="start_over", bootstrap="far:9092")
    with pytest.raises(ProtectData, match=r"kafka-a; the one at far:9092 is kafka-b\..*forget"):
        agree_terms(datastore, elsewhere, "id-2", "kafka-b")
    assert agree_terms(datastore, EXPORT, "id-1", "") == first, (
        "a cluster that does not tell its id"
    )
    assert read_terms(datastore, "trips") == first


def test_the_terms_of_another_lineage_are_refused_and_those_without_one_are_adopted(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = agree_terms(datastore, EXPORT, "id-1", "kafka-a")
    assert (first.history_id, first.origin_id) == (datastore.history_id, datastore.origin_id)
    old = msgspec.structs.replace(first, history_id="", origin_id="")
    datastore.state.commit({terms_key("trips"): msgspec.msgpack.encode(old)})
    assert (
        agree_terms(datastore, EXPORT, "id-1", "kafka-a") == first == read_terms(datastore, "trips")
    )
    own = datastore.origin_id
    with monkeypatch.context() as patched:
        patched.setattr(Datastore, "origin_id", "another")
        with pytest.raises(ProtectData, match="another") as refused:
            agree_terms(datastore, EXPORT, "id-1", "kafka-a")
        assert own in str(refused.value)
        assert "new name and topic" in str(refused.value)
    assert read_terms(datastore, "trips") == first


def test_an_export_begins_in_no_topic_whose_records_are_not_shown_to_be_of_its_logs(
    datastore: Datastore,
) -> None:
    put(datastore, 100)
    heads = datastore.heads()
    tails = {shard: _tail(datastore, shard, heads[shard].watermark - 1) for shard in heads}
    assert not_of_logs(datastore, tails) == []
    empty = PartitionTail(Tail(None, 0, 0), None)
    assert not_of_logs(datastore, dict.fromkeys(heads, empty)) == []
    other = LastRecord(0, b"another row", {}, 0)
    wrong = {**dict.fromkeys(heads, empty), 3: PartitionTail(Tail(0, 0, 1), other)}
    assert "partition 3: its last record" in not_of_logs(datastore, wrong)[0]
    beyond = heads[5].next_added_id
    wrong = {5: PartitionTail(Tail(beyond, 0, 1), other._replace(added_id=beyond))}
    assert f"partition 5 holds cell {beyond}" in not_of_logs(datastore, wrong)[0]
    wrong = {5: PartitionTail(Tail(None, 0, 1, foreign=True), other._replace(added_id=None))}
    assert "something else" in not_of_logs(datastore, wrong)[0]
    datastore.trim(3, heads[3].watermark)
    [said] = not_of_logs(datastore, tails)
    assert "partition 3" in said
    assert "trimmed" in said


def _tail(datastore: Datastore, shard: int, added_id: int) -> PartitionTail:
    """Of a partition whose last record is of that cell."""
    [cell] = datastore.engine.scan(shard, added_id, 1)
    headers = {COLUMN_NAME: cell.column_name.encode(), REF_KEY: b"%d" % cell.ref_key}
    record = LastRecord(9, row_key_text(cell.row_key), headers, added_id)
    return PartitionTail(Tail(added_id, 0, 10), record)


@given(st.integers(1, 300), st.integers(1, UNITS))
def test_every_shard_is_in_one_unit(shards: int, units: int) -> None:
    agreed = ExportTerms("trips", "trips", "id", min(units, shards), "", [0] * shards, 0)
    assert sorted(
        shard for unit in range(agreed.units) for shard in agreed.shards_of(unit)
    ) == list(range(shards))


def test_a_late_start_is_settled_once(datastore: Datastore) -> None:
    put(datastore, 50)
    first = agree_terms(datastore, msgspec.structs.replace(EXPORT, start="latest"), "id", "kafka-a")
    put(datastore, 50, first=100)
    assert (
        agree_terms(
            datastore, msgspec.structs.replace(EXPORT, start="latest"), "id", "kafka-a"
        ).starts
        == first.starts
    )
    assert sum(first.starts) == 50


@given(
    st.lists(st.integers(1, 4), max_size=40),
    st.lists(st.integers(1, 3), min_size=40, max_size=40),
    st.integers(0, 4),
    st.integers(0, 170),
)
def test_the_offset_of_a_cell_is_found_among_marks_and_cells_that_were_left_out(
    gaps: list[int], steps: list[int], marks: int, wanted: int
) -> None:
    ids = [each - 1 for each in accumulate(gaps)]
    offsets = list(accumulate(steps[: len(ids)]))
    records = [Found(offset, added_id) for offset, added_id in zip(offsets, ids, strict=True)]
    end = (offsets[-1] if offsets else 0) + 1 + marks
    expected = next((record.offset for record in records if record.added_id >= wanted), end)
    assert (
        offset_of(
            lambda offset: next((record for record in records if record.offset >= offset), None),
            0,
            end,
            wanted,
        )
        == expected
    )


def test_a_batch_is_bounded_and_every_shard_gets_its_turn(datastore: Datastore) -> None:
    put(datastore, 12_000)
    reader = BatchReader(datastore.engine, RecordEncoder(EXPORT, "trips", 1), range(16))
    heads, locations, records = datastore.heads(), dict.fromkeys(range(16), 0), 0
    while (batch := reader.read(locations, heads)) is not None:
        assert sum(map(len, batch.records.values())) == batch.cells <= TRANSACTION_CELLS_MAX
        records += batch.cells
        locations |= batch.ends
    assert records == 12_000
    assert locations == {shard: head.watermark for shard, head in heads.items()}


@pytest.mark.parametrize("bytes_max", [1, 20_000, TRANSACTION_BYTES_MAX])
def test_a_prefetched_batch_continues_at_the_end_of_a_shortened_one(
    datastore: Datastore, bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.bridge.export.batches.FETCH_AHEAD_CELLS_MIN", 1)
    monkeypatch.setattr("cellfeed.bridge.export.batches.TRANSACTION_BYTES_MAX", bytes_max)
    put(datastore, 3_000)
    heads, locations, read = (
        datastore.heads(),
        dict.fromkeys(range(16), 0),
        dict.fromkeys(range(16), 0),
    )
    with ThreadPoolExecutor(1) as ahead:
        reader = BatchReader(datastore.engine, RecordEncoder(EXPORT, "trips", 1), range(16), ahead)
        batches = 0
        while (batch := reader.read(locations, heads, 500)) is not None:
            for shard, records in batch.records.items():
                ids = [record.added_id for record in records]
                assert ids == list(range(read[shard], read[shard] + len(ids))), (
                    "nothing is left out, nothing comes twice"
                )
                assert {record.shard for record in records} == {shard}
                read[shard] += len(ids)
            locations |= batch.ends
            batches += 1
    assert read == locations == {shard: head.watermark for shard, head in heads.items()}
    assert batches > 5


class Scanned:
    """An engine where only the heads matter: it notes the requests that it gets."""

    def __init__(self) -> None:
        self.ranges: list[LogRange] = []

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        self.ranges = list(ranges)
        return [[] for _ in ranges]


@given(
    st.lists(
        st.integers(0, 3 * LIVE_CELLS_MAX) | st.integers(5_000, 50_000), min_size=1, max_size=200
    ),
    st.sampled_from([1, 100, TRANSACTION_CELLS_MAX]),
)
def test_live_shards_are_in_the_next_transaction_and_those_far_behind_take_turns(
    behind: list[int], cells_max: int
) -> None:
    engine = Scanned()
    reader = BatchReader(
        cast("Engine", engine), RecordEncoder(EXPORT, "trips", 1), range(len(behind))
    )
    heads = {shard: Head(0, cells, cells, 1, 0) for shard, cells in enumerate(behind)}
    locations = dict.fromkeys(heads, 0)
    live = {shard for shard, cells in enumerate(behind) if 0 < cells <= LIVE_CELLS_MAX}
    waiting = {shard for shard, cells in enumerate(behind) if cells}
    few = sum(behind[shard] for shard in live) <= (cells_max if waiting == live else cells_max // 2)
    turns: set[int] = set()
    for _ in range(len(behind) + 1):
        engine.ranges = []
        reader.read(locations, heads, cells_max)
        asked = {each.shard: each.limit for each in engine.ranges}
        assert sum(asked.values()) <= cells_max
        assert bool(asked) == bool(waiting)
        if few and cells_max >= 2 * LIVE_CELLS_MAX:
            assert {shard: asked.get(shard) for shard in live} == {
                shard: behind[shard] for shard in live
            }
        turns |= asked.keys()
    assert turns == waiting


def test_large_cells_are_read_in_smaller_batches(datastore: Datastore) -> None:
    put(datastore, 60, size=400_000)
    export = msgspec.structs.replace(EXPORT, too_large=CLAIM_CHECK, record_bytes_max=300_000)
    encoder = RecordEncoder(export, "trips", 1)
    checks = encoder.encode(0, datastore.engine.scan(0, 0, 100), LeaderEpochs([(0, 0)], 0)).records
    assert all(len(record.value or b"") < 1_000 for record in checks)
    reader = BatchReader(datastore.engine, RecordEncoder(EXPORT, "trips", 1), range(16))
    locations = dict.fromkeys(range(16), 0)
    sizes: list[int] = []
    while (batch := reader.read(locations, datastore.heads())) is not None:
        sizes.append(
            sum(
                len(record.value or b"") for records in batch.records.values() for record in records
            )
        )
        locations |= batch.ends
    assert len(sizes) > 2
    assert max(sizes) < 20 << 20


@pytest.mark.parametrize(("units", "rate"), [(1, 500), (3, 2_000), (2, 1)])
def test_all_units_of_a_process_together_keep_to_the_throttle(
    units: int, rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a time of its own: each unit's next batch is asked for when its last one has been let
    through."""
    now_s = 100.0
    monkeypatch.setattr("cellfeed.bridge.export.batches.time.monotonic", lambda: now_s)
    throttle, waits = Throttle(rate), _Waits()
    free_at_s = [now_s] * units
    batch, batches = throttle.cells_max, 40
    for _ in range(batches):
        unit = free_at_s.index(min(free_at_s))
        now_s = free_at_s[unit]
        waits.last_s = 0.0
        throttle.wait(batch, waits)
        free_at_s[unit] = now_s + waits.last_s
    let_through_in_s = max(free_at_s) - 100.0
    assert batch * (batches - 1) / let_through_in_s == pytest.approx(rate), (
        "the first batch goes at once, each other one when the ones before are paid for"
    )


class _Waits(threading.Event):
    """Notes for how long it was waited for, and does not wait."""

    last_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.last_s = timeout or 0.0
        return False


def test_a_throttle_waits_only_as_long_as_nobody_asks_it_to_stop() -> None:
    throttle, stop = Throttle(10), threading.Event()
    assert throttle.cells_max == 1
    throttle.wait(1_000_000, stop)
    stop.set()
    throttle.wait(1, stop)
    assert Throttle(None).cells_max == TRANSACTION_CELLS_MAX
