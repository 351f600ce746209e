"""Which gateway coordinates which groups, step by step, over both coordinations: one holder at a
time, generations only rise, a paused one finds out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.bridge.gateway.groups.active_notes import ActiveGroup
from cellfeed.bridge.gateway.groups.slot_claims import SlotClaims
from cellfeed.bridge.gateway.groups.slot_owners import slots_by_gateway
from cellfeed.bridge.gateway.groups.spread import SLOTS
from cellfeed.bridge.gateway.limits import GENERATIONS_RESERVED
from cellfeed.bridge.gateway.nodes import all_nodes, register
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import StaleWriter, Unavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from cellfeed.testing.zookeeper_tree import ZooKeeperTree

TTL_S = 10.0


class Place:
    """A coordination and a state table whose clocks the test moves."""

    def __init__(self, state: SqliteState) -> None:
        self.state = state
        self.now_s = 1_700_000_000.0
        self.coordinator: Coordinator

    def gateway(self, name: str) -> SlotClaims:
        node = register(self.state, name, {"default": ("127.0.0.1", 9092)}, ("127.0.0.1", 8081))
        return SlotClaims(self.coordinator, self.state, name, node, TTL_S, lambda: self.now_s)


@pytest.fixture(params=["store", "zookeeper in memory"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as state:
        place = Place(state)
        monkeypatch.setattr(state, "now_us", lambda: int(place.now_s * 1e6))
        if request.param == "store":
            place.coordinator = StoreCoordinator(state, clock=lambda: place.now_s)
            yield place
            return
        tree = ZooKeeperTree()
        opened = ZooKeeperCoordinator(
            ZooKeeperAddress("in memory"),
            state,
            clock=lambda: place.now_s,
            connect=lambda _, timeout_s: tree.begin(timeout_s),
        )
        with closing(opened) as place.coordinator:
            yield place


def test_a_node_id_is_given_once_to_a_name_and_never_to_another(place: Place) -> None:
    first = register(place.state, "a", {"default": ("h", 1)}, ("h", 2))
    second = register(place.state, "b/ä", {"default": ("h", 3)}, ("h", 4))
    again = register(place.state, "a", {"default": ("elsewhere", 5)}, ("h", 2))
    third = register(place.state, "c", {}, ("h", 6))
    assert [first.node_id, second.node_id, again.node_id, third.node_id] == [1, 2, 1, 3]
    assert all_nodes(place.state)["a"].listeners == {"default": ("elsewhere", 5)}
    assert set(all_nodes(place.state)) == {"a", "b/ä", "c"}


def test_the_first_gateway_has_every_slot_and_gives_half_of_them_to_the_second(
    place: Place,
) -> None:
    a, b = place.gateway("a"), place.gateway("b")
    assert len(a.step({}).slots) == SLOTS
    assert b.step({}).slots == {}, "nothing is to be had before the first has given it back"
    ours = a.step({}).slots
    theirs = b.step({}).slots
    assert len(ours) == len(theirs) == SLOTS // 2
    assert not ours.keys() & theirs.keys()
    assert {name: len(slots) for name, slots in slots_by_gateway(place.coordinator).items()} == {
        "a": 25,
        "b": 25,
    }


def test_a_gateway_that_leaves_gives_its_slots_back_at_once(place: Place) -> None:
    a, b = place.gateway("a"), place.gateway("b")
    for gateway in (a, b, a, b):
        gateway.step({})
    a.leave()
    look = b.step({})
    assert len(look.slots) == SLOTS
    assert list(look.nodes) == ["b"]


def test_generations_begin_above_any_that_an_earlier_coordinator_can_have_used(
    place: Place,
) -> None:
    a, b = place.gateway("a"), place.gateway("b")
    before = a.step({}).slots
    a.leave()
    after = b.step({}).slots
    assert all(after[slot].first >= before[slot].end for slot in range(SLOTS))
    b.leave()
    again = place.gateway("a").step({}).slots
    assert all(again[slot].first >= after[slot].end for slot in range(SLOTS))


def test_more_generations_are_reserved_before_the_present_ones_run_out(place: Place) -> None:
    a = place.gateway("a")
    held = a.step({}).slots[7]
    used = held.first + GENERATIONS_RESERVED // 2 + 1
    more = a.step({7: used}).slots
    assert more[7].end == held.end + GENERATIONS_RESERVED
    assert more[7].first == held.first, "the tenure is the same"
    assert more[8].end == held.end
    a.leave()
    assert place.gateway("b").step({}).slots[7].first >= more[7].end


def test_a_gateway_that_was_paused_past_its_session_has_lost_its_slots_and_commits_nothing(
    place: Place,
) -> None:
    a, b = place.gateway("a"), place.gateway("b")
    old = a.step({}).slots
    place.now_s += TTL_S + 1
    new = b.step({}).slots
    assert len(new) == SLOTS
    place.coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(9)}, claims=[new[3].claim])
    assert place.now_s > a.confirmed_until_s
    with pytest.raises(StaleWriter):
        place.coordinator.commit_offsets(
            "g", {("trips", 0): CommittedOffset(5)}, claims=[old[3].claim]
        )
    with pytest.raises(StaleWriter):
        place.coordinator.delete_offsets("g", claims=[old[3].claim])
    assert place.coordinator.fetch_offsets("g")[("trips", 0)].offset == 9
    assert a.step_without_coordination() == {}, "the state table tells it, too"
    assert a.step({}).slots == {}
    assert len(b.step({}).slots) == len(a.step({}).slots) == SLOTS // 2


def test_a_session_that_ended_while_no_other_gateway_lived_changes_no_group(
    place: Place,
) -> None:
    a = place.gateway("a")
    before = a.step({}).slots
    place.now_s += TTL_S + 1
    assert a.step_without_coordination().keys() == before.keys()
    after = a.step({}).slots
    assert {slot: held.first for slot, held in after.items()} == {
        slot: held.first for slot, held in before.items()
    }
    place.coordinator.commit_offsets(
        "g", {("trips", 0): CommittedOffset(5)}, claims=[after[3].claim]
    )


def test_a_second_process_of_the_same_name_ends_the_first(place: Place) -> None:
    a = place.gateway("a")
    a.step({})
    place.now_s += 1
    again = place.gateway("a")
    assert len(again.step({}).slots) == SLOTS, (
        "a gateway that was killed and started again waits for no session"
    )
    place.now_s += TTL_S / 2
    with pytest.raises(StaleWriter, match="another process"):
        a.step({})


@pytest.mark.parametrize("point", ["gateway.slots_claimed", "gateway.slots_reserved"])
def test_a_gateway_that_dies_while_taking_slots_over_leaves_them_to_be_taken(
    place: Place, point: str
) -> None:
    a, b = place.gateway("a"), place.gateway("b")
    before = a.step({}).slots
    a.leave()
    set_failpoint(point, "raise")
    with pytest.raises(FailpointReached):
        b.step({})
    clear_failpoints()
    place.now_s += TTL_S + 1
    after = place.gateway("c").step({}).slots
    assert len(after) == SLOTS
    assert all(after[slot].first >= before[slot].end for slot in range(SLOTS))


def test_a_step_that_failed_half_way_is_made_good_by_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.gateway("a")
    with monkeypatch.context() as patched:

        def away(*_: object, **__: object) -> None:
            raise Unavailable("the coordination is away")

        patched.setattr(place.coordinator, "commit_offsets", away)
        with pytest.raises(Unavailable):
            a.step({})
        assert a.step_without_coordination() == {}, (
            "a slot without reserved generations is not coordinated"
        )
    assert len(a.step({}).slots) == SLOTS


def test_slots_that_another_gateway_coordinated_meanwhile_begin_again(place: Place) -> None:
    """It came and left while this one was paused: the slots are free, and their groups are no
    longer the same."""
    a, b = place.gateway("a"), place.gateway("b")
    before = a.step({}).slots
    place.now_s += TTL_S + 1
    between = b.step({}).slots
    b.leave()
    after = a.step({}).slots
    assert len(after) == SLOTS
    for slot in range(SLOTS):
        assert after[slot].first >= between[slot].end > before[slot].end
        assert after[slot].epoch > before[slot].epoch


def test_a_gateway_is_sure_of_its_slots_for_a_session_from_before_it_asked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.gateway("a")
    assert a.confirmed_until_s == 0
    began_s = place.now_s
    a.step({})
    assert a.confirmed_until_s == began_s + TTL_S
    place.now_s = began_s + TTL_S / 3 - 0.1
    a.step({})
    assert a.confirmed_until_s == began_s + TTL_S, "it is not asked at every step"
    place.now_s = began_s + TTL_S / 3
    renew = place.coordinator.renew

    def slowly(session: Session) -> Session:
        place.now_s += 2
        return renew(session)

    monkeypatch.setattr(place.coordinator, "renew", slowly)
    a.step({})
    assert a.confirmed_until_s == began_s + TTL_S / 3 + TTL_S
    assert place.now_s == began_s + TTL_S / 3 + 2


def test_a_gateway_that_takes_a_slot_over_knows_its_groups_with_members(place: Place) -> None:
    a, b = place.gateway("a"), place.gateway("b")
    assert a.step({}).slots[7].active == {}
    place.state.commit(
        {
            f"gateways/groups/{slot}/{name}": msgspec.json.encode(ActiveGroup(name, timeout_s))
            for slot, name, timeout_s in ((7, "g", 45.0), (7, "h", 10.0), (8, "i", 6.0))
        }
    )
    a.leave()
    slots = b.step({}).slots
    assert slots[7].active == {"g": 45.0, "h": 10.0}
    assert slots[8].active == {"i": 6.0}
    assert slots[9].active == {}
