"""An answer is one that was true at a moment of the look, through all events between its reads:
cells run, are parked, resolved and given up, and operators move the group. No place is said to be
passed before it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.history import Deed, entry
from cellfeed.bridge.outlets.groups import GroupOutlet
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.waits.waiting import Passed
from tests.support.parked import parked_cell

TOPIC, SHARD, CELLS = "trips", 0, 6
Op = tuple[str, int]
OPS = st.tuples(
    st.sampled_from(["run", "run", "park", "resolve", "give up", "move"]), st.integers(0, CELLS)
)


class Group:
    """The real fate of the cells of one shard, beside the entries that record it."""

    def __init__(self, state: StateTable, name: str) -> None:
        self.state, self.name = state, name
        self.coordinator, self.parked = StoreCoordinator(state), ParkedCells(state)
        self.position = 0
        self.cells = ["pending"] * CELLS

    def do(self, op: Op) -> None:
        what, at = op
        if what == "run" and self.position < CELLS:
            self._pass("handled", {})
        elif what == "park" and self.position < CELLS:
            self._pass("parked", self.parked.entry(self._cell(self.position)))
        elif what in ("resolve", "give up") and at < CELLS and self.cells[at] == "parked":
            if what == "resolve":
                self.parked.resolved(self._cell(at))
                self.cells[at] = "handled"
            else:
                self.parked.skip(self.name, f"{SHARD}/{at}", "enough")
                self.cells[at] = "skipped"
        elif what == "move":
            self._move(at)

    def _pass(self, became: str, entries: Any) -> None:
        offsets = {(TOPIC, SHARD): CommittedOffset(self.position + 1)}
        self.coordinator.commit_offsets(self.name, offsets, entries=entries)
        self.cells[self.position] = became
        self.position += 1

    def _move(self, to: int) -> None:
        deed = Deed(
            group=self.name,
            action="reset",
            by="a test",
            because="order",
            at_us=self.state.now_us(),
            before={SHARD: self.position},
            after={SHARD: to},
        )
        again = self.parked.come_to_again(self.name, TOPIC, {SHARD: to})
        self.coordinator.commit_offsets(
            self.name, {(TOPIC, SHARD): CommittedOffset(to)}, entries={**again, **entry(deed)}
        )
        for added_id in range(CELLS):
            if added_id >= to:
                self.cells[added_id] = "pending"
            elif added_id >= self.position:
                self.cells[added_id] = "skipped"
        self.position = to

    def _cell(self, added_id: int) -> ParkedCell:
        return parked_cell(
            SHARD,
            added_id,
            group=self.name,
            topic=TOPIC,
            parked_at_us=self.state.now_us(),
            last_tried_at_us=0,
        )

    def truth(self, places: Places) -> tuple[str, ...]:
        return tuple(self.cells[places.first : places.last + 1])


class Between:
    """Does the next thing before each read."""

    def __init__(self, read: Any, do_next: Callable[[], None]) -> None:
        self._read, self._do_next = read, do_next

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._read, name)
        if name not in ("get", "list", "fetch_offsets"):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self._do_next()
            return found(*arguments, **options)

        return call


class _Datastore:
    name, shards = TOPIC, 1

    def __init__(self, state: Any) -> None:
        self.state = state


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateTable]:
    folder: Path = tmp_path_factory.mktemp("store")
    with Datastore.open_embedded(folder, TOPIC, 1) as opened:
        yield opened.state


_names = iter(range(1 << 30))


def answers(state: StateTable, before: Sequence[Op], during: Sequence[Op], places: Places) -> None:
    """Asserts that a look among these steps gives no answer that was not true while it looked."""
    group = Group(state, f"group {next(_names)}")
    for op in before:
        group.do(op)
    truths, left = [group.truth(places)], list(during)

    def do_next() -> None:
        if left:
            group.do(left.pop(0))
            truths.append(group.truth(places))

    outlet = GroupOutlet(
        "trigger",
        group.name,
        cast("Datastore", _Datastore(Between(state, do_next))),
        cast("Coordinator", Between(group.coordinator, do_next)),
    )
    passed = outlet.passed([places])
    if passed is None:
        assert during or "pending" in truths[0], "it was passed, and nothing came between"
        return
    assert said(passed, places) in truths


def said(passed: Passed, places: Places) -> tuple[str, ...]:
    """The answer's word on each place."""
    parked = {each.added_id for each in passed.parked}
    skipped = {added_id for each in passed.skipped for added_id in range(each.first, each.last + 1)}
    assert not parked & skipped
    return tuple(
        "parked" if each in parked else "skipped" if each in skipped else "handled"
        for each in range(places.first, places.last + 1)
    )


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(OPS, max_size=12),
    st.lists(OPS, max_size=8),
    st.tuples(st.integers(0, CELLS - 1), st.integers(0, 2)),
)
def test_every_answer_is_true_at_one_moment(
    state: StateTable, before: list[Op], during: list[Op], at: tuple[int, int]
) -> None:
    first, more = at
    answers(state, before, during, Places(SHARD, first, min(CELLS - 1, first + more)))


@pytest.mark.parametrize("pause", range(8))
def test_a_parked_cell_that_is_reached_again_is_never_taken_for_handled(
    state: StateTable, pause: int
) -> None:
    waiting: list[Op] = [("resolve", CELLS)] * pause
    answers(state, [("park", 0)], [*waiting, ("move", 0)], Places(SHARD, 0, 0))


@pytest.mark.parametrize("pause", range(12))
def test_a_cell_given_up_meanwhile_is_either_parked_or_skipped(
    state: StateTable, pause: int
) -> None:
    waiting: list[Op] = [("resolve", CELLS)] * pause
    answers(state, [("park", 0)], [*waiting, ("give up", 0)], Places(SHARD, 0, 0))


def test_a_group_that_began_later_has_skipped_the_places_before(state: StateTable) -> None:
    name = "began later"
    start = {"start": "latest", "settled_at_us": 1, "locations": [3], "origin_id": ""}
    state.commit({f"starts/began%20later/{TOPIC}": msgspec.msgpack.encode(start)})
    coordinator = StoreCoordinator(state)
    coordinator.commit_offsets(name, {(TOPIC, SHARD): CommittedOffset(5)})
    outlet = GroupOutlet("trigger", name, cast("Datastore", _Datastore(state)), coordinator)

    passed = outlet.passed([Places(SHARD, 2, 3)])
    assert passed is not None
    assert said(passed, Places(SHARD, 2, 3)) == ("skipped", "handled")
    assert not passed.handled
