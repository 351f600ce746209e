"""A node's circuit breaker, with a clock that the test moves."""

from __future__ import annotations

from cellfeed.store.clusters.serving.breaker import (
    FAILURES_TO_OPEN,
    OPEN_FIRST_S,
    OPEN_MAX_S,
    Breaker,
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(FAILURES_TO_OPEN):
        assert breaker.allows()
        breaker.failed()
    assert breaker.is_open
    return breaker


def test_one_caller_per_wait_is_let_through() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert not breaker.allows()
    clock.now_s += OPEN_FIRST_S
    assert [breaker.allows() for _ in range(3)] == [True, False, False]


def test_a_success_closes_it_and_the_next_wait_is_the_first_one_again() -> None:
    clock = Clock()
    breaker = opened(clock)
    waits = []
    for _ in range(6):
        began_s = clock.now_s
        while not breaker.allows():
            clock.now_s += OPEN_FIRST_S
        waits.append(clock.now_s - began_s)
        breaker.failed()
    assert waits == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert waits[-1] == OPEN_MAX_S
    clock.now_s += OPEN_MAX_S
    assert breaker.allows()
    breaker.succeeded()
    assert not breaker.is_open
    assert [breaker.allows() for _ in range(3)] == [True] * 3
    for _ in range(FAILURES_TO_OPEN):
        breaker.failed()
    clock.now_s += OPEN_FIRST_S
    assert breaker.allows()
