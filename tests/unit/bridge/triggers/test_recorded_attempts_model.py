"""Tries on record beside a model of them. The table and the model agree after any begins, ends,
time-outs, parked cells, restarts and other owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from cellfeed.bridge.triggers.process_death.recorded_attempts import (
    GroupAttempts,
    RecordedAttempts,
    ShardAttempts,
)
from cellfeed.store.errors import StaleWriter
from tests.support.state_in_memory import StateInMemory

CELLS: Final = st.integers(0, 3)


class TriesOnRecord(RuleBasedStateMachine):
    """One shard. ``recorded`` and ``under_way`` are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.state = StateInMemory()
        self.recorded: dict[int, RecordedAttempts] = {}
        self.under_way: int | None = None
        self.shard = self.opened()
        GroupAttempts(self.state, "others", "trips").of_shards([1])[1].begin(0)

    def opened(self) -> ShardAttempts:
        """As the next owner of the shard reads it."""
        return GroupAttempts(self.state, "billing", "trips").of_shards([1, 2])[1]

    def begun(self, cell: int) -> None:
        if self.under_way not in (None, cell):
            self.recorded.pop(self.under_way, None)
        before = self.recorded.get(cell)
        self.recorded[cell] = RecordedAttempts(before.attempts + 1 if before else 1)
        self.under_way = cell

    @rule(cell=CELLS)
    def begin(self, cell: int) -> None:
        self.shard.begin(cell)
        self.begun(cell)

    @rule()
    def end(self) -> None:
        self.shard.end()
        if self.under_way is not None:
            self.recorded.pop(self.under_way, None)
            self.under_way = None

    @rule(cell=CELLS)
    def strike_off(self, cell: int) -> None:
        self.shard.strike_off(cell)
        self.recorded.pop(cell, None)

    @rule(cell=CELLS)
    def park(self, cell: int) -> None:
        assert self.state.commit(self.shard.parked(cell)) is not None
        self.shard.struck_off(cell)
        self.recorded.pop(cell, None)
        if self.under_way == cell:
            self.under_way = None

    @rule(cell=CELLS, error=st.sampled_from(["it hung", "it hung elsewhere"]))
    def time_out(self, cell: int, error: str) -> None:
        self.shard.note_time_out(cell, error)
        before = self.recorded.get(cell)
        counted = before is not None and self.under_way == cell
        attempts = (before.attempts if before else 0) + (not counted)
        self.recorded[cell] = RecordedAttempts(attempts, timed_out=True, error=error)
        self.under_way = None

    @rule()
    def the_process_ends(self) -> None:
        self.shard, self.under_way = self.opened(), None

    @rule(cell=CELLS, how=st.sampled_from(["begin", "strike off", "time out"]))
    def another_owner_begins(self, cell: int, how: str) -> None:
        overtaken, self.shard = self.shard, self.opened()
        had_it = overtaken.of(cell) is not None
        self.shard.begin(cell)
        self.under_way = None
        self.begun(cell)
        before = dict(self.state.entries)
        if how == "strike off" and not had_it:
            overtaken.strike_off(cell)  # it knows of none, so it writes nothing
        else:
            late: dict[str, Callable[[], None]] = {
                "begin": lambda: overtaken.begin(cell),
                "strike off": lambda: overtaken.strike_off(cell),
                "time out": lambda: overtaken.note_time_out(cell, "late"),
            }
            with pytest.raises(StaleWriter):
                late[how]()
        assert self.state.entries == before

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        mine = self.state.list("tries/billing/trips/1/")
        assert {
            int(entry.key.rpartition("/")[2]): msgspec.json.decode(
                entry.value, type=RecordedAttempts
            )
            for entry in mine
        } == self.recorded
        assert len(self.state.entries) == len(mine) + 1, "the other group's is as it was"

    @invariant()
    def the_owner_knows_it(self) -> None:
        assert {cell: each for cell in range(4) if (each := self.shard.of(cell))} == self.recorded
        assert self.shard.is_empty == (not self.recorded)
        assert self.shard.left_behind() == {
            cell: each for cell, each in self.recorded.items() if cell != self.under_way
        }


def test_tries_on_record_are_those_of_a_model_in_any_order_of_events() -> None:
    run_state_machine_as_test(TriesOnRecord, settings=settings(stateful_step_count=20))
