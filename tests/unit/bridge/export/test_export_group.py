"""The exporters of one export over a topic in memory: the owner of each unit, the time before the
topic is known, and how units change hands."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from cellfeed.bridge.coordination.contract import Claim, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export import export_group, preparation, unit_looks, unit_offsets, unit_run
from cellfeed.bridge.export.export_group import ExportGroup
from cellfeed.bridge.groups import member
from cellfeed.bridge.groups.membership import LeaseKeeper
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData, Unavailable
from tests.support.memory_topic import MemoryTopic
from tests.support.waiting import wait_until
from tests.unit.bridge.export.conftest import EXPORT

LOST = KafkaException(KafkaError(KafkaError._TRANSPORT, "the broker went away"))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in (
        (export_group, ("CLAIM_AGAIN_S",)),
        (preparation, ("BACKOFF_MAX_S", "REFUSED_LOOK_S")),
        (unit_run, ("BACKOFF_FIRST_S", "REFUSED_LOOK_S")),
        (unit_looks, ("SAVE_EVERY_S",)),
        (unit_offsets, ("SAVE_EVERY_S",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 0.01)
    # Leases that no slow machine loses, and looks for shares as often as if they were short ones.
    monkeypatch.setattr(member, "LOOKS_IN_A_LEASE", 1_000)


class Exporter:
    """One process' part in the export, driven by the test's own thread."""

    def __init__(self, datastore: Datastore, name: str, stack: ExitStack, **changed: Any) -> None:
        self.datastore = datastore
        self.coordinator = StoreCoordinator(datastore.state)
        export = msgspec.structs.replace(EXPORT, **changed)
        self.group = ExportGroup(export, datastore, self.coordinator, name, threading.Event())
        self.heads = dict(datastore.engine.heads())
        keeper = LeaseKeeper([self.group.membership], export.lease_s)
        stack.callback(self.coordinator.close)
        stack.callback(self.group.close)
        stack.callback(keeper.close)
        stack.callback(self.drained)

    def step(self) -> None:
        found = self.datastore.engine.heads()
        changed = [shard for shard, head in found.items() if head != self.heads[shard]]
        self.heads.update(found)
        self.group.note_heads(changed, 0.001)
        self.group.keep_place(self.heads)
        self.group.report(self.heads)

    def units(self) -> set[int]:
        return set(self.group._runs)

    def drained(self) -> None:
        wait_until(self.group.drain, "all is given back")


@pytest.fixture
def stack(datastore: Datastore) -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def put(datastore: Datastore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        datastore.put_cell(UUID(int=number), "BASE", 1, {"n": number})


def is_all_there(datastore: Datastore, topic: MemoryTopic) -> bool:
    return all(
        topic.ids(shard) == list(range(head.watermark))
        for shard, head in datastore.engine.heads().items()
    )


def until(done: Any, what: str, *exporters: Exporter) -> None:
    def look() -> bool:
        for each in exporters:
            each.step()
        return bool(done())

    wait_until(look, what)


def test_one_exporter_has_every_unit_and_two_share_them(
    datastore: Datastore, topic: MemoryTopic, stack: ExitStack
) -> None:
    put(datastore, 60)
    one = Exporter(datastore, "one", stack)
    until(lambda: is_all_there(datastore, topic), "all is exported", one)
    assert one.units() == {0, 1}
    assert set(one.group.progress()) == set(range(16))
    two = Exporter(datastore, "two", stack)
    until(
        lambda: one.units() | two.units() == {0, 1} and one.units() and two.units(),
        "each has one",
        one,
        two,
    )
    assert one.units().isdisjoint(two.units())
    put(datastore, 60, first=60)
    until(lambda: is_all_there(datastore, topic), "all is exported", one, two)
    one.drained()
    until(lambda: two.units() == {0, 1}, "the other one has both", two)
    put(datastore, 30, first=120)
    until(lambda: is_all_there(datastore, topic), "all is exported", two)


def test_draining_ends_every_unit_and_leaves_the_group(
    datastore: Datastore, topic: MemoryTopic, stack: ExitStack
) -> None:
    put(datastore, 60)
    one = Exporter(datastore, "one", stack)
    until(lambda: is_all_there(datastore, topic), "all is exported", one)
    assert one.coordinator.members(EXPORT.group) == ["one"]
    one.drained()
    assert one.units() == set()
    assert one.coordinator.members(EXPORT.group) == []
    assert dict(one.coordinator.owners(EXPORT.group, "trips")) == {}
    saved = one.coordinator.fetch_offsets(EXPORT.group)
    assert {shard: each.offset for (_, shard), each in saved.items()} == {
        shard: head.watermark for shard, head in datastore.engine.heads().items()
    }


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ProtectData("three partitions are missing"), "stands still: three partitions are missing"),
        (Unavailable("the registry is away"), "waiting: the registry is away"),
        (LOST, "waiting: the Kafka cluster: "),
    ],
)
def test_an_unknown_topic_is_asked_for_again_with_the_reason(
    datastore: Datastore, topic: MemoryTopic, stack: ExitStack, error: Exception, said: str
) -> None:
    put(datastore, 10)
    topic.fail("ensure_topic", error)
    one = Exporter(datastore, "one", stack)
    until(lambda: one.group.preparation.waits != "not started", "the reason is known", one)
    assert one.group.preparation.waits.startswith(said)
    assert (one.group.preparation.refused is error) == isinstance(error, ProtectData)
    assert (one.group.refusal is error) == isinstance(error, ProtectData)
    until(lambda: is_all_there(datastore, topic), "all is exported", one)
    assert one.group.preparation.refused is one.group.refusal is None


def test_a_defect_while_the_topic_is_looked_at_is_raised(
    datastore: Datastore, topic: MemoryTopic, stack: ExitStack
) -> None:
    topic.fail("ensure_topic", ZeroDivisionError("a defect"))
    one = Exporter(datastore, "one", stack)
    with pytest.raises(ZeroDivisionError):
        until(lambda: False, "it is raised", one)


def test_a_defect_of_a_unit_is_raised(
    datastore: Datastore, topic: MemoryTopic, stack: ExitStack
) -> None:
    put(datastore, 10)
    topic.fail("begin", ZeroDivisionError("a defect"))
    one = Exporter(datastore, "one", stack)
    with pytest.raises(ZeroDivisionError):
        until(lambda: False, "it is raised", one)


def test_an_export_is_refused_when_all_units_stand_still_and_not_when_one_does(
    datastore: Datastore,
    topic: MemoryTopic,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unit_run, "REFUSED_LOOK_S", 60.0)
    put(datastore, 10)
    one = Exporter(datastore, "one", stack)
    until(lambda: is_all_there(datastore, topic), "all is exported", one)
    runs = list(one.group._runs.values())
    assert one.group.refusal is None
    runs[0].refused = ProtectData("the first")
    assert one.group.refusal is None
    runs[1].refused = ProtectData("the second")
    assert str(one.group.refusal) == "the first"


def test_the_topic_is_looked_at_now_and_then_while_units_are_at_work(
    datastore: Datastore,
    topic: MemoryTopic,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export_group, "TOPIC_LOOK_S", 0.05)
    monkeypatch.setattr(unit_run, "REFUSED_LOOK_S", 60.0)
    put(datastore, 20)
    one = Exporter(datastore, "one", stack)
    until(lambda: is_all_there(datastore, topic), "all is exported", one)
    before = topic.calls.count("ensure_topic")
    until(lambda: topic.calls.count("ensure_topic") > before + 1, "it is looked at", one)
    topic.fail("ensure_topic", LOST)  # asked again, and no reason to stop
    topic.topic_id = "another"
    put(datastore, 60, first=20)
    until(lambda: one.group.refusal is not None, "both units stand still", one)
    assert "was deleted and made again" in str(one.group.refusal)


def test_a_paused_export_gives_all_units_back_and_resumes_afterwards(
    datastore: Datastore,
    topic: MemoryTopic,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(datastore, 20)
    one = Exporter(datastore, "one", stack)
    until(lambda: is_all_there(datastore, topic), "all is exported", one)
    real = one.group._member.is_paused
    monkeypatch.setattr(one.group._member, "is_paused", lambda _: True)
    until(
        lambda: not one.units() and not one.coordinator.owners(EXPORT.group, "trips"),
        "all is given back",
        one,
    )
    monkeypatch.setattr(one.group._member, "is_paused", real)
    put(datastore, 20, first=20)
    until(lambda: is_all_there(datastore, topic), "all is exported", one)


def test_units_continue_in_a_new_session_without_being_taken_over(
    datastore: Datastore, topic: MemoryTopic, stack: ExitStack
) -> None:
    put(datastore, 20)
    one = Exporter(datastore, "one", stack)
    until(lambda: is_all_there(datastore, topic), "all is exported", one)
    fenced, epoch = topic.calls.count("fence"), one.group.membership.session.epoch
    one.coordinator.leave(one.group.membership.session)
    one.group.membership.renew()  # as its keeper does, a quarter of a lease later at most
    put(datastore, 40, first=20)
    until(
        lambda: is_all_there(datastore, topic) and one.group.membership.session.epoch != epoch,
        "all is exported in another session",
        one,
    )
    until(
        lambda: (
            {run.offsets.epoch for run in one.group._runs.values()}
            == {one.group.membership.session.epoch}
        ),
        "the units are of it",
        one,
    )
    assert topic.calls.count("fence") >= fenced


def test_a_unit_is_begun_with_the_claims_of_all_its_shards(
    datastore: Datastore, topic: MemoryTopic, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(datastore, 60)
    one = Exporter(datastore, "one", stack)
    real, held = one.coordinator.claim, True

    def claim(session: Session, name: str, shards: Collection[int]) -> dict[int, Claim]:
        return real(session, name, [shard for shard in shards if not (held and shard == 4)])

    monkeypatch.setattr(one.coordinator, "claim", claim)
    until(lambda: one.units() == {1}, "the other unit is begun", one)
    for _ in range(20):
        one.step()
    assert one.units() == {1}
    owned = set(one.coordinator.owners(EXPORT.group, "trips"))
    assert owned == set(range(1, 16, 2)), "what it cannot use is given back"
    held = False
    until(lambda: is_all_there(datastore, topic), "all is exported", one)
    assert one.units() == {0, 1}
