"""A cluster's first minion, in every order of events: the watermark never falls (I9), and no
promotion can take back a cell that it showed (I3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.engines.contract.values import Head

ALONE: Final = Role("c1", "a", 0)
JOINED: Final = ALONE.with_minion("b", semi_sync=False)
PUTS: Final = 3
PUT, RECORD = "put", "record"


class State(NamedTuple):
    """``log``: commits on the master, in order. ``copied``: how many of them b has. ``seen_a``,
    ``seen_b``: how many a node had when the process last looked. ``heard``: whether the process has
    taken the new role in. ``shown``: its watermark."""

    log: tuple[str, ...]
    copied: int
    seen_a: int | None
    seen_b: int | None
    heard: bool
    shown: int


@dataclass
class Node:
    name: str
    view: NodeView | None = None
    why_not: str | None = None
    heard_at_s: float = float("inf")


def view(log: tuple[str, ...]) -> NodeView:
    end = log.count(PUT)
    return NodeView(JOINED if RECORD in log else ALONE, {0: Head(0, end, end, 0, 0)})


def watermark(state: State) -> int:
    """The watermark that the process shows now, by the product's own rule."""
    a, b = (
        Node(name, None if seen is None else view(state.log[:seen]))
        for name, seen in (("a", state.seen_a), ("b", state.seen_b))
    )
    cluster = Cluster("c1", [a, b], [0])  # type: ignore[list-item]
    cluster._heard(JOINED if state.heard else ALONE)
    cluster._history_id = ""
    cluster._shown[0] = state.shown
    return cluster.heads(fresh=False)[0].watermark if a.view or b.view else 0


def after(state: State) -> Iterator[State]:
    if state.log.count(PUT) < PUTS:
        yield state._replace(log=(*state.log, PUT))
    if RECORD not in state.log:
        yield state._replace(log=(*state.log, RECORD))
    if state.copied < len(state.log):
        yield state._replace(copied=state.copied + 1)
    yield state._replace(seen_a=len(state.log))
    yield state._replace(seen_b=state.copied)
    if RECORD in state.log[: max(state.seen_a or 0, state.seen_b or 0)]:
        yield state._replace(heard=True)


def test_no_order_of_events_lowers_the_watermark_or_lets_a_promotion_take_shown_cells_back() -> (
    None
):
    states = {State((), 0, None, None, heard=False, shown=0)}
    reached = set(states)
    by_master = by_minion = 0
    while states:
        found = set()
        for state in states:
            for moved in after(state):
                shown = watermark(moved)
                assert shown >= state.shown, (state, moved)
                now = moved._replace(shown=shown)
                if (
                    RECORD in now.log[: now.copied]
                ):  # b is promotable: its own copy of the role names it
                    assert shown <= now.log[: now.copied].count(PUT), (
                        f"shown, and a promotion of b takes it back: {state} {now}"
                    )
                    by_minion += shown == PUTS
                by_master += RECORD not in now.log and shown > 0
                found.add(now)
        states = found - reached
        reached |= found
    assert by_master, "cells were shown by the master's word alone"
    assert by_minion, "cells were shown by the minion's"
    assert len(reached) > 1_000
