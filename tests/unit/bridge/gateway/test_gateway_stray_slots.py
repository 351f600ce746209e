"""A gateway compares its slots with the claims in the coordination. Claims that it should not have
would keep their groups from every gateway; without the claims that it should have it would refuse
every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway.groups.slot_claims import SlotClaims
from cellfeed.bridge.gateway.groups.slot_owners import slots_by_gateway
from cellfeed.bridge.gateway.groups.spread import SLOTS
from cellfeed.bridge.gateway.nodes import register
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable, Unavailable

TTL_S = 10.0


class Instance:
    """A coordination in a state table, whose calls may fail once. Tests move its clock."""

    def __init__(self, state: SqliteState) -> None:
        self.state = state
        self.now_s = 0.0
        self.coordinator = StoreCoordinator(state, clock=lambda: self.now_s)

    def gateway(self, name: str) -> SlotClaims:
        node = register(self.state, name, {"default": ("127.0.0.1", 9092)}, ("127.0.0.1", 8081))
        return SlotClaims(self.coordinator, self.state, name, node, TTL_S, lambda: self.now_s)

    def fail_once(self, monkeypatch: pytest.MonkeyPatch, call: str, *, done: bool) -> None:
        """The next call of that name fails; ``done``: only behind its work."""
        real: Callable[..., Any] = getattr(self.coordinator, call)

        def failing(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(self.coordinator, call, real)
            if not done:
                raise StorageUnavailable("the master is away: nothing written")
            real(*args, **kwargs)
            raise OutcomeUnknown("the master went away before it answered")

        monkeypatch.setattr(self.coordinator, call, failing)

    def slots(self) -> dict[str, int]:
        return {name: len(slots) for name, slots in slots_by_gateway(self.coordinator).items()}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as state:
        yield Instance(state)


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
def test_slots_whose_release_failed_are_given_back_by_the_next_step(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    a, b = instance.gateway("a"), instance.gateway("b")
    a.step({})
    b.step({})
    instance.fail_once(monkeypatch, "release", done=done)
    with pytest.raises(Unavailable):
        a.step({})
    assert len(a.step({}).slots) == SLOTS // 2
    assert len(b.step({}).slots) == SLOTS // 2
    assert instance.slots() == {"a": SLOTS // 2, "b": SLOTS // 2}


@pytest.mark.parametrize("call", ["claim", "commit_offsets"])
def test_slots_that_were_claimed_by_a_step_that_failed_go_to_a_gateway_that_came_meanwhile(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """``commit_offsets`` reserves their generations."""
    a, b = instance.gateway("a"), instance.gateway("b")
    instance.fail_once(monkeypatch, call, done=True)
    with pytest.raises(Unavailable):
        a.step({})
    assert instance.slots() == {"a": SLOTS}
    assert b.step({}).slots == {}
    assert len(a.step({}).slots) == SLOTS // 2
    assert len(b.step({}).slots) == SLOTS // 2


def test_a_gateway_looks_for_such_slots_until_a_step_has_given_them_back(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = instance.gateway("a"), instance.gateway("b")
    a.step({})
    b.step({})
    for _ in range(3):
        instance.fail_once(monkeypatch, "release", done=False)
        with pytest.raises(Unavailable):
            a.step({})
    a.step({})
    assert len(b.step({}).slots) == SLOTS // 2


def test_a_gateway_whose_steps_succeed_does_not_look_for_such_slots(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = instance.gateway("a")
    a.step({})
    monkeypatch.setattr(
        instance.coordinator, "owners", lambda *_: pytest.fail("it looks at each step")
    )
    a.step({})


def test_slots_that_were_taken_over_before_a_late_renewal_are_claimed_again(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master was away, or the process stopped, between the look at the lease and its commit."""
    a, b = instance.gateway("a"), instance.gateway("b")
    a.step({})
    instance.now_s += 0.9 * TTL_S
    commit = instance.state.commit

    def late(write: Mapping[str, bytes | None], expect: Mapping[str, int | None]) -> int | None:
        monkeypatch.setattr(instance.state, "commit", commit)
        instance.now_s += 0.2 * TTL_S
        assert len(b.step({}).slots) == SLOTS, "the session has ended for the other gateway"
        return commit(write, expect)

    monkeypatch.setattr(instance.state, "commit", late)
    a.step({})
    b.step({})
    slots = a.step({}).slots
    assert len(slots) == SLOTS // 2
    instance.coordinator.commit_offsets(
        "readers",
        {("trips", 0): CommittedOffset(9)},
        claims=[each.claim for each in slots.values()],
    )
