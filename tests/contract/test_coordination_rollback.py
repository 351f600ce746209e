"""C8: a coordination that went back in time, or is another one, is noticed; over a ZooKeeper in
memory and over a real one whose data directory is put back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Session
from cellfeed.bridge.coordination.zookeeper import history, witness
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress, parse_zookeeper_url
from cellfeed.bridge.gateway.groups.slot_claims import SlotClaims
from cellfeed.bridge.gateway.groups.slot_owners import GROUP as GATEWAYS
from cellfeed.bridge.gateway.groups.slot_owners import why_stopped
from cellfeed.bridge.gateway.nodes import register
from cellfeed.bridge.triggers.offsets.lineage import accept, changed_lineage
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import CellfeedError, StaleWriter, Unavailable
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from cellfeed.testing.zookeeper_tree import TreeCopy, ZooKeeperTree
from tests.support import local_zookeeper
from tests.support.local_zookeeper import ZooKeeper
from tests.support.waiting import wait_until

GROUP = "g"
T = TypeVar("T")


class Server(Protocol):
    """A ZooKeeper whose disk can be another one."""

    def open(self, state: SqliteState, clock: Callable[[], float]) -> ZooKeeperCoordinator: ...

    def copy(self) -> None: ...

    def go_back(self) -> None: ...

    def wipe(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.tree = ZooKeeperTree()
        self._copy: TreeCopy | None = None

    def open(self, state: SqliteState, clock: Callable[[], float]) -> ZooKeeperCoordinator:
        return ZooKeeperCoordinator(
            ZooKeeperAddress("in memory"),
            state,
            clock=clock,
            connect=lambda _, timeout_s: self.tree.begin(timeout_s),
        )

    def copy(self) -> None:
        self._copy = self.tree.copy()

    def go_back(self) -> None:
        assert self._copy is not None
        self.tree.go_back(self._copy)

    def wipe(self) -> None:
        self.tree.wipe()


class Real:
    def __init__(self, directory: Path) -> None:
        self.server = ZooKeeper(directory / "zookeeper")
        self._backup = directory / "backup"
        self.server.start()

    def open(self, state: SqliteState, clock: Callable[[], float]) -> ZooKeeperCoordinator:
        return ZooKeeperCoordinator(
            parse_zookeeper_url(f"{self.server.url}/here?timeout_s=10"), state, clock=clock
        )

    def copy(self) -> None:
        self.server.copy(self._backup)

    def go_back(self) -> None:
        self.server.kill()
        self.server.go_back(self._backup)
        self.server.start()

    def wipe(self) -> None:
        self.server.kill()
        self.server.wipe()
        self.server.start()


class Fleet:
    """Coordinators, each as of a process of its own, with one state table."""

    def __init__(self, server: Server, state: SqliteState, opened: ExitStack) -> None:
        self.server, self.state, self._opened = server, state, opened

    def process(self, clock: Callable[[], float] = lambda: 0.0) -> ZooKeeperCoordinator:
        return self._opened.enter_context(closing(self.server.open(self.state, clock)))


@pytest.fixture(params=["in memory", "real"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as opened:
        server: Server = InMemory()
        if request.param == "real":
            if reason := local_zookeeper.why_not():
                pytest.skip(reason)
            server = Real(tmp_path)
            opened.callback(server.server.kill)
        yield Fleet(
            server, opened.enter_context(closing(SqliteState(tmp_path / "state.sqlite3"))), opened
        )


def claimed(process: ZooKeeperCoordinator, member: str, shard: int = 0) -> tuple[Session, Claim]:
    session = reached(lambda: process.join(GROUP, member, 30))
    return session, process.claim(session, "trips", [shard])[shard]


def reached(call: Callable[[], T]) -> T:
    """Of a process whose connection was just lost: it is tried until there is one again."""
    found: list[T] = []

    def tried() -> bool:
        try:
            found.append(call())
        except Unavailable:
            return False
        return True

    wait_until(tried, "ZooKeeper is back")
    return found[0]


def save(process: ZooKeeperCoordinator, claim: Claim, offset: int, **entries: bytes) -> None:
    process.commit_offsets(
        GROUP,
        {("trips", claim.partition): CommittedOffset(offset)},
        claims=[claim],
        entries=entries or None,
    )


def offset(process: ZooKeeperCoordinator) -> int:
    return reached(lambda: process.fetch_offsets(GROUP))[("trips", 0)].offset


def test_c8_an_overtaken_process_saves_nothing_in_a_coordination_that_went_back_to_its_own_time(
    fleet: Fleet,
) -> None:
    now_s = [0.0]
    paused, heir = fleet.process(lambda: now_s[0]), fleet.process()
    _, old = claimed(paused, "paused")
    save(paused, old, 50)
    fleet.server.copy()
    now_s[0] = 60.0
    reached(lambda: paused.members(GROUP))  # its lease ran out
    session, new = claimed(heir, "heir")
    save(heir, new, 90)
    before = heir.lineage(GROUP)
    fleet.server.go_back()
    assert offset(heir) == 50, "it did not go back"
    for process, claim in ((paused, old), (heir, new)):
        with pytest.raises(StaleWriter):
            reached(partial(save, process, claim, 91))
    assert offset(heir) == 50
    assert reached(lambda: heir.lineage(GROUP)) != before
    again = reached(lambda: heir.renew(session))
    assert again.epoch > session.epoch
    token = reached(lambda: heir.claim(again, "trips", [0]))[0].token
    assert token > new.token


def test_c8_a_claim_of_a_time_that_never_was_is_void_although_its_number_is_given_out_again(
    fleet: Fleet,
) -> None:
    first, second = fleet.process(), fleet.process()
    fleet.process().commit_offsets(GROUP, {("trips", 0): CommittedOffset(1)})
    fleet.server.copy()
    _, lost = claimed(first, "first")
    save(first, lost, 10)
    fleet.server.go_back()
    _, there = claimed(second, "second")
    save(second, there, 20)
    assert (there.token, there.identity) > (lost.token, "")
    assert there.identity != lost.identity
    with pytest.raises(StaleWriter):
        reached(lambda: save(first, lost, 11))
    assert offset(second) == 20


def test_c8_a_process_that_only_saved_since_finds_its_claim_void(fleet: Fleet) -> None:
    process = fleet.process()
    session, claim = claimed(process, "a")
    save(process, claim, 50)
    fleet.server.copy()
    reached(lambda: save(process, claim, 90))
    before = process.lineage(GROUP)
    wait_until(
        lambda: process._history._saves == process._history._saves_marked, "the save is marked"
    )
    marked = fleet.state.list("coordination/history/witnesses/")
    time.sleep(2 * history.MARK_EVERY_S)
    assert fleet.state.list("coordination/history/witnesses/") == marked, (
        "it marks although nothing was saved"
    )
    fleet.server.go_back()
    with pytest.raises(StaleWriter):
        reached(lambda: save(process, claim, 91))
    assert offset(process) == 50
    assert reached(lambda: process.lineage(GROUP)) != before
    assert reached(lambda: process.renew(session)).epoch > session.epoch


def test_c8_offsets_saved_just_before_the_end_are_marked(fleet: Fleet) -> None:
    with closing(fleet.server.open(fleet.state, lambda: 0.0)) as process:
        _, claim = claimed(process, "a")
        before = process.lineage(GROUP)
        fleet.server.copy()
        reached(lambda: save(process, claim, 90))
    fleet.server.go_back()
    assert reached(lambda: fleet.process().lineage(GROUP)) != before


def test_c8_entries_are_written_also_where_it_went_back_unnoticed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.bridge.coordination.zookeeper.sessions.MARK_EVERY_S", 1_000.0)
    process = fleet.process()
    _, claim = claimed(process, "a")
    fleet.server.copy()
    for number in range(30):
        reached(partial(save, process, claim, number + 1, **{f"before-{number}": b"x"}))
    process._history._saves_marked = (
        process._history._saves
    )  # as if it went back within a moment after these saves
    fleet.server.go_back()
    for number in range(20):
        reached(partial(save, process, claim, number + 1, **{f"after-{number}": b"x"}))
    assert process.why_changed() is None, "no claim was lost, only saves"
    assert [number for number in range(20) if fleet.state.get(f"after-{number}") is None] == []


def test_c8_entries_are_written_although_the_clock_of_the_groups_first_process_was_wrong(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ahead:
        ahead.setattr("time.time", lambda: 1_900_000_000.0)
        process = fleet.process()
        _, claim = claimed(process, "a")
        save(process, claim, 1, before=b"x")
    fleet.server.wipe()
    later = fleet.process()
    _, claim = claimed(later, "a")
    save(later, claim, 2, after=b"x")
    assert fleet.state.get("after") is not None


def test_c8_a_rollback_is_noticed_although_no_process_ran_during_it(fleet: Fleet) -> None:
    with closing(fleet.server.open(fleet.state, lambda: 0.0)) as process:
        _, claim = claimed(process, "a")
        save(process, claim, 1)
        assert changed_lineage(fleet.state, process, GROUP) is None
        before = process.lineage(GROUP)
    fleet.server.copy()
    with closing(fleet.server.open(fleet.state, lambda: 0.0)) as process:
        session = reached(lambda: process.join(GROUP, "a", 30))
        wait_until(
            lambda: bool(process.claim(session, "trips", [0])), "the first session has ended"
        )
        [claim] = process.claim(session, "trips", [0]).values()
        save(process, claim, 9)
        assert changed_lineage(fleet.state, process, GROUP) is None
        assert process.lineage(GROUP) == before
    fleet.server.go_back()
    looker = fleet.process()
    reason = reached(lambda: changed_lineage(fleet.state, looker, GROUP))
    assert reason is not None
    assert "it went back in time: it lacks the last writes of 1 of 2 processes" in reason
    accept(fleet.state, looker, GROUP, "trips")
    assert changed_lineage(fleet.state, looker, GROUP) is None
    assert claimed(looker, "b")[1].token > claim.token


def test_c8_a_restart_is_no_new_era(fleet: Fleet) -> None:
    process = fleet.process()
    _, claim = claimed(process, "a")
    before = process.lineage(GROUP)
    fleet.server.copy()  # stops the real one, and starts it again
    reached(lambda: save(process, claim, 7))
    assert process.lineage(GROUP) == before
    assert process.why_changed() is None


def test_c8_the_data_of_another_datastore_is_none_of_ours(fleet: Fleet, tmp_path: Path) -> None:
    with closing(SqliteState(tmp_path / "theirs.sqlite3")) as theirs:
        with closing(fleet.server.open(theirs, lambda: 0.0)) as process:
            claimed(process, "a")
        fleet.server.copy()
        fleet.server.wipe()
        ours = fleet.process()
        session, claim = claimed(ours, "a")
        save(ours, claim, 5)
        fleet.server.go_back()
        with pytest.raises(StaleWriter):
            reached(lambda: save(ours, claim, 6))
        reached(lambda: ours.lineage(GROUP))
        assert "is another one" in (ours.why_changed() or "")
        assert reached(lambda: ours.renew(session)).epoch > session.epoch


def test_c8_many_processes_that_join_and_claim_at_once_see_no_break(fleet: Fleet) -> None:
    processes = [fleet.process() for _ in range(6)]

    def work(number: int) -> set[str]:
        process, seen = processes[number], set()
        session = process.join(GROUP, f"member-{number}", 60)
        for turn in range(8):
            claims = process.claim(session, "trips", [number, 10 + turn])
            seen.add(process.lineage(GROUP))
            save(process, claims[number], turn + 1, **{f"entry-{number}-{turn}": b"x"})
            process.release(claims.values())
        return seen

    with ThreadPoolExecutor(len(processes)) as pool:
        lineages = set().union(*pool.map(work, range(len(processes))))
    assert len(lineages) == 1
    assert processes[0].why_changed() is None
    assert len(fleet.state.list("entry-")) == 48


@pytest.mark.parametrize("failpoint", ["zookeeper.mark_announced", "zookeeper.mark_written"])
def test_c8_a_process_that_dies_within_a_claim_looks_like_no_break(
    fleet: Fleet, failpoint: str
) -> None:
    process = fleet.process()
    session, _ = claimed(process, "a")
    set_failpoint(failpoint, "raise")
    with pytest.raises(FailpointReached):
        process.claim(session, "trips", [1])
    other = fleet.process()
    assert other.lineage(GROUP)
    assert other.why_changed() is None
    # The same process, where only the call broke off, continues as well.
    assert set(process.claim(session, "trips", [1, 2])) == {1, 2}
    assert other.lineage(GROUP)
    assert other.why_changed() is None


@pytest.mark.parametrize("failpoint", ["zookeeper.era_announced", "zookeeper.era_written"])
def test_c8_an_era_that_a_process_died_declaring_is_finished_by_the_next(
    fleet: Fleet, failpoint: str
) -> None:
    process = fleet.process()
    fleet.process().join(GROUP, "x", 30)
    fleet.server.copy()
    _, claim = claimed(process, "a")
    before = process.lineage(GROUP)
    fleet.server.go_back()
    set_failpoint(failpoint, "raise")
    with pytest.raises(FailpointReached):
        reached(lambda: process.lineage(GROUP))
    other = fleet.process()
    after = reached(lambda: other.lineage(GROUP))
    assert after != before
    assert reached(lambda: process.lineage(GROUP)) == after
    with pytest.raises(StaleWriter):
        save(process, claim, 1)
    assert claimed(other, "b")[1].token > claim.token


def test_c8_witnesses_of_ended_processes_do_not_pile_up(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "_WITNESSES_MAX", 3)
    first = fleet.process()
    first_session = first.join(GROUP, "first", 30)
    for number in range(6):
        with closing(fleet.server.open(fleet.state, lambda: 0.0)) as process:
            process.join(GROUP, f"m{number}", 30)
    assert len(fleet.state.list("coordination/history/witnesses/")) == 3
    # One whose witness went, because it had nothing to write for long, gets on.
    wait_until(lambda: bool(claim_of(first, first_session)), "it claims")
    assert first.why_changed() is None


def claim_of(process: ZooKeeperCoordinator, session: Session) -> dict[int, Claim]:
    try:
        return process.claim(session, "trips", [0])
    except CellfeedError:
        return {}


def test_c8_gateways_refuse_groups_until_an_operator_accepts_the_offsets(fleet: Fleet) -> None:
    process, operator = fleet.process(), fleet.process()
    node = register(fleet.state, "a", {"default": ("127.0.0.1", 9092)}, ("127.0.0.1", 8081))
    before = SlotClaims(process, fleet.state, "a", node, 30)
    before.step({})
    fleet.server.copy()
    before.leave()
    gateway = SlotClaims(process, fleet.state, "a", node, 30)
    held = reached(lambda: gateway.step({})).slots[0]
    process.commit_offsets("readers", {("trips", 0): CommittedOffset(90)}, claims=[held.claim])
    fleet.server.go_back()
    with pytest.raises(StaleWriter):
        reached(
            lambda: process.commit_offsets(
                "readers", {("trips", 0): CommittedOffset(91)}, claims=[held.claim]
            )
        )
    wait_until(lambda: "consumer groups wait: " in said(gateway), "it says so")
    assert "went back in time" in said(gateway)
    assert gateway.confirmed_until_s == 0.0, "it would still answer for groups"
    assert "cellfeed offsets accept" in (reached(lambda: why_stopped(fleet.state, operator)) or "")
    accept(fleet.state, operator, GATEWAYS, "trips")
    assert why_stopped(fleet.state, operator) is None
    after = reached(lambda: gateway.step({})).slots[0]
    assert after.claim.token > held.claim.token
    assert after.end >= held.end, "generations never go back"
    process.commit_offsets("readers", {("trips", 0): CommittedOffset(92)}, claims=[after.claim])


def said(gateway: SlotClaims) -> str:
    try:
        gateway.step({})
    except Unavailable as error:
        return str(error)
    return ""
