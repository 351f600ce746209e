"""A state of the model, the rules of the design, and a scenario that bounds a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from docs.inside.cluster_model.logs import Logs, Role, View

NODES = (0, 1, 2)
NOBODY = -1


class SemiSync(IntEnum):
    """``FALLS_BACK``: enabled with the server's own time-out, or with the wait point
    AFTER_COMMIT."""

    OFF = 0
    FALLS_BACK = 1
    WAITS = 2


class Own(IntEnum):
    """The buffered cell in its own cluster's log, which the model abstracts to this."""

    ABSENT = 0
    ON_MASTER = 1
    ON_MINION = 2
    OTHER_BODY = 3


class Job(IntEnum):
    """How far process 0 is with its buffered put. ``ENDED``: answered ``unknown``; ``FAILED``:
    answered "definitely not written"."""

    IDLE = 0
    ADDING = 1
    ADDED = 2
    MAYBE_ADDED = 3
    REFUSED = 4
    ACCEPTING = 5
    BUFFERED = 6
    ENDED = 7
    FAILED = 8


class Node(NamedTuple):
    """``log`` is durable. ``cut``: no node and no promotion reaches it, processes still do.
    ``open``: not ``read_only``. ``follows``: the node it receives from, unless it is ``stopped``.
    ``promised``: the highest epoch of a promotion that it was asked for."""

    up: bool
    cut: bool
    log: int
    open: bool
    semi_sync: SemiSync
    follows: int
    stopped: bool = False
    promised: int = 0


class Pending(NamedTuple):
    """A commit in its master's log that nobody has answered. ``log``: the log that ends with it.
    ``needs_minion``: its answer needs a minion that has received it."""

    node: int
    log: int
    needs_minion: bool
    kind: str


class Process(NamedTuple):
    """``seen``: version and commit of the lease as it knows it."""

    pending: Pending | None
    seen: tuple[int, int]


class Promotion(NamedTuple):
    """A promotion under way. ``phase``: the step that comes next. ``role``: the role that it
    replaces, and from the raise on the one that it makes. ``epoch``: the one that it raises to."""

    phase: str
    role: Role
    candidates: tuple[int, ...]
    gave_up: tuple[int, ...]
    planned: bool
    epoch: int


class Budget(NamedTuple):
    """How many more of each a search may do."""

    writes: int = 0
    crashes: int = 0
    cuts: int = 0
    promotions: int = 0
    rejoins: int = 0
    give_ups: int = 0
    kills: int = 0
    own_losses: int = 0


class State(NamedTuple):
    """``acknowledged``: the promises to callers. ``shown``: the cells that readers saw, by id.
    ``drained``: the ``accepted`` flag that the drain read with the copy; None before."""

    nodes: tuple[Node, ...]
    processes: tuple[Process, ...]
    promotion: Promotion | None
    budget: Budget
    acknowledged: frozenset[tuple[Any, ...]]
    shown: tuple[int, ...]
    commits: int
    own: Own
    job: Job
    drained: bool | None
    violation: str


@dataclass(frozen=True)
class Rules:
    """The design. Each switch is a rule; ``PLANTS`` breaks one at a time."""

    state_is_guarded: bool = True
    buffer_is_guarded: bool = True
    state_asks_read_only: bool = True
    guard_asks_how_it_waits: bool = True
    unchanged_answers_wait: bool = True
    revision_gap: int = 100
    role_is_live: bool = True
    semi_sync_with_first_minion: bool = True
    guard_asks_the_masters_role: bool = True
    promotion_is_promised: bool = True
    collected_stay_stopped: bool = True
    promoted_has_heard_of_a_minion: bool = True
    raise_asks_for_newer: bool = True
    rejoin_asks_lineage: bool = True
    switch_waits: bool = True
    erasure_waits: bool = True
    maybe_added_counts: bool = True
    drain_waits: bool = True
    drain_asks_again: bool = True
    rejoin_asks_prefix: bool = True


@dataclass(frozen=True)
class Scenario:
    """A bounded search. ``kinds``: the writes of processes. ``minions``: those of the first role.
    ``restarts_with``: semi-synchronous replication as the servers' own configuration has it.
    ``keeps_all``: no fault happens, so an asynchronous commit must survive, too. ``begins``: the
    steps that are taken before the search begins."""

    name: str
    about: str
    kinds: frozenset[str]
    budget: Budget
    semi_sync: bool = True
    minions: tuple[int, ...] = (1, 2)
    restarts_with: SemiSync = SemiSync.OFF
    planned: bool = False
    keeps_all: bool = False
    begins: tuple[str, ...] = ()


Step = tuple[str, State]


class Model:
    """One scenario under one set of rules."""

    def __init__(self, scenario: Scenario, rules: Rules) -> None:
        self.scenario, self.rules = scenario, rules
        self.logs = Logs()

    def first(self) -> State:
        semi_sync = self.scenario.semi_sync and bool(self.scenario.minions)
        log = self.logs.append(-1, ("raise", 3, 0, self.scenario.minions, semi_sync, 0))
        minion_mode = SemiSync.WAITS if semi_sync else SemiSync.OFF
        nodes = tuple(
            Node(
                True,
                False,
                log,
                node == 0,
                minion_mode if node == 0 else SemiSync.OFF,
                0 if node in self.scenario.minions else NOBODY,
            )
            for node in NODES
        )
        processes = tuple(Process(None, (0, 0)) for _ in range(2))
        return State(
            nodes,
            processes,
            None,
            self.scenario.budget,
            frozenset(),
            (),
            0,
            Own.ABSENT,
            Job.IDLE,
            None,
            "",
        )

    def view(self, node: Node) -> View:
        return self.logs.views[node.log]

    def has(self, state: State, node: int, log: int) -> bool:
        """Whether the node's log begins with that log."""
        return self.logs.is_prefix(log, state.nodes[node].log)

    def is_received(self, state: State, pending: Pending) -> bool:
        """A minion says so for every transaction that it receives, with anything else in its
        log."""
        return any(
            node != pending.node
            and (self.has(state, node, pending.log) or self._took(state.nodes[node], pending))
            for node in NODES
        )

    def _took(self, node: Node, pending: Pending) -> bool:
        path, place = self.view(node).path, len(self.logs.views[pending.log].path) - 1
        return (
            node.follows == pending.node
            and place < len(path)
            and self.logs.views[path[place]].last == self.logs.views[pending.log].last
        )

    def visible(self, state: State, node: int) -> View:
        """A reader's view of the node: with AFTER_SYNC a commit shows once a minion has it."""
        log = state.nodes[node].log
        path = self.logs.views[log].path
        for process in state.processes:
            pending = process.pending
            if (
                pending
                and pending.node == node
                and pending.needs_minion
                and not self.is_received(state, pending)
            ):
                length = self.logs.views[pending.log].length - 1
                path = path[:length]
        return self.logs.views[path[-1]]


def with_node(state: State, number: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:number], node, *state.nodes[number + 1 :]))


def with_process(state: State, number: int, process: Process) -> State:
    return state._replace(
        processes=(*state.processes[:number], process, *state.processes[number + 1 :])
    )


def spend(state: State, what: str) -> State | None:
    """The state with one less of its budget; None when nothing of it is left."""
    left: int = getattr(state.budget, what)
    return state._replace(budget=state.budget._replace(**{what: left - 1})) if left else None


def cut_off_clients(state: State, node: int) -> State:
    """Ends the calls under way on a node: their callers know no outcome."""
    for number, process in enumerate(state.processes):
        pending = process.pending
        if pending is not None and pending.node == node:
            state = with_process(state, number, process._replace(pending=None))
            if pending.kind == "copy":
                state = state._replace(job=Job.MAYBE_ADDED)
            elif pending.kind == "accept":
                state = state._replace(job=Job.ENDED)
    return state


def reachable(state: State) -> tuple[int, ...]:
    """The nodes that a promotion, or a rejoin, reaches."""
    return tuple(node for node in NODES if state.nodes[node].up and not state.nodes[node].cut)


def newest(roles: Iterator[Role]) -> Role:
    return max(roles, key=lambda role: role.age)
