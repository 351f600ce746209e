"""An erasure takes the bodies of a row, leaves their places and refuses later puts (E20, E21)."""

from __future__ import annotations

from uuid import UUID

import pytest

from cellfeed.store.cells.body_codec import ERASED_BODY, decode_body, is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import RowErased
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, set_failpoint
from tests.support.engine_steps import EngineMaker, cell, erase, log, rows_of_shard


def test_e20_an_erasure_takes_the_bodies_of_a_row_and_leaves_every_place_and_every_other_cell(
    engine: Engine,
) -> None:
    row, *others = rows_of_shard(1, 4)
    engine.put(
        [
            cell(number, row=each, column=column)
            for number, each in enumerate((row, *others))
            for column in ("BASE", "STATUS")
        ]
    )
    engine.put([cell(9, row=row, ref_key=7)])
    before = engine.scan(1, 0, 100)
    heads = engine.heads()
    assert erase(engine, row) == (9, 3)
    after = engine.scan(1, 0, 100)
    assert after[:9] == [
        found._replace(body=ERASED_BODY) if found.row_key == row.bytes else found
        for found in before
    ]
    assert after[9]._replace(created_at_us=0) == (9, row.bytes, ERASED_COLUMN, 0, 0, ERASED_BODY)
    assert after[9].created_at_us >= before[-1].created_at_us
    assert decode_body(after[9].body) == ERASED_JSON
    now = engine.heads()
    assert now[1][:4] == (0, 10, 10, heads[1].leader_epoch)
    assert now[1].erasures != heads[1].erasures
    assert {shard: head for shard, head in now.items() if shard != 1} == {
        shard: head for shard, head in heads.items() if shard != 1
    }
    assert ERASED_COLUMN in engine.columns()


def test_e20_every_cell_of_a_row_can_be_listed(engine: Engine) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(row=each, ref_key=ref_key) for ref_key in range(5) for each in (row, other)])
    assert [found.added_id for found in engine.row_cells(row.bytes)] == [0, 2, 4, 6, 8]
    assert [found.added_id for found in engine.row_cells(row.bytes, 2, 2)] == [4, 6]
    assert engine.row_cells(UUID(int=1 << 100).bytes) == []


def test_e20_a_repeated_erasure_changes_nothing(engine: Engine) -> None:
    [row] = rows_of_shard(1, 1)
    engine.put([cell(row=row)])
    assert erase(engine, row) == (1, 1)
    log_then, heads, token = log(engine), engine.heads(), engine.change_token()
    assert erase(engine, row) == (1, 0)
    assert (log(engine), engine.heads(), engine.change_token()) == (log_then, heads, token)


def test_e20_a_long_row_goes_in_steps_and_the_first_adds_the_entry(engine: Engine) -> None:
    [row] = rows_of_shard(1, 1)
    engine.put([cell(row=row, ref_key=ref_key) for ref_key in range(5)])
    steps = [engine.erase(row.bytes, 2) for _ in range(3)]
    assert [(step.added_id, step.cells, step.done) for step in steps] == [
        (5, 2, False),
        (5, 2, False),
        (5, 1, True),
    ]
    assert all(is_erased(found.body) for found in engine.scan(1, 0, 100))
    assert engine.heads()[1].next_added_id == 6


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_e20_an_erasure_lists_the_cells_of_its_row_once_page_by_page(
    engine: Engine, limit: int
) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(row=row, ref_key=ref_key) for ref_key in range(5)])
    engine.put([cell(row=other, ref_key=ref_key) for ref_key in range(5)])
    found: list[int] = []
    while page := engine.row_cells(row.bytes, found[-1] if found else -1, limit):
        assert len(page) <= limit
        found += [each.added_id for each in page]
    assert found == [0, 1, 2, 3, 4]


def test_e20_an_erasure_is_in_the_log_before_any_body_is_removed(engine: Engine) -> None:
    [row] = rows_of_shard(1, 1)
    engine.put([cell(row=row, ref_key=ref_key) for ref_key in range(3)])
    counts = [engine.heads()[1].erasures]
    for cells_max, taken in (
        (0, (3, 0, False)),
        (0, (3, 0, False)),
        (2, (3, 2, False)),
        (2, (3, 1, True)),
        (0, (3, 0, True)),
    ):
        step = engine.erase(row.bytes, cells_max)
        assert (step.added_id, step.cells, step.done) == taken
        counts.append(engine.heads()[1].erasures)
    assert len(set(counts)) == 4, (
        "once told, and with each step that took bodies, readers drop what they kept"
    )
    [refused] = engine.put([cell(row=row, ref_key=9)])
    assert refused.outcome is Outcome.FAILED


def test_e20_an_erasure_that_dies_is_done_or_not_and_continues(engine: Engine, kind: str) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(row=each, ref_key=ref_key) for ref_key in range(4) for each in (row, other)])
    died = 0
    for name in sorted(
        (name for name in FAILPOINTS if name.startswith(f"{kind}.erase.")), reverse=True
    ):  # the one before the commit first
        left = [
            found
            for found in engine.scan(1, 0, 100)
            if found.row_key == row.bytes and not is_erased(found.body)
        ]
        set_failpoint(name, "raise")
        with pytest.raises(FailpointReached):
            engine.erase(row.bytes, 2)
        died += 1
        now = [
            found
            for found in engine.scan(1, 0, 100)
            if found.row_key == row.bytes and not is_erased(found.body)
        ]
        assert len(now) == len(left) - 2 * name.endswith("after_commit")
    assert died == 2
    erase(engine, row, 2)
    assert engine.heads()[1].next_added_id == 9
    assert [is_erased(found.body) for found in engine.scan(1, 0, 100)] == [True, False] * 4 + [True]


def test_e21_puts_to_an_erased_row_are_refused_and_the_others_of_the_call_are_written(
    engine: Engine,
) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(1, row=row)])
    erase(engine, row)
    results = engine.put(
        [cell(1, row=row), cell(2, row=other), cell(3, row=row, column="NEW"), cell(2, row=other)]
    )
    assert [(result.outcome, result.shard, result.added_id) for result in results] == [
        (Outcome.FAILED, 1, None),
        (Outcome.STORED, 1, 2),
        (Outcome.FAILED, 1, None),
        (Outcome.EXISTS, 1, 2),
    ]
    assert decode_body(engine.scan(1, 2, 1)[0].body) == cell(2, row=other).body_json
    for refused in (results[0], results[2]):
        assert isinstance(refused.error, RowErased)
        assert (refused.error.definite, refused.error.retriable, refused.acknowledged) == (
            True,
            False,
            False,
        )
    assert [result.outcome for result in engine.put([cell(1, row=row)])] == [Outcome.FAILED]
    assert engine.heads()[1].next_added_id == 3


def test_e21_a_row_without_cells_can_be_erased_and_puts_are_refused_from_then_on(
    open_engine: EngineMaker,
) -> None:
    [row] = rows_of_shard(2, 1)
    assert erase(open_engine(), row) == (0, 0)
    assert [result.outcome for result in open_engine().put([cell(row=row)])] == [Outcome.FAILED]


def test_e21_a_trim_beyond_the_entry_ends_it(engine: Engine) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(row=row)])
    erase(engine, row)
    engine.put([cell(row=other)])
    engine.trim(1, 1)
    assert [result.outcome for result in engine.put([cell(row=row)])] == [Outcome.FAILED]
    engine.trim(1, 2)
    assert [(result.outcome, result.added_id) for result in engine.put([cell(row=row)])] == [
        (Outcome.STORED, 3)
    ]
