"""Digests across places: compared up to the end that every place has, and any difference in any
cell, place or number of cells is reported by its shard."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.events.envelope import AvroFormat
from cellfeed.bridge.events.record_keys import record_keys
from cellfeed.bridge.events.registry import envelope_schema_id
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import DataDamaged, Unavailable
from cellfeed.verify import topic_place
from cellfeed.verify.place import Erased
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from cellfeed.verify.topic_place import TopicPlace

SHARDS = 3
CELLS = 60


class Held:
    """A place whose cells the test holds: ``(row key, column, ref key, body)`` in the order of
    their ids."""

    def __init__(self, name: str, cells: Mapping[int, list[tuple[bytes, str, int, bytes]]]) -> None:
        self.name = name
        self.cells = {shard: list(each) for shard, each in cells.items()}

    def first_ids(self) -> dict[int, int]:
        return {}

    def next_ids(self) -> dict[int, int]:
        return {shard: len(cells) for shard, cells in self.cells.items()}

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        found = {}
        for shard, each in ids.items():
            found[shard] = ShardDigest()
            for added_id, cell in enumerate(self.cells.get(shard, [])):
                if added_id in each:
                    found[shard].add(added_id, *cell[:3], erased.body(shard, added_id, cell[3]))
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as opened:
        opened.put_cells(
            [(uuid.UUID(int=number), "BASE", -number, {"n": number}) for number in range(CELLS)]
        )
        yield opened


def held(store: Datastore, name: str = "copy") -> Held:
    cells: dict[int, list[tuple[bytes, str, int, bytes]]] = {}
    for shard in range(SHARDS):
        cells[shard] = [
            (cell.row_key, cell.column_name, cell.ref_key, decode_body(cell.body))
            for cell in store.engine.scan(shard, 0, 1_000)
        ]
    return Held(name, cells)


def differing(store: Datastore, other: Held) -> list[int]:
    return [
        verdict.shard for verdict in verify([StorePlace(store), other]).shards if not verdict.equal
    ]


def test_equal_places_are_equal_level_and_counted(store: Datastore) -> None:
    report = verify([StorePlace(store), held(store)])
    assert (report.equal, report.level) == (True, True)
    assert (report.cells("store"), report.cells("copy")) == (CELLS, CELLS)
    assert report.as_json()["cells"] == {"store": CELLS, "copy": CELLS}


@pytest.mark.parametrize("field", range(4))
def test_any_changed_field_of_one_cell_is_reported_with_its_shard(
    store: Datastore, field: int
) -> None:
    other = held(store)
    cell: list[Any] = list(other.cells[1][5])
    cell[field] = (bytes(16), "base", cell[2] + 1, cell[3] + b" ")[field]
    other.cells[1][5] = tuple(cell)
    assert differing(store, other) == [1]


def test_two_cells_that_changed_places_differ(store: Datastore) -> None:
    other = held(store)
    other.cells[2][3], other.cells[2][4] = other.cells[2][4], other.cells[2][3]
    assert differing(store, other) == [2]


def test_trimmed_cells_are_not_compared_and_the_others_are(store: Datastore) -> None:
    other = held(store)
    store.trim(1, 7)
    assert store.heads()[1].log_start == 7
    report = verify([StorePlace(store), other])
    assert (report.equal, report.level) == (True, True)
    assert [verdict.from_id for verdict in report.shards] == [0, 7, 0]
    other.cells[1][6] = (bytes(16), "BASE", 0, b"{}")
    assert differing(store, other) == []
    other.cells[1][7] = (bytes(16), "BASE", 0, b"{}")
    assert differing(store, other) == [1]


def test_a_place_that_is_behind_is_equal_so_far_and_not_level(store: Datastore) -> None:
    other = held(store)
    missing = len(other.cells[0]) - 4
    del other.cells[0][4:]
    report = verify([StorePlace(store), other])
    assert (report.equal, report.level) == (True, False)
    assert report.shards[0].next_ids["store"] - report.shards[0].next_ids["copy"] == missing
    assert report.shards[0].below_id == 4


def test_a_shard_that_one_place_has_never_heard_of_is_not_level(store: Datastore) -> None:
    other = held(store)
    del other.cells[2]
    report = verify([StorePlace(store), other])
    assert [verdict.shard for verdict in report.shards if not verdict.level] == [2]


def test_a_place_that_has_more_than_the_store_is_not_level(store: Datastore) -> None:
    other = held(store)
    other.cells[0].append((bytes(16), "BASE", 1, b"{}"))
    assert not verify([StorePlace(store), other]).level


def test_a_difference_behind_where_the_slowest_place_is_does_not_count_yet(
    store: Datastore,
) -> None:
    slow, other = held(store, "slow"), held(store)
    del slow.cells[1][2:]
    other.cells[1][7] = (bytes(16), "BASE", 1, b"{}")
    assert verify([StorePlace(store), slow, other]).equal
    assert differing(store, other) == [1]


def test_leftovers_of_an_erased_row_are_no_difference_and_another_cell_is(
    store: Datastore,
) -> None:
    before = held(store)
    erased = store.erase_row(uuid.UUID(int=7))
    after = held(store, "after")
    assert verify([StorePlace(store), before, after]).equal
    place = next(
        place
        for place, cell in enumerate(before.cells[erased.shard])
        if cell[0] == uuid.UUID(int=7).bytes
    )
    before.cells[erased.shard][place] = (uuid.UUID(int=7).bytes, "BASE", 1, b"{}")
    assert differing(store, before) == [erased.shard]


def test_only_the_shards_asked_for_are_looked_at(store: Datastore) -> None:
    other = held(store)
    other.cells[0][0] = (bytes(16), "BASE", 1, b"{}")
    assert verify([StorePlace(store), other], shards=[1, 2]).equal


def test_cells_put_while_places_are_read_change_no_verdict(store: Datastore) -> None:
    copy = held(store)

    class Growing(Held):
        def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
            store.put_cells([(uuid.uuid4(), "BASE", 1, {}) for _ in range(20)])
            return super().digests(ids, erased)

    report = verify([Growing("copy", copy.cells), StorePlace(store)])
    assert (report.equal, report.cells("store")) == (True, CELLS)


def test_two_places_of_one_name_are_refused(store: Datastore) -> None:
    with pytest.raises(ValueError, match="different names"):
        verify([StorePlace(store), StorePlace(store)])


# --- a topic, by what a consumer gives ------------------------------------------------------------


class Record:
    def __init__(self, shard: int, offset: int, value: bytes) -> None:
        self._shard, self._offset, self._value = shard, offset, value

    def partition(self) -> int:
        return self._shard

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value

    def error(self) -> None:
        return None


class Consumed:
    """Stands for the Kafka client: gives the records that the test has, a few at a time, then
    nothing."""

    records: list[Record] = []  # noqa: RUF012 (set by the test)
    closed = 0

    def __init__(self, _config: object) -> None:
        self._left = list(type(self).records)

    def assign(self, _partitions: object) -> None:
        """Everything is given anyway."""

    def consume(self, _count: int, _wait_s: float) -> list[Record]:
        piece, self._left = self._left[:7], self._left[7:]
        return piece

    def close(self) -> None:
        type(self).closed += 1


def topic_records(engine: Engine) -> list[Record]:
    avro = AvroFormat(envelope_schema_id())
    found = []
    for shard in range(SHARDS):
        for cell in engine.scan(shard, 0, 1_000):
            [key] = record_keys([cell.row_key])
            found.append(
                Record(shard, cell.added_id, avro.encode(shard, cell, key, decode_body(cell.body)))
            )
    return found


@pytest.fixture
def topic(store: Datastore, monkeypatch: pytest.MonkeyPatch) -> TopicPlace:
    monkeypatch.setattr(topic_place, "Consumer", Consumed)
    monkeypatch.setattr(Consumed, "records", topic_records(store.engine))
    monkeypatch.setattr(Consumed, "closed", 0)
    ends = {shard: head.watermark for shard, head in store.heads().items()}
    monkeypatch.setattr(topic_place, "end_offsets", lambda *_: ends)
    return TopicPlace("nowhere:1", "trips")


def test_a_topic_with_every_cell_is_equal(store: Datastore, topic: TopicPlace) -> None:
    report = verify([StorePlace(store), topic])
    assert (report.equal, report.level, report.cells("gateway")) == (True, True, CELLS)
    assert Consumed.closed == 1


def test_a_topic_that_lacks_a_cell_in_the_middle_differs(
    store: Datastore, topic: TopicPlace
) -> None:
    Consumed.records[:] = [
        record for record in Consumed.records if (record.partition(), record.offset()) != (1, 4)
    ]
    report = verify([StorePlace(store), topic])
    assert [verdict.shard for verdict in report.shards if not verdict.equal] == [1]


def test_a_topic_that_gives_a_cell_twice_or_out_of_order_is_damaged(
    store: Datastore, topic: TopicPlace
) -> None:
    Consumed.records.insert(3, Consumed.records[2])
    with pytest.raises(DataDamaged, match="ascending"):
        verify([StorePlace(store), topic])
    assert Consumed.closed == 1


def test_a_cell_in_another_shards_partition_is_damage(store: Datastore, topic: TopicPlace) -> None:
    Consumed.records[0] = Record(2, 0, Consumed.records[0].value())
    with pytest.raises(DataDamaged, match="partition 2 of trips, offset 0: a cell of shard 0"):
        verify([StorePlace(store), topic])


def test_a_topic_that_falls_silent_before_its_end_is_unavailable_not_equal(
    store: Datastore, topic: TopicPlace
) -> None:
    del Consumed.records[-1]
    with pytest.raises(Unavailable, match=r"shards \[2\] not read whole"):
        verify([StorePlace(store), topic])
