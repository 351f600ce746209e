"""The scheduler itself: it comes to every order, to each once, and finds the one that loses an
update."""

from __future__ import annotations

import threading
from math import comb

import pytest

from cellfeed.store.failpoints import declare, failpoint
from tests.races import scheduler
from tests.races.scheduler import Case, Run, Stuck, every_order, one_order, some_orders

POINT = "test.races.point"
declare(POINT)


def counting(steps: int) -> Case:
    def actor() -> None:
        for _ in range(steps):
            failpoint(POINT)

    return Case([actor, actor], lambda _: None)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_the_scheduler_runs_every_order_once(steps: int) -> None:
    orders = [tuple(done.order) for done in every_order(lambda: counting(steps), [POINT])]
    assert len(orders) == len(set(orders)) == comb(2 * (steps + 1), steps + 1)


def lossy() -> Case:
    """A counter that is read, and written behind a point."""
    count = [0]

    def add() -> None:
        seen = count[0]
        failpoint(POINT)
        count[0] = seen + 1

    def check(done: Run) -> None:
        assert count[0] == len(done.ended)

    return Case([add, add], check)


def test_the_scheduler_finds_a_lost_update_and_prints_the_order() -> None:
    with pytest.raises(AssertionError, match=r"in the order \[0, 1, "):
        list(every_order(lossy, [POINT]))
    with pytest.raises(AssertionError, match="in the order"):
        list(some_orders(lossy, [POINT], 1, 50))


def test_a_seed_repeats_its_orders() -> None:
    first, again = (
        [done.order for done in some_orders(lambda: counting(5), [POINT], 7, 10)] for _ in range(2)
    )
    assert first == again
    assert len({tuple(order) for order in first}) > 1


def test_an_order_longer_than_the_run_is_used_as_far_as_it_goes() -> None:
    assert one_order(lambda: counting(1), [POINT], [1, 0, 1]).order == [1, 0, 1, 0]
    assert one_order(lambda: counting(0), [POINT], [1, 1, 1]).order == [1, 0]


def test_too_many_orders_are_no_pass() -> None:
    with pytest.raises(AssertionError, match="more than 10 orders"):
        list(every_order(lambda: counting(3), [POINT], runs_max=10))


def test_a_lock_kept_across_a_switching_point_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "STUCK_S", 0.3)
    lock = threading.Lock()

    def actor() -> None:
        with lock:
            failpoint(POINT)

    with pytest.raises(Stuck, match="does not come back"):
        list(every_order(lambda: Case([actor, actor], lambda _: None), [POINT]))
