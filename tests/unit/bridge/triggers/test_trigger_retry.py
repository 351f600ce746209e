"""Retry policies by the kind of an error, and the mistakes that are refused when a trigger is
written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.retry import (
    DEFAULT_RETRY,
    ProcessEnded,
    RetryPolicy,
    TimedOut,
    policy_for,
)
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest
from tests.support.trigger_steps import GROUP, Worker, row


class Declined(Exception):
    pass


class DeclinedForGood(Declined):
    pass


ONCE, TWICE, SIX = RetryPolicy(1), RetryPolicy(2), RetryPolicy(6)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        (Declined, TWICE),
        (DeclinedForGood, ONCE),
        (KeyError, SIX),
        (TimedOut, RetryPolicy(3)),
        (ProcessEnded, SIX),
        (SystemExit, RetryPolicy()),
    ],
)
def test_the_policy_of_the_nearest_class_counts(
    kind: type[BaseException], policy: RetryPolicy
) -> None:
    retry: dict[type[BaseException], RetryPolicy] = {
        Exception: SIX,
        Declined: TWICE,
        DeclinedForGood: ONCE,
        OSError: RetryPolicy(3),
    }
    assert policy_for(retry, kind) == policy
    assert policy_for(TWICE, kind) == TWICE


def test_the_default_policy_lasts_minutes_and_spares_processes() -> None:
    policy = policy_for(DEFAULT_RETRY, ConnectionError)
    assert 120 <= sum(policy.wait_s(each) for each in range(1, policy.attempts)) <= 300
    assert policy_for({ValueError: ONCE}, ConnectionError) == policy
    for kind in (ProcessEnded, TimedOut):
        assert policy_for(DEFAULT_RETRY, kind).attempts == 5


def test_a_cell_is_tried_as_often_as_the_policy_for_its_error_allows(datastore: Datastore) -> None:
    tries: list[UUID] = []
    errors = {row(0): ValueError, row(1): DeclinedForGood, row(2): Declined, row(3): KeyError}

    @trigger(
        column="BASE",
        group=GROUP,
        retry={
            Declined: RetryPolicy(3, 0, 0),
            DeclinedForGood: ONCE,
            Exception: RetryPolicy(2, 0, 0),
        },
    )
    def work(row_key: UUID) -> None:
        tries.append(row_key)
        raise errors[row_key](f"about {row_key}")

    datastore.put_cells([(row_key, "BASE", 1, {}) for row_key in errors])
    worker = Worker(datastore, work)
    worker.work()
    assert [tries.count(row(number)) for number in range(4)] == [2, 1, 3, 2]
    parked = {UUID(cell.row_key): cell for cell in worker.parked.all(GROUP)}
    assert {row_key: cell.attempts for row_key, cell in parked.items()} == {
        row_key: tries.count(row_key) for row_key in errors
    }
    assert all(
        f"{errors[row_key].__name__}" in cell.error and str(row_key) in cell.error
        for row_key, cell in parked.items()
    )


def test_the_tries_count_together_when_the_error_changes(datastore: Datastore) -> None:
    raised: list[type[Exception]] = []

    @trigger(
        column="BASE",
        group=GROUP,
        retry={Declined: RetryPolicy(5, 0, 0), ValueError: RetryPolicy(3, 0, 0)},
    )
    def work(row_key: UUID) -> None:
        raised.append(Declined if len(raised) < 3 else ValueError)
        raise raised[-1]

    datastore.put_cell(row(0), "BASE", 1, {})
    Worker(datastore, work).work()
    assert raised == [Declined, Declined, Declined, ValueError]


def test_an_exit_in_the_function_is_a_failure_like_any_other(datastore: Datastore) -> None:
    @trigger(column="BASE", group=GROUP, retry=ONCE)
    def work(row_key: UUID) -> None:
        raise SystemExit(3)

    datastore.put_cell(row(0), "BASE", 1, {})
    worker = Worker(datastore, work)
    worker.work()
    assert "SystemExit: 3" in worker.parked.all(GROUP)[0].error


def test_a_damaged_body_parks_its_cell_and_readers_without_bodies_do_not_notice(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[UUID] = []

    @trigger(column="BASE", group="with-body", retry=ONCE)
    def reads(row_key: UUID, *, cell: Cell) -> None:
        ran.append(row_key)

    @trigger(column="BASE", group="without-body", retry=ONCE)
    def does_not(row_key: UUID) -> None:
        ran.append(row_key)

    datastore.put_cell(row(0), "BASE", 1, {})
    scan = datastore.engine.scan
    monkeypatch.setattr(
        datastore.engine,
        "scan",
        lambda *place: [cell._replace(body=b"\x02damaged") for cell in scan(*place)],
    )
    for function in (reads, does_not):
        worker = Worker(datastore, function)
        worker.work()
    assert ran == [row(0)]
    assert ["DataDamaged" in cell.error for cell in worker.parked.all()] == [True]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"batch": 10_001},
        {"batch": True},
        {"batch_wait_s": 1},
        {"batch": 5, "batch_wait_s": -1},
        {"timeout_s": 0},
        {"retry": 3},
        {"retry": {ValueError: 3}},
        {"retry": {"ValueError": ONCE}},
        {"start": "newest"},
        {"start": datetime(2026, 1, 1)},  # noqa: DTZ001 (without a time zone: that is what is refused)
        {"start": {0: -1}},
        {"start": 7},
    ],
)
def test_an_invalid_trigger_declaration_is_refused_at_the_decorator(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        trigger("BASE", **wrong)


def test_a_function_of_batches_that_wants_one_cell_is_refused() -> None:
    def work(cells: Sequence[Cell], *, cell: Cell) -> None:
        del cells, cell

    with pytest.raises(InvalidRequest, match="list of cells"):
        trigger("BASE", batch=5)(work)


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"attempts": 1.5}, {"first_wait_s": -1}, {"longest_wait_s": -1}]
)
def test_a_policy_without_a_try_or_with_a_negative_wait_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        RetryPolicy(**wrong)
