"""Puts of several commit groups: the joint result of one call's parts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import cast
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.commit import per_cluster
from cellfeed.store.commit.per_cluster import Writers
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from cellfeed.store.histories import NO_HISTORY

SHARDS = 2


class TwoGroups:
    """Each shard is a group of its own, which fails as the test says."""

    datastore, shards, history = "trips", SHARDS, NO_HISTORY

    def __init__(self) -> None:
        self.fails: dict[int, BaseException] = {}
        self.group_of = {shard: str(shard) for shard in range(SHARDS)}
        self.calls: list[int] = []

    def commit_group(self, shard: int) -> str:
        return self.group_of[shard]

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        shard = shard_of(cells[0].row_key, SHARDS)
        self.calls.append(len(cells))
        if shard in self.fails:
            raise self.fails[shard]
        return [PutResult(Outcome.STORED, shard, n) for n in range(len(cells))]


def cell_of(shard: int) -> NewCell:
    return new_cell(
        next(UUID(int=n) for n in range(1000) if shard_of(UUID(int=n).bytes, SHARDS) == shard),
        "BASE",
        1,
        {},
    )


@pytest.fixture
def engine() -> TwoGroups:
    return TwoGroups()


@pytest.fixture
def writers(engine: TwoGroups) -> Iterator[Writers]:
    opened = Writers(cast("Engine", engine), lambda: None)
    yield opened
    opened.close()


CELLS = [cell_of(0), cell_of(1)]


def test_a_group_that_fails_fails_its_own_cells(engine: TwoGroups, writers: Writers) -> None:
    engine.fails[1] = StorageUnavailable("away")
    assert [each.outcome for each in writers.queue_by_group(CELLS).result(10)] == [
        Outcome.STORED,
        Outcome.FAILED,
    ]


def test_a_defect_in_one_group_leaves_its_cells_unknown(
    engine: TwoGroups, writers: Writers
) -> None:
    engine.fails[1] = KeyError("x")
    stored, unknown = writers.queue_by_group(CELLS).result(10)
    assert stored.outcome is Outcome.STORED
    assert unknown.outcome is Outcome.UNKNOWN
    assert unknown.error is not None
    assert not unknown.error.definite


def test_the_call_is_unknown_when_all_groups_fail_and_one_is_unknown(
    engine: TwoGroups, writers: Writers
) -> None:
    engine.fails = {0: StorageUnavailable("away"), 1: OutcomeUnknown("the commit was sent")}
    with pytest.raises(OutcomeUnknown):
        writers.queue_by_group(CELLS).result(10)
    engine.fails = {0: StorageUnavailable("away"), 1: StorageUnavailable("away, too")}
    with pytest.raises(StorageUnavailable):
        writers.queue_by_group(CELLS).result(10)


def test_a_part_that_cannot_be_queued_leaves_the_others_on_their_way(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writers.queue_by_group(CELLS).result(10)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(writers._writer("1"), "queue", fail)
    stored, failed = writers.queue_by_group(CELLS).result(10)
    assert stored.outcome is Outcome.STORED
    assert failed.outcome is Outcome.UNKNOWN


def test_a_thread_that_the_system_does_not_give_fails_definitely_and_is_asked_for_again(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageUnavailable, match="nothing written"):
            writers.queue_by_group(CELLS)
    assert [each.outcome for each in writers.queue_by_group(CELLS).result(10)] == [
        Outcome.STORED
    ] * 2


def test_a_forked_child_is_refused_at_once(writers: Writers) -> None:
    assert writers.queue_by_group(CELLS).result(10)
    pid = os.fork()
    if pid == 0:
        try:
            writers.queue_by_group(CELLS)
        except StorageUnavailable as error:
            writers.close()
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert writers.queue_by_group(CELLS).result(10)


def test_a_call_of_several_groups_cannot_be_taken_back(writers: Writers) -> None:
    """Parts of it may be written."""
    answer = writers.queue_by_group(CELLS)
    assert not answer.cancel()
    assert [each.outcome for each in answer.result(10)] == [Outcome.STORED] * 2


def test_a_shard_that_moves_out_of_the_one_group_is_committed_apart(
    engine: TwoGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.group_of = dict.fromkeys(range(SHARDS), "c1")
    writers = Writers(cast("Engine", engine), lambda: None)
    try:
        assert writers.queue_by_group(CELLS).result(10)
        engine.group_of[1] = "c2"
        monkeypatch.setattr(per_cluster, "_LOOK_S", -1.0)
        assert writers.queue_by_group(CELLS).result(10)
        assert engine.calls == [2, 1, 1]
    finally:
        writers.close()


def test_a_group_that_is_met_after_the_end_takes_no_cells(engine: TwoGroups) -> None:
    writers = Writers(cast("Engine", engine), lambda: None)
    writers.close()
    for cell in CELLS:
        with pytest.raises(StorageUnavailable, match="closed"):
            writers.queue_by_group([cell])
    assert engine.calls == []
