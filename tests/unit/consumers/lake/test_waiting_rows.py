"""Rows that wait for a commit: their age, and the records that contradict the log."""

from __future__ import annotations

from uuid import UUID

import pytest

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.consumers.lake import waiting_rows
from cellfeed.consumers.lake.positions import START, Position
from cellfeed.consumers.lake.waiting_rows import WaitingRows
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.errors import DataDamaged

ROW = UUID(int=7).bytes


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting_rows, "time", clock)
    return clock


def rows(*, offset_is_added_id: bool = True) -> WaitingRows:
    """Those of a loader that reads shard 3 from its beginning."""
    waiting = WaitingRows(offset_is_added_id=offset_is_added_id)
    waiting.place(3, START)
    return waiting


def add(waiting: WaitingRows, added_id: int, offset: int | None = None, shard: int = 3) -> None:
    cell = StoredCell(added_id, ROW, "BASE", 1, 1_700_000_000_000_000, b"")
    value = JsonFormat().encode(shard, cell, row_key_text(ROW), b'{"n":1}')
    waiting.add(3, added_id if offset is None else offset, value, None, {}, 0)


def test_the_age_is_that_of_the_oldest_row(clock: Clock) -> None:
    waiting = rows()
    assert waiting.age_s == 0.0
    for number in range(3):
        add(waiting, number)
        clock.now_s += 10.0
    assert waiting.age_s == 30.0
    waiting.seal()
    assert waiting.age_s == 0.0
    add(waiting, 3)
    clock.now_s += 5.0
    assert waiting.age_s == 5.0


def test_a_record_that_was_taken_is_not_taken_again() -> None:
    waiting = rows()
    for number in (0, 1, 1, 0, 2):
        add(waiting, number)
    sealed = waiting.seal()
    assert sealed.rows.rows == 3
    assert (sealed.starts, sealed.ends) == ({3: START}, {3: Position(3, 3)})
    assert waiting.count == 0
    add(waiting, 3)
    assert waiting.seal()[1:] == ({3: Position(3, 3)}, {3: Position(4, 4)})


def test_a_topic_of_a_kafka_cluster_may_have_offsets_between_the_cells() -> None:
    waiting = rows(offset_is_added_id=False)
    add(waiting, 0, offset=0)
    add(waiting, 5, offset=2)
    assert waiting.next_offset(3) == 3
    assert waiting.seal().ends == {3: Position(6, 3)}
    with pytest.raises(DataDamaged, match="added_id 5, which comes before 6"):
        add(waiting, 5, offset=3)
    assert waiting.count == 0


def test_a_record_of_another_shard_or_place_is_refused_and_not_taken() -> None:
    waiting = rows()
    with pytest.raises(DataDamaged, match="partition 3 at offset 0 is a cell of shard 2"):
        add(waiting, 0, shard=2)
    with pytest.raises(DataDamaged, match="at offset 1 has added_id 0"):
        add(waiting, 0, offset=1)
    with pytest.raises(DataDamaged, match="partition 3 at offset 0: "):
        waiting.add(3, 0, b"no cell", None, {}, 0)
    assert (waiting.count, waiting.next_offset(3)) == (0, 0)


def test_rows_that_are_given_up_are_read_again_from_their_beginning() -> None:
    waiting = rows()
    add(waiting, 0)
    assert waiting.forget() == [3]
    assert (waiting.count, waiting.reads(3)) == (0, False)
    waiting.place(3, START)
    add(waiting, 0)
    assert waiting.seal().starts == {3: START}
    waiting.drop(3)
    assert not waiting.reads(3)
