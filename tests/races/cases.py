"""Pairs of acts at once, over coordination in the store and in ZooKeeper. Each has a
coordinator of its own, as two processes have."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec
from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.bridge.gateway.apis import api_08_offset_commit
from cellfeed.bridge.gateway.groups.slot_claims import ClaimedSlot, SlotClaims
from cellfeed.bridge.gateway.groups.slot_owners import GROUP as GATEWAYS
from cellfeed.bridge.gateway.groups.spread import SLOTS
from cellfeed.bridge.gateway.nodes import register
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.roles import Role, change_role, read_role, write_role
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import InvalidRequest, NotFound, RowErased, StaleWriter, Unavailable
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.races.scheduler import Case, Run
from tests.support.parked import parked_cell

if TYPE_CHECKING:
    from cellfeed.bridge.gateway.context import GatewayContext

TTL_S: Final = 600.0
GROUP, TOPIC = "g", "trips"
STATE: Final = ("cas.state.before", "cas.state.after")
POINTS: Final = {
    "in the store": STATE,
    "in ZooKeeper": (*STATE, "cas.zookeeper.before", "cas.zookeeper.after"),
}
"""By kind of coordination, where turns change."""

FEW_POINTS: Final = {"in the store": STATE, "in ZooKeeper": ("cas.zookeeper.before",)}
"""The same for every order: a step in ZooKeeper is announced in the state table, so there are too
many with those."""


class Place:
    """A state table, a ZooKeeper, and anybody who uses them."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._folder = Path(tempfile.mkdtemp(prefix="cellfeed-races-"))
        self.state = SqliteState(self._folder / "state.sqlite3")
        self._tree = ZooKeeperTree()
        self._opened: list[Coordinator] = []

    def coordinator(self) -> Coordinator:
        if self._kind == "in the store":
            return StoreCoordinator(self.state)
        address = ZooKeeperAddress("in memory")
        self._opened.append(
            ZooKeeperCoordinator(
                address, self.state, connect=lambda _, timeout_s: self._tree.begin(timeout_s)
            )
        )
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close()
        self.state.close()
        shutil.rmtree(self._folder)


def holds(coordinator: Coordinator, claims: Mapping[int, Claim]) -> list[int]:
    """The partitions whose offsets these claims still save."""
    held = []
    for partition, claim in claims.items():
        try:
            coordinator.commit_offsets(GROUP, {}, claims=[claim])
        except StaleWriter:
            continue
        held.append(partition)
    return held


def two_claim(kind: str) -> Case:
    """Two members claim the same partitions: each has one owner, and the owner knows it."""
    place = Place(kind)
    both = [place.coordinator(), place.coordinator()]
    sessions = [each.join(GROUP, name, TTL_S) for each, name in zip(both, "ab", strict=True)]

    def check(done: Run) -> None:
        claims = [ended.result for ended in done.ended]
        assert all(each is not None for each in claims), "a claim failed"
        assert sorted(holds(both[0], claims[0]) + holds(both[1], claims[1])) == [0, 1]
        assert sorted([*claims[0], *claims[1]]) == [0, 1]

    return Case(
        [
            partial(each.claim, session, TOPIC, [0, 1])
            for each, session in zip(both, sessions, strict=True)
        ],
        check,
        place.close,
    )


def ended_session_claims(kind: str) -> Case:
    """A member claims while another process joins under its name: from then on the first one's
    session takes nothing."""
    place = Place(kind)
    first, second = place.coordinator(), place.coordinator()
    session = first.join(GROUP, "a", TTL_S)

    def check(done: Run) -> None:
        claims, joined = done.ended
        assert joined.error is None
        decides = "cas.state.before" if kind == "in the store" else "cas.zookeeper.before"
        taken, renamed = done.last(0, decides), done.last(1, decides)
        if claims.result and taken > renamed:
            raise AssertionError(f"a session that had ended claimed {claims.result}")

    return Case(
        [lambda: first.claim(session, TOPIC, [0]), lambda: second.join(GROUP, "a", TTL_S)],
        check,
        place.close,
    )


def offsets_beside_a_takeover(kind: str, *, by_gateway: bool = False) -> Case:
    """An owner saves an offset while the partition becomes another one's, which reads it and
    continues: no work is taken back, none is skipped."""
    place = Place(kind)
    old, new = place.coordinator(), place.coordinator()
    session, next_session = old.join(GROUP, "a", TTL_S), new.join(GROUP, "b", TTL_S)
    claims = old.claim(session, TOPIC, [0])

    async def now(call: Callable[..., None], *about: object, **how: object) -> None:
        call(*about, **how)

    def save() -> None:
        if by_gateway:
            gateway = SimpleNamespace(
                cluster=SimpleNamespace(claim=lambda _: claims[0]), offsets=old, in_coordination=now
            )
            answer = asyncio.run(
                api_08_offset_commit._save(
                    cast("GatewayContext", gateway), GROUP, {(TOPIC, 0): CommittedOffset(5)}
                )
            )
            if answer is not ErrorCode.none:
                raise StaleWriter(str(answer))
            return
        old.commit_offsets(GROUP, {(TOPIC, 0): CommittedOffset(5)}, claims=[claims[0]])

    def take_over() -> tuple[bool, int | None]:
        new.leave(session) if kind == "in the store" else new.release(list(claims.values()))
        mine = new.claim(next_session, TOPIC, [0])
        if not mine:
            return False, None
        found = new.fetch_offsets(GROUP, [(TOPIC, 0)]).get((TOPIC, 0))
        new.commit_offsets(GROUP, {(TOPIC, 0): CommittedOffset(9)}, claims=list(mine.values()))
        return True, found.offset if found else None

    def check(done: Run) -> None:
        saved, taken = done.ended
        assert isinstance(saved.error, StaleWriter | None)
        assert taken.error is None
        if taken.result[0]:
            assert new.fetch_offsets(GROUP)[(TOPIC, 0)].offset == 9, (
                "the old owner moved the offset back"
            )
            assert taken.result[1] == (5 if saved.error is None else None), (
                "an offset that was saved was not shown to the next owner"
            )

    return Case([save, take_over], check, place.close)


def a_gateway_loses_its_slots(kind: str) -> Case:
    """A gateway learns its slots while its session ends and another one takes them: no generation
    is both's."""
    place = Place(kind)
    address = ("127.0.0.1", 9092)
    old, new = [
        SlotClaims(
            place.coordinator(),
            place.state,
            name,
            register(place.state, name, {"": address}, address),
            TTL_S,
        )
        for name in "ab"
    ]
    admin = place.coordinator()
    for gateway in (old, new):
        gateway._renew()

    def take_all() -> object:
        admin.leave(admin.join(GATEWAYS, "a", TTL_S))
        return new.step({}).slots

    def check(done: Run) -> None:
        told, taken = done.ended
        assert isinstance(told.error, StaleWriter | Unavailable | None)
        assert isinstance(taken.error, StaleWriter | Unavailable | None)
        before, after = old.step_without_coordination(), new.step_without_coordination()
        both = [
            slot
            for slot in set(before) & set(after)
            if before[slot].first < after[slot].end and after[slot].first < before[slot].end
        ]
        assert not both, f"generations of {len(both)} slots are two gateways'"

    return Case([lambda: old.step({}).slots, take_all], check, place.close)


def _slots_taken(gateway: SlotClaims) -> Mapping[int, ClaimedSlot]:
    return gateway.step({}).slots


def two_gateways_take_slots(kind: str) -> Case:
    """Two gateways begin at once: every slot has one, and no generation is reserved twice."""
    place = Place(kind)
    address = ("127.0.0.1", 9092)
    gateways = [
        SlotClaims(
            place.coordinator(),
            place.state,
            name,
            register(place.state, name, {"": address}, address),
            TTL_S,
        )
        for name in "ab"
    ]

    def check(done: Run) -> None:
        looks = [gateway.step_without_coordination() for gateway in gateways]
        assert done.ended
        shared = set(looks[0]) & set(looks[1])
        assert not [
            slot
            for slot in shared
            if looks[0][slot].first < looks[1][slot].end
            and looks[1][slot].first < looks[0][slot].end
        ], "reserved twice"
        assert set(looks[0]) | set(looks[1]) <= set(range(SLOTS))

    return Case([partial(_slots_taken, gateway) for gateway in gateways], check, place.close)


CELL = parked_cell(0, 7, group=GROUP, topic=TOPIC, row_key=str(UUID(int=7)))


def retry_beside_a_skip(ran: bool) -> Case:
    """A parked cell runs again (or fails again) while somebody skips it: it is one of both, never
    both, and a skip that was told stays."""
    place = Place("in the store")
    parked = ParkedCells(place.state)
    place.state.commit(parked.entry(CELL))

    def retry() -> bool | None:
        if ran:
            return parked.resolved(CELL)
        parked.failed_again(CELL, "again")
        return None

    def check(done: Run) -> None:
        again, skip = done.ended
        assert again.error is None
        assert isinstance(skip.error, NotFound | None)
        skipped = skip.error is None
        assert len(parked.skipped()) == skipped
        if ran:
            assert again.result is not skipped, "it was told as run and as skipped, or as neither"
            assert parked.all() == []
        else:
            assert len(parked.all()) == (not skipped)
            assert sum(each.attempts for each in parked.all()) == (0 if skipped else 2)

    return Case([retry, lambda: parked.skip(GROUP, CELL.cell_id, "gone")], check, place.close)


def retry_asked_beside_a_run() -> Case:
    """Somebody asks for a retry of a cell that runs just now: it does not come back on the
    queue."""
    place = Place("in the store")
    parked = ParkedCells(place.state)
    place.state.commit(parked.entry(CELL))

    def check(done: Run) -> None:
        run, asked = done.ended
        assert run.error is None
        assert run.result
        assert isinstance(asked.error, NotFound | InvalidRequest | None)
        assert parked.all() == [], "a cell that has run is parked again"

    return Case(
        [lambda: parked.resolved(CELL), lambda: parked.ask_retry(GROUP, CELL.cell_id)],
        check,
        place.close,
    )


def two_change_the_role() -> Case:
    """Two supervisors change a role that both have read: one of them has."""
    place = Place("in the store")
    role = Role("c1", "a", 3, [])
    write_role(place.state, role)
    changed = [msgspec.structs.replace(role, minions=minions) for minions in (["b"], ["c"])]

    def check(done: Run) -> None:
        told = [ended.result for ended in done.ended]
        assert sorted(told) == [False, True], f"both, or neither: {told}"
        assert read_role(place.state) == changed[told.index(True)]

    return Case(
        [partial(change_role, place.state, role, new) for new in changed], check, place.close
    )


def erasure_beside(what: str) -> Case:
    """A row is erased while it is put to, or erased by another one: afterwards it has no body, and
    the log reports it once."""
    folder = Path(tempfile.mkdtemp(prefix="cellfeed-races-"))
    store = Datastore.open_embedded(folder, shards=1)
    row = UUID(int=5)
    store.engine.put([new_cell(row, "BASE", 1, {"name": "Jane"})])

    def put() -> Any:
        [result] = store.engine.put([new_cell(row, "BASE", 2, {"name": "Jane"})])
        return result

    def check(done: Run) -> None:
        erased, other = done.ended
        assert erased.error is None
        cells = store.engine.row_cells(row.bytes)
        assert store.get_row(row) == {}
        assert [cell.body for cell in cells] == [b"\x04"] * len(cells), "a body is left"
        assert sum(cell.ref_key == 0 for cell in cells) == 1
        if what == "a put":
            stored = other.result.outcome is Outcome.STORED
            assert stored or isinstance(other.result.error, RowErased)
            assert len(cells) == 2 + stored
        else:
            assert other.error is None
            assert other.result.added_id == erased.result.added_id
        assert list(store.unended_erasures.all()) == []

    def close() -> None:
        store.close()
        shutil.rmtree(folder)

    return Case(
        [lambda: store.erase_row(row), put if what == "a put" else lambda: store.erase_row(row)],
        check,
        close,
    )


OF_COORDINATION: Final[Mapping[str, Callable[[str], Case]]] = {
    "two claim": two_claim,
    "an ended session claims": ended_session_claims,
    "offsets beside a takeover": offsets_beside_a_takeover,
    "group offsets of a gateway beside a takeover": partial(
        offsets_beside_a_takeover, by_gateway=True
    ),
    "two gateways take slots": two_gateways_take_slots,
    "a gateway loses its slots": a_gateway_loses_its_slots,
}
"""Cases by their events, for each kind of coordination."""

IN_STATE: Final[Mapping[str, Callable[[], Case]]] = {
    "a cell runs beside a skip": lambda: retry_beside_a_skip(ran=True),
    "a cell fails beside a skip": lambda: retry_beside_a_skip(ran=False),
    "a retry is asked beside a run": retry_asked_beside_a_run,
    "two change a role": two_change_the_role,
}
