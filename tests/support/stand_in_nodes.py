"""Nodes of a cluster as values: they say as a test has them say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.breaker import Breaker
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.engines.contract.values import Head

ROLE = Role("c1", "a", 1, ["b", "c"])


def head(next_added_id: int, erasures: int = 0, epoch: int = 1, log_start: int = 0) -> Head:
    return Head(log_start, next_added_id, next_added_id, epoch, 0, erasures)


def named(engine: Any) -> str:
    """The name of the node that answers a call: it stands in the place of the engine, or is in
    it."""
    return str(getattr(engine, "name", engine))


class Node:
    """The calls that a cluster makes to a node. ``after_call`` happens while a call is under way;
    ``on_look`` when it is looked at; ``engine`` is the answer to a call, the node's name where
    there is none."""

    is_damaged = False
    damaged: str | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.view: NodeView | None = None
        self.why_not: str | None = None
        self.heard_at_s = time.monotonic()
        self.is_foreign = False
        self.refused = None
        self.breaker = Breaker()
        self.promised = -1
        self.on_role: Callable[[Role], str | None] = lambda _: None
        self.aborted = self.calls = self.asked = 0
        self.engine: Any = None
        self.after_call: Callable[[], None] = lambda: None
        self.on_look: Callable[[], None] = lambda: None

    def says(self, next_added_id: int, role: Role = ROLE, **more: int) -> None:
        self.view = NodeView(role, {0: head(next_added_id, **more)})
        self.heard_at_s = time.monotonic()
        self.on_role(role)

    def refuse(self, reason: str) -> None:
        self.is_foreign, self.view, self.why_not = True, None, reason

    def is_confirmed(self) -> bool:
        return True

    def ask(self) -> int:
        self.asked += 1
        return 0

    def wait(self, ticket: int, slow_s: float) -> None:
        """Answers at once."""
        self.on_look()

    def promised_epoch(self, history_id: str, since_s: float) -> int:
        return self.promised

    def abort(self) -> None:
        self.aborted += 1

    def call(self, what: Callable[[Any], Any], timeout_s: float = 1.0) -> Any:
        assert timeout_s > 0
        self.calls += 1
        value = what(self.engine or self.name)
        self.after_call()
        return value
