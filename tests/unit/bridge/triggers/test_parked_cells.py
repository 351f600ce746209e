"""The queue of parked cells: the entries that each verb writes, while others run, skip or park a
cell."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest

from cellfeed.bridge.triggers.parked.cell import ParkedCell, due, fronts, is_of_rows
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, NotFound, Unavailable
from tests.support.parked import parked_cell

GROUP = "a/b billing"
ROW, OTHER = UUID(int=7), UUID(int=8)


def cell(added_id: int, partition: int = 3, **changed: object) -> ParkedCell:
    made = parked_cell(
        partition, added_id, group=GROUP, row_key=str(ROW), error="ValueError: no", attempts=5
    )
    return msgspec.structs.replace(made, **changed)


@pytest.fixture
def parked(datastore: Datastore) -> ParkedCells:
    return ParkedCells(datastore.state)


def park(parked: ParkedCells, *cells: ParkedCell) -> None:
    for each in cells:
        parked._state.commit(parked.entry(each))


def between(
    parked: ParkedCells, monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object]
) -> None:
    """Somebody else does this once, behind the next look at an entry."""
    real, left = parked._state.get, [deed]

    def get(key: str) -> object:
        found = real(key)
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(parked._state, "get", get)


def test_cells_of_a_partition_and_of_a_group_are_theirs_alone_in_order(parked: ParkedCells) -> None:
    park(parked, cell(12), cell(3), cell(1, 30), cell(5, group="a"), cell(7, topic="trips2"))
    assert [each.added_id for each in parked.of_partition(GROUP, "trips", 3)] == [3, 12]
    assert [(each.topic, each.added_id) for each in parked.all(GROUP)] == [
        ("trips", 3),
        ("trips", 12),
        ("trips", 1),
        ("trips2", 7),
    ]
    assert parked.groups() == {GROUP, "a"}
    assert parked.find(GROUP, "3/12").added_id == 12
    with pytest.raises(NotFound, match="has no parked cell 3/13"):
        parked.find(GROUP, "3/13")


def test_a_cell_that_ran_leaves_the_queue_and_one_skipped_meanwhile_is_reported(
    parked: ParkedCells,
) -> None:
    park(parked, cell(1), cell(2))
    parked.skip(GROUP, "3/2", "not ours")
    assert parked.resolved(cell(1), {"also": b"1"})
    assert not parked.resolved(cell(2), {"also": b"2"})
    assert not parked.resolved(cell(9))
    entry = parked._state.get("also")
    assert entry is not None
    assert entry.value == b"2"
    assert parked.all(GROUP) == []
    assert [each.skipped_because for each in parked.skipped(GROUP)] == ["not ours"]


def test_a_failed_retry_is_counted_and_no_longer_requested(parked: ParkedCells) -> None:
    park(parked, cell(1, is_behind=True, retry_asked=True))
    parked.failed_again(cell(1), "x" * 10_000, attempts=2, ended=1, also={"also": b"1"})
    [found] = parked.all(GROUP)
    assert (found.attempts, found.ended, found.is_behind, found.retry_asked) == (7, 1, False, False)
    assert 0 < len(found.error) < 10_000
    assert found.last_tried_at_us > 1
    parked.skip(GROUP, "3/1", "not ours")
    parked.failed_again(cell(1), "again", also={"also": b"2"})
    assert parked.all(GROUP) == []
    entry = parked._state.get("also")
    assert entry is not None
    assert entry.value == b"2"


def test_concurrent_changes_of_a_parked_cell_are_read_before_they_are_overwritten(
    parked: ParkedCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(parked, cell(1), cell(2))
    between(parked, monkeypatch, lambda: parked.skip(GROUP, "3/1", "not ours"))
    assert not parked.resolved(cell(1))
    between(parked, monkeypatch, lambda: parked.failed_again(cell(2), "theirs"))
    parked.failed_again(cell(2), "ours")
    assert [(each.error, each.attempts) for each in parked.all(GROUP)] == [("ours", 7)]


def test_a_change_that_always_loses_the_race_raises_unavailable(
    parked: ParkedCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(parked, cell(1))
    monkeypatch.setattr(parked._state, "commit", lambda *_, **__: None)
    for deed in (lambda: parked.resolved(cell(1)), lambda: parked.failed_again(cell(1), "no")):
        with pytest.raises(Unavailable, match="others are faster"):
            deed()
    assert not parked.resolved(cell(9)), "where nothing is to be written nobody is in the way"


def test_a_retry_is_asked_for_the_first_of_a_row_and_of_every_other_cell(
    parked: ParkedCells,
) -> None:
    rest = cell(3, row_key=str(OTHER))
    park(parked, cell(1, in_order=True), cell(2, in_order=True), rest)
    with pytest.raises(InvalidRequest, match="waits behind an earlier one of row key"):
        parked.ask_retry(GROUP, "3/2")
    assert parked.ask_retry(GROUP, "3/1") == 1
    assert [each.retry_asked for each in parked.all(GROUP)] == [True, False, False]
    assert parked.ask_retry(GROUP) == 3
    assert [each.retry_asked for each in parked.all(GROUP)] == [True, False, True]
    with pytest.raises(NotFound):
        parked.ask_retry(GROUP, "3/9")
    assert parked.ask_retry("nobody") == 0


def test_a_cell_that_runs_while_a_retry_is_asked_for_stays_off_the_queue(
    parked: ParkedCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(parked, cell(1))
    real = parked._state.get

    def gone(key: str) -> object:
        parked._state.commit({key: None})
        return real(key)

    monkeypatch.setattr(parked._state, "get", gone)
    assert parked.ask_retry(GROUP) == 1
    assert parked.all(GROUP) == []


def test_a_cell_is_skipped_with_a_reason_and_once(
    parked: ParkedCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(parked, cell(1), cell(2))
    for reason in ("", "  \n"):
        with pytest.raises(InvalidRequest, match="with a reason"):
            parked.skip(GROUP, "3/1", reason)
    assert parked.skipped() == []
    parked.skip(GROUP, "3/1", "not ours")
    with pytest.raises(NotFound):
        parked.skip(GROUP, "3/1", "not ours")
    between(parked, monkeypatch, lambda: parked.failed_again(cell(2), "meanwhile"))
    with pytest.raises(NotFound, match="ran meanwhile, or is being retried"):
        parked.skip(GROUP, "3/2", "not ours")
    assert [each.error for each in parked.all(GROUP)] == ["meanwhile"]


def test_parked_and_skipped_cells_of_an_erased_row_alone_are_dropped(
    parked: ParkedCells,
) -> None:
    park(parked, cell(1), cell(2), cell(3, row_key=str(OTHER)), cell(4, row_key=str(OTHER)))
    parked.skip(GROUP, "3/2", "not ours")
    parked.skip(GROUP, "3/4", "not ours")
    entries = [entry for queue in ("parked/", "skipped/") for entry in parked._state.list(queue)]
    assert [is_of_rows(each.key, each.value, {str(ROW)}) for each in entries] == [
        True,
        False,
        True,
        False,
    ]
    assert not is_of_rows("offsets/x", b"{}", {str(ROW)})
    assert parked.forget_row(ROW) == 2
    assert [each.added_id for each in [*parked.all(), *parked.skipped()]] == [3, 4]
    assert parked.forget_row(ROW) == 0


def test_a_reset_removes_parked_entries_behind_the_new_location(parked: ParkedCells) -> None:
    park(parked, cell(4), cell(5), cell(6), cell(9, 8), cell(9, topic="other"))
    gone = parked.come_to_again(GROUP, "trips", {3: 5})
    assert set(gone.values()) == {None}
    parked._state.commit(gone)
    assert {(each.topic, each.partition, each.added_id) for each in parked.all(GROUP)} == {
        ("trips", 3, 4),
        ("trips", 8, 9),
        ("other", 3, 9),
    }


def test_the_first_cell_of_each_row_may_be_retried_when_due_or_asked_for() -> None:
    first, second = cell(1, in_order=True), cell(2, in_order=True)
    elsewhere = cell(3, 4, in_order=True, row_key=str(OTHER))
    free = cell(5)
    assert fronts([first, second, free, elsewhere]) == [first, free, elsewhere]
    assert fronts([first, cell(9, in_order=True, group="another")]) == [
        first,
        cell(9, in_order=True, group="another"),
    ]
    assert due([first, elsewhere], all_due=True) == {3: True, 4: True}
    assert due([first, elsewhere], all_due=False) == {}
    asked = cell(3, 4, retry_asked=True)
    held = cell(6, 5, is_behind=True)
    assert due([first, asked, held], all_due=False) == {4: False, 5: False}


def test_cells_behind_a_parked_one_are_not_counted_as_failed(parked: ParkedCells) -> None:
    park(parked, cell(1), cell(2, is_behind=True), cell(3, group="another"))
    assert (parked.count(GROUP), parked.count_failed(GROUP)) == (2, 1)


def test_a_trigger_is_stopped_until_it_is_resumed(parked: ParkedCells) -> None:
    parked.stop(GROUP, "too many")
    assert parked.stopped_because(GROUP) == "too many"
    assert parked.stopped_because("another") is None
    assert GROUP in parked.groups()
    parked.resume(GROUP, {"also": b"1"})
    assert parked.stopped_because(GROUP) is None
    assert parked._state.get("also") is not None
