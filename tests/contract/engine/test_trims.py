"""A trim raises the start of a log and loses no other cell (E15)."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import InvalidLocation, Trimmed, UnknownShard
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, set_failpoint
from tests.support.engine_steps import SHARDS, Clock, EngineMaker, cell, logged, rows_of_shard


def test_e15_a_trim_raises_the_log_start_and_the_cells_below_are_gone_everywhere(
    engine: Engine,
) -> None:
    cells = logged(engine, 10)
    before = engine.heads()
    token = engine.change_token()
    assert engine.trim(1, 4) == 4
    assert engine.heads() == {**before, 1: before[1]._replace(log_start=4)}
    assert engine.change_token() != token
    assert [found.added_id for found in engine.scan(1, 4, 100)] == [4, 5, 6, 7, 8, 9]
    triples = [each.triple for each in cells]
    assert [found is None for found in engine.get(triples)] == [True] * 4 + [False] * 6
    assert [
        found is None for found in engine.latest([(each.row_key, "BASE") for each in cells])
    ] == [True] * 4 + [False] * 6
    assert [not found for found in engine.row([each.row_key for each in cells])] == [True] * 4 + [
        False
    ] * 6


def test_e15_a_scan_from_below_the_log_start_raises_trimmed(engine: Engine) -> None:
    logged(engine, 10)
    engine.trim(1, 4)
    for location in (0, 3):
        with pytest.raises(Trimmed, match=f"location {location} of shard 1 .* begins at 4"):
            engine.scan(1, location, 5)
        with pytest.raises(Trimmed, match="begins at 4"):
            engine.scan_many([LogRange(0, 0, 5), LogRange(1, location, 5)])
    assert engine.scan(0, 0, 5) == []
    assert [len(found) for found in engine.scan_many([LogRange(0, 0, 5), LogRange(1, 4, 5)])] == [
        0,
        5,
    ]
    engine.trim(1, 10)
    with pytest.raises(Trimmed, match="begins at 10"):
        engine.scan(1, 9, 5)
    assert engine.scan(1, 10, 5) == []


def test_e15_a_trim_goes_in_steps_of_so_many_cells_and_bytes(
    engine: Engine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged(engine, 10)
    assert [engine.trim(1, 8, 3) for _ in range(4)] == [3, 6, 8, 8]
    assert engine.trim(1, 2) == 8
    monkeypatch.setattr("cellfeed.store.engines.contract.log_start.TRIM_STEP_BYTES", 1)
    assert engine.trim(1, 10) == 9
    assert engine.trim(1, 10) == 10


def test_e15_an_empty_log_continues_where_it_was(engine: Engine, clock: Clock) -> None:
    cells = logged(engine, 5)
    written_us = clock.now_us
    assert engine.trim(1, 5) == 5
    clock.now_us -= 1_000_000
    [again] = engine.put([cells[0]])
    assert (again.outcome, again.shard, again.added_id) == (Outcome.STORED, 1, 5)
    [found] = engine.scan(1, 5, 10)
    assert found.created_at_us == written_us
    assert engine.heads()[1] == (5, 6, 6, engine.heads()[1].leader_epoch, written_us, 0)


def test_e15_a_trimmed_triple_is_put_again_with_a_new_id_and_then_kept(engine: Engine) -> None:
    cells = logged(engine, 4)
    engine.trim(1, 2)
    changed = new_cell(UUID(bytes=cells[0].row_key), "BASE", 1, {"n": "another"})
    assert [(result.outcome, result.added_id) for result in engine.put([changed, cells[2]])] == [
        (Outcome.STORED, 4),
        (Outcome.EXISTS, 2),
    ]
    assert [result.outcome for result in engine.put([cells[0]])] == [Outcome.CONFLICT]


def test_e15_nothing_beyond_the_end_of_the_log_is_trimmed(engine: Engine) -> None:
    logged(engine, 3)
    assert engine.trim_limits([0, 1]) == {0: 0, 1: 3}
    with pytest.raises(InvalidLocation, match="only cells below 3"):
        engine.trim(1, 4)
    with pytest.raises(UnknownShard):
        engine.trim(SHARDS, 0)
    assert engine.heads()[1].log_start == 0


def test_e15_a_trim_that_dies_is_done_or_not_and_continues(engine: Engine, kind: str) -> None:
    logged(engine, 9)
    died = 0
    for name in sorted(name for name in FAILPOINTS if name.startswith(f"{kind}.trim.")):
        start = engine.heads()[1].log_start
        set_failpoint(name, "raise")
        with pytest.raises(FailpointReached):
            engine.trim(1, start + 2)
        died += 1
        now = engine.heads()[1].log_start
        assert now == (start + 2 if name.endswith("after_commit") else start)
        assert [found.added_id for found in engine.scan(1, now, 10)] == list(range(now, 9))
        assert engine.trim(1, start + 2) == start + 2
    assert died == 3


def test_e15_a_moment_that_was_trimmed_is_located_at_the_log_start(
    engine: Engine, clock: Clock
) -> None:
    for row in rows_of_shard(1, 6):
        clock.now_us += 1_000_000
        engine.put([cell(row=row)])
    moments = [found.created_at_us for found in engine.scan(1, 0, 10)]
    engine.trim(1, 3)
    assert [engine.locate(1, at_us) for at_us in moments] == [3, 3, 3, 3, 4, 5]
    engine.trim(1, 6)
    assert [engine.locate(1, at_us) for at_us in moments] == [6] * 6


def test_e15_puts_scans_and_trims_at_once_lose_nothing(open_engine: EngineMaker) -> None:
    """A tail follows a log that is written and trimmed: it sees every cell once or learns that it
    was too late; it never comes to a hole."""
    engines = [open_engine() for _ in range(3)]
    rows = rows_of_shard(1, 300)
    problems: list[str] = []
    written = threading.Event()

    def put() -> None:
        try:
            for start in range(0, len(rows), 10):
                engines[0].put([cell(row=row) for row in rows[start : start + 10]])
        finally:
            written.set()

    def trim() -> None:
        done = False
        while not done:
            done = written.is_set()  # once more after the last cell
            engines[1].trim(1, max(0, engines[1].heads()[1].watermark - 5), 7)

    def tail() -> None:
        location = 0
        while location < len(rows) and not (
            written.is_set() and location >= engines[2].heads()[1].watermark
        ):
            try:
                found = engines[2].scan(1, location, 7)
            except Trimmed:
                location = engines[2].heads()[1].log_start
                continue
            if [each.added_id for each in found] != list(range(location, location + len(found))):
                problems.append(f"from {location}: {[each.added_id for each in found]}")
            location += len(found)

    threads = [threading.Thread(target=each) for each in (put, trim, tail)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    head = engines[0].heads()[1]
    assert head.next_added_id == 300
    assert head.log_start > 0
    assert [each.added_id for each in engines[0].scan(1, head.log_start, 1_000)] == list(
        range(head.log_start, 300)
    )
