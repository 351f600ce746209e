"""The steps of a lake loader's consumer: no batch from before a rebalance is taken, and an error of
the client is heard. Real clients are in ``integration/consumers``."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.consumers.lake import reading
from cellfeed.consumers.lake.positions import Position, Positions
from cellfeed.consumers.lake.progress import LakeProgress
from cellfeed.consumers.lake.reading import Reading
from cellfeed.consumers.lake.waiting_rows import WaitingRows
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.errors import Unavailable
from tests.support.scripted_consumer import TOPIC, Record, ScriptedConsumer, end_of

ROW = bytes(16)


def cell(shard: int, added_id: int) -> Record:
    stored = StoredCell(added_id, ROW, "BASE", 1, 1_700_000_000_000_000, b"")
    return Record(
        shard, added_id, JsonFormat().encode(shard, stored, row_key_text(ROW), b'{"n":1}')
    )


class Loader:
    """``table``: the positions of the table; None while nobody can say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.consumer = ScriptedConsumer()
        monkeypatch.setattr(reading, "Consumer", self.consumer.made)
        self.waiting, self.progress = WaitingRows(offset_is_added_id=True), LakeProgress()
        self.table: Positions | None = {1: Position(5, 5)}
        self.acts: list[str] = []
        self.reading = Reading(
            {},
            TOPIC,
            self.waiting,
            self.progress,
            positions=lambda: self.table,
            commit=lambda: self.acts.append("commit"),
            abandon=lambda: self.acts.append("abandon"),
        )

    def read(self, *records: Record) -> int:
        """The count of waiting rows after these records."""
        self.consumer.steps.append(records)
        self.reading.read(full=False)
        return self.waiting.count

    def called(self, name: str) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.consumer.calls if call[0] == name]


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    made = Loader(monkeypatch)
    made.consumer.rebalance("on_assign", 0, 1)
    return made


def test_partitions_are_read_from_the_tables_positions(loader: Loader) -> None:
    assert loader.called("assign") == [({0: OFFSET_BEGINNING, 1: 5},)]
    assert loader.read(cell(0, 0), cell(1, 5), cell(1, 6), cell(2, 0)) == 3


def test_a_batch_around_a_rebalance_is_read_again(loader: Loader) -> None:
    def rebalanced() -> list[Record]:
        loader.consumer.rebalance("on_revoke", 0, 1)
        loader.consumer.rebalance("on_assign", 0, 1)
        return [cell(0, 0), cell(1, 5)]

    loader.consumer.steps.append(rebalanced)
    loader.reading.read(full=False)
    assert loader.acts == ["commit", "abandon"]
    assert loader.waiting.count == 0
    assert loader.read(cell(0, 0), cell(1, 5)) == 2
    assert loader.called("seek") == [(0, OFFSET_BEGINNING), (1, 5)]


def test_records_before_a_seek_that_failed_are_left_alone(loader: Loader) -> None:
    loader.reading.start_over()
    loader.consumer.fails["seek"] = KafkaException(KafkaError(KafkaError._STATE))
    assert loader.read(cell(0, 0), end_of(0, 1), cell(1, 5)) == 1  # partition 0 is sought first
    assert not loader.reading.is_read_to(0, 1)
    assert loader.read() == 1
    assert not loader.reading.is_read_to(0, 1), "that end was seen from another place"
    assert loader.read(cell(0, 0), end_of(0, 1)) == 2
    assert loader.reading.is_read_to(0, 1)


def test_a_table_that_nobody_can_ask_is_asked_before_anything_is_read(loader: Loader) -> None:
    loader.table = None
    loader.consumer.rebalance("on_lost", 0, 1)
    loader.consumer.rebalance("on_assign", 0, 1)
    assert loader.read(cell(0, 0), cell(1, 5)) == 0
    loader.table = {1: Position(6, 6)}
    assert loader.read(cell(1, 5), cell(1, 6)) == 1


def test_a_trimmed_partition_stops_with_its_reason_and_the_others_are_read(
    loader: Loader,
) -> None:
    gone = Record(1, -1, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
    assert loader.read(gone, cell(0, 0), cell(1, 5)) == 1
    assert "has no offset 5, where the table continues" in loader.progress.stopped[1]
    assert loader.called("pause") == [(1,)]
    loader.consumer.rebalance("on_assign", 1)
    assert loader.progress.stopped == {}


def test_an_error_of_a_partition_that_is_another_loaders_stops_nothing(loader: Loader) -> None:
    assert loader.read(Record(7, -1, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))) == 0
    assert loader.progress.stopped == {}


def test_a_client_that_gave_up_ends_the_loader(loader: Loader) -> None:
    """A second process with its name has fenced it: it would read nothing for ever."""
    fatal = KafkaError(KafkaError.FENCED_INSTANCE_ID, "fenced", fatal=True)
    with pytest.raises(Unavailable, match="gave up: fenced"):
        loader.read(Record(None, -1, error=fatal))
    passing = KafkaError(KafkaError._ALL_BROKERS_DOWN, "away")
    assert loader.read(Record(None, -1, error=passing), cell(0, 0)) == 1


def test_a_partition_is_read_to_its_end_also_behind_a_mark_of_a_transaction(
    loader: Loader,
) -> None:
    assert not loader.reading.is_read_to(0, 2)
    loader.read(cell(0, 0), end_of(0, 2))
    assert loader.reading.is_read_to(0, 2)
    assert not loader.reading.is_read_to(0, 3)
    assert not loader.reading.is_read_to(9, 1)
    loader.progress.stopped[9] = "damaged"
    assert loader.reading.is_read_to(9, 1)
