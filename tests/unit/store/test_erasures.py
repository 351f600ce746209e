"""An erasure that was asked for is ended, with all deaths and absences meanwhile: it is on record,
and a job continues with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store import erasures
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.datastore import Datastore
from cellfeed.store.erasures import ErasureJob, ErasureNotes
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    OutcomeUnknown,
    StaleWriter,
    StorageUnavailable,
)
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, passes, set_failpoint
from tests.support.waiting import wait_until

ROW, OTHER = UUID(int=7), UUID(int=8)
POINTS = sorted(
    name for name in FAILPOINTS if name.startswith(("datastore.erase.", "sqlite.erase."))
)


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    """Of one shard, with three cells of each row."""
    with Datastore.open_embedded(tmp_path, shards=1) as store:
        store.put_cells(
            [(row, "BASE", number, {"n": number}) for number in range(3) for row in (ROW, OTHER)]
        )
        yield store


@pytest.fixture
def job(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> ErasureJob:
    """One for which every note is due."""
    monkeypatch.setattr(erasures, "AGAIN_AFTER_S", 0.0)
    return ErasureJob(datastore.unended_erasures, datastore.end_erasure)


def bodies(datastore: Datastore, row: UUID) -> int:
    return sum(not is_erased(cell.body) for cell in datastore.engine.row_cells(row.bytes))


@pytest.mark.parametrize("at_pass", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_an_erasure_that_dies_anywhere_is_ended_by_the_job(
    point: str, at_pass: int, datastore: Datastore, job: ErasureJob
) -> None:
    forgotten: list[UUID] = []
    datastore.when_erased(forgotten.append)
    set_failpoint(point, "raise", at_pass)
    try:
        datastore.erase_row(ROW)
    except FailpointReached:
        [note] = datastore.unended_erasures.all()
        assert note.row_key == str(ROW)
        assert job.look() == 1
    else:
        assert passes(point) < at_pass, "it is passed so often only where there is more to do"
    assert (bodies(datastore, ROW), bodies(datastore, OTHER)) == (0, 3)
    assert datastore.unended_erasures.all() == []
    assert set(forgotten) == {ROW}
    assert [cell.column_name for cell in datastore.engine.scan(0, 0, 100)][6:] == [ERASED_COLUMN]
    assert job.look() == 0


def test_a_job_that_dies_behind_its_claim_is_followed_by_another(
    datastore: Datastore, job: ErasureJob
) -> None:
    datastore.unended_erasures.begin(ROW)
    set_failpoint("erasures.after_claim", "raise")
    with pytest.raises(FailpointReached):
        job.look()
    assert bodies(datastore, ROW) == 3
    assert job.look() == 1
    assert bodies(datastore, ROW) == 0


@pytest.mark.parametrize(
    "error",
    [
        StorageUnavailable("the master is away"),
        StaleWriter("another epoch"),
        DataDamaged("a body without its dictionary"),
    ],
)
def test_a_failed_erasure_stays_on_record_with_the_reason_until_it_is_done(
    error: CellfeedError, datastore: Datastore, job: ErasureJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(datastore.engine, "erase", away)
        with pytest.raises(
            DataDamaged if isinstance(error, DataDamaged) else OutcomeUnknown
        ) as told:
            datastore.erase_row(ROW)
        assert str(error) in str(told.value)
        assert [note.error for note in datastore.unended_erasures.all()] == [str(error)]
        assert job.look() == 0
        assert [note.error for note in datastore.unended_erasures.all()] == [str(error)]
    assert job.look() == 1
    assert (bodies(datastore, ROW), datastore.unended_erasures.all()) == (0, [])


def test_no_row_is_erased_when_the_erasure_cannot_be_recorded(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailable("the state table is away")

    monkeypatch.setattr(datastore.unended_erasures, "begin", away)
    with pytest.raises(StorageUnavailable):
        datastore.erase_row(ROW)
    assert len(datastore.engine.scan(0, 0, 100)) == 6


def test_an_erasure_under_way_is_left_alone_and_one_of_two_jobs_takes_a_due_one(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = datastore.unended_erasures
    notes.begin(ROW)
    assert notes.claim_due() == []
    monkeypatch.setattr(erasures, "AGAIN_AFTER_S", 0.0)
    commit, taken = datastore.state.commit, list[list[tuple[UUID, int]]]()

    def overtaken(*arguments: object, **more: object) -> int | None:
        monkeypatch.setattr(datastore.state, "commit", commit)
        taken.append(ErasureNotes(datastore.state).claim_due())
        return commit(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(datastore.state, "commit", overtaken)
    assert notes.claim_due() == []
    assert [row for [(row, _)] in taken] == [ROW]


def test_a_note_written_again_is_not_removed_by_the_writer_of_the_earlier_one(
    datastore: Datastore,
) -> None:
    notes = datastore.unended_erasures
    first = notes.begin(ROW)
    second = notes.begin(ROW)
    notes.failed(ROW, first, ValueError("late"))
    notes.end(ROW, first, 6)
    assert [note.error for note in notes.all()] == [""]
    notes.end(ROW, second, 6)
    assert notes.all() == []


def test_the_job_continues_while_the_state_table_is_away_and_ends_when_stopped(
    datastore: Datastore, job: ErasureJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "LOOK_EVERY_S", 0.01)
    datastore.unended_erasures.begin(ROW)
    claim_due: Callable[[], list[tuple[UUID, int]]] = datastore.unended_erasures.claim_due
    looks: list[int] = []

    def away_once() -> list[tuple[UUID, int]]:
        looks.append(1)
        if len(looks) == 1:
            raise StorageUnavailable("the state table is away")
        return claim_due()

    monkeypatch.setattr(datastore.unended_erasures, "claim_due", away_once)
    stop = threading.Event()
    thread = threading.Thread(target=job.run, args=(stop,))
    thread.start()
    try:
        wait_until(
            lambda: bodies(datastore, ROW) == 0 and datastore.unended_erasures.all() == [],
            "the erasure is ended",
        )
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
