"""Runs two actors in turns that change only at failpoints: in every order (:func:`every_order`), in
orders of a seed (:func:`some_orders`), or in one (:func:`one_order`).

An actor is a function in a thread of its own. It stops at each pass of the points given, before it
does anything, and when it has ended; the schedule says which of them continues. Between two stops
one actor runs alone, so an order is the whole story of a run; the same order gives the same run
again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint

_STEPS_WITH_TURNS: Final = 16
"""Steps of a run within which actors are paused."""

STUCK_S: Final = 20.0
"""A step of an actor takes milliseconds; longer, it waits for the other one, which stands still."""


@dataclass(frozen=True)
class Ended:
    """The end of an actor: its result, or the exception that ended it."""

    result: Any = None
    error: Exception | None = None


@dataclass
class Run:
    """One order of one case. ``order``: the actor of each step; ``passed``: actor and point of each
    stop that was left."""

    order: list[int] = field(default_factory=list)
    passed: list[tuple[int, str]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    def last(self, actor: int, point: str) -> int:
        """The place of the actor's last pass of a point among all; -1 when there was none."""
        return max(
            (place for place, passed in enumerate(self.passed) if passed == (actor, point)),
            default=-1,
        )


@dataclass(frozen=True)
class Case:
    """Two actors over things of their own, and the check that every run must pass; ``close`` is
    called after it."""

    actors: Sequence[Callable[[], Any]]
    check: Callable[[Run], None]
    close: Callable[[], None] = lambda: None


class Stuck(Exception):
    """An actor waits for one that stands at a failpoint: something was locked there."""


class _Actor:
    def __init__(self, number: int, call: Callable[[], Any]) -> None:
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.at = "begin"
        self.ended: Ended | None = None
        self._call = call
        self.thread = threading.Thread(target=self._run, name=f"actor-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.ended = Ended(self._call())
        except Exception as error:
            self.ended = Ended(error=error)
        self._stopped.release()

    def stop_at(self, point: str) -> None:
        self.at = point
        self._stopped.release()
        self._go.acquire()

    def step(self) -> None:
        self._go.release()
        if not self._stopped.acquire(timeout=STUCK_S):
            raise Stuck(f"{self.thread.name} does not come back from {self.at} within {STUCK_S} s")


def run(case: Case, points: Collection[str], choose: Callable[[int, Sequence[int]], int]) -> Run:
    """``choose(step, ready)`` says which of the actors that have not ended continues. The case is
    checked and closed. Raises the check's error."""
    actors = [_Actor(number, call) for number, call in enumerate(case.actors)]
    by_thread = {actor.thread: actor for actor in actors}

    def reached(point: str) -> None:
        if (actor := by_thread.get(threading.current_thread())) is not None:
            actor.stop_at(point)

    for point in points:
        watch_failpoint(point, partial(reached, point))
    done = Run()
    try:
        while ready := [number for number, actor in enumerate(actors) if actor.ended is None]:
            number = choose(len(done.order), ready)
            done.order.append(number)
            done.passed.append((number, actors[number].at))
            actors[number].step()
        done.ended = [actor.ended for actor in actors if actor.ended is not None]
        case.check(done)
    except AssertionError as error:
        raise AssertionError(
            f"{error}\nin the order {done.order}: {done.passed}; ended: {str(done.ended)[:2_000]}"
        ) from error
    finally:
        for point in points:
            unwatch_failpoint(point)
        case.close()
    return done


def every_order(
    make: Callable[[], Case], points: Collection[str], *, runs_max: int = 2_000
) -> Iterator[Run]:
    """Every order of the steps of a case, the first actor's first. Fails when there are more than
    ``runs_max``: nobody should take a part for all."""
    prefix: list[int] = []
    for _ in range(runs_max):
        choices: list[tuple[int, Sequence[int]]] = []

        def choose(step: int, ready: Sequence[int]) -> int:
            chosen = prefix[step] if step < len(prefix) else ready[0]  # noqa: B023 (used in this round alone)
            choices.append((chosen, ready))  # noqa: B023
            return chosen

        yield run(make(), points, choose)
        while choices and choices[-1][0] == choices[-1][1][-1]:
            choices.pop()
        if not choices:
            return
        last, ready = choices[-1]
        prefix = [chosen for chosen, _ in choices[:-1]] + [ready[ready.index(last) + 1]]
    raise AssertionError(f"the case has more than {runs_max} orders: take some of a seed")


def one_order(make: Callable[[], Case], points: Collection[str], order: Sequence[int]) -> Run:
    """This order of steps; an actor that is named there and has ended gives way, with all behind
    it, to the first actor that has not."""

    def choose(step: int, ready: Sequence[int]) -> int:
        return order[step] if step < len(order) and order[step] in ready else ready[0]

    return run(make(), points, choose)


def some_orders(
    make: Callable[[], Case], points: Collection[str], seed: int, runs: int
) -> Iterator[Run]:
    """So many orders by chance: of every second one each step, of the others only where one actor
    is paused for the other one. Most races need a pause or two that last long, which steps by
    chance seldom make."""
    chance = Random(seed)
    for number in range(runs):
        turns = set(chance.sample(range(_STEPS_WITH_TURNS), chance.randint(0, 3)))
        first = chance.randint(0, 1)
        if number % 2:
            yield run(make(), points, lambda _, ready: chance.choice(ready))
        else:
            yield run(
                make(),
                points,
                lambda step, ready: ready[
                    (first + sum(turn <= step for turn in turns)) % 2 % len(ready)  # noqa: B023
                ],
            )
