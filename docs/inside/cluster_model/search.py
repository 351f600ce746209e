"""A breadth-first search over all states, and the conditions that each must meet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from docs.inside.cluster_model.clients import (
    buffered_puts,
    drain,
    leases,
    own_cluster,
    settle,
    writes,
)
from docs.inside.cluster_model.faults import faults, replication
from docs.inside.cluster_model.invariants import violation
from docs.inside.cluster_model.promotions import promotions, rejoins
from docs.inside.cluster_model.state import Model, Rules, Scenario, State, Step


@dataclass(frozen=True)
class Found:
    """The result of a search. ``trace``: the shortest way to the violation; empty without one."""

    states: int
    violation: str
    trace: list[str]


class TooManyStatesError(RuntimeError):
    """The search was cut off, so it shows nothing."""


def search(scenario: Scenario, rules: Rules, states_max: int = 2_000_000) -> Found:
    """Visits every state. Ends at the first violation, which has the shortest trace."""
    model = Model(scenario, rules)
    first = model.first()
    for label in scenario.begins:
        first = settle(model, dict(steps(model, first))[label])
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        if problem := violation(model, state):
            return Found(len(came_from), problem, [*scenario.begins, *_trace(came_from, state)])
        for label, reached in steps(model, state):
            after = settle(model, reached)
            if after not in came_from:
                came_from[after] = (state, label)
                waiting.append(after)
        if len(came_from) > states_max:
            raise TooManyStatesError(f"{scenario.name}: more than {states_max} states")
    return Found(len(came_from), "", [])


def steps(model: Model, state: State) -> Iterator[Step]:
    yield from writes(model, state)
    yield from leases(model, state)
    yield from replication(model, state)
    yield from faults(model, state)
    yield from promotions(model, state)
    yield from rejoins(model, state)
    if "copy" in model.scenario.kinds:
        yield from buffered_puts(model, state)
        yield from drain(model, state)
        yield from own_cluster(state)


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels = []
    while (step := came_from[state]) is not None:
        state, label = step
        labels.append(label)
    return labels[::-1]
