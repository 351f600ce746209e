"""An export is forgotten whole, when nobody is at work on it and its producers are barred: or not
at all."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.export_terms import read_terms
from cellfeed.bridge.export.forgetting import Forgotten, forget_export
from cellfeed.bridge.export.taking_over import ExportContext
from cellfeed.bridge.groups.control import OPERATOR, Control, Pause, group_prefix
from cellfeed.bridge.groups.history import Operator, history
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import NotFound, Refused, Unavailable
from tests.support.memory_topic import MemoryTopic

Contexts = Callable[..., ExportContext]
SOMEBODY = Operator("ann@host", "the topic moves")


@pytest.fixture
def context(context_of: Contexts, datastore: Datastore) -> ExportContext:
    """An export that has two offsets and a parked cell."""
    context = context_of()
    for number in range(8):
        datastore.put_cell(UUID(int=number), "BASE", 1, {"n": number})
    session = context.coordinator.join(context.export.group, "exporter", 30.0)
    claims = context.coordinator.claim(session, "trips", [3, 5])
    context.coordinator.commit_offsets(
        context.export.group,
        {("trips", 3): CommittedOffset(1), ("trips", 5): CommittedOffset(1)},
        claims=list(claims.values()),
    )
    context.coordinator.release(list(claims.values()))
    context.coordinator.leave(session)
    cell = next(each for shard in range(16) for each in datastore.engine.scan(shard, 0, 1))
    parked = context.encoder._parked(0, cell, "too large")
    datastore.state.commit(ParkedCells(datastore.state).entry(parked))
    return context


def forget(context: ExportContext, *, configured: bool = True) -> Forgotten:
    return forget_export(
        context.datastore,
        context.coordinator,
        "trips",
        context.export if configured else None,
        SOMEBODY,
    )


def left(context: ExportContext) -> tuple[bool, int, int]:
    """Terms, offsets and parked cells that there still are."""
    group = context.export.group
    return (
        read_terms(context.datastore, "trips") is not None,
        len(context.coordinator.fetch_offsets(group)),
        len(ParkedCells(context.datastore.state).all(group)),
    )


def test_a_forgotten_export_leaves_only_the_operator_and_the_reason(
    context: ExportContext, topic: MemoryTopic
) -> None:
    group, state = context.export.group, context.datastore.state
    assert forget(context) == Forgotten("trips", 2, 2, 1)
    assert left(context) == (False, 0, 0)
    [deed] = history(state, group)
    assert (deed.action, deed.by, deed.because) == ("forgotten", "ann@host", "the topic moves")
    assert deed.at_us > 0
    assert topic.calls == ["fence", "give_up", "fence", "give_up"], "the producers of each unit"
    assert state.get(Control(state, group).reset_key) is None
    assert context.coordinator.members(group) == []
    assert dict(context.coordinator.owners(group, "trips")) == {}
    with pytest.raises(NotFound, match="nothing of an export 'trips'"):
        forget(context)


def test_an_export_that_is_not_configured_any_more_asks_no_cluster(
    context: ExportContext, topic: MemoryTopic
) -> None:
    topic.fail("fence", KafkaException(KafkaError(KafkaError._TRANSPORT, "gone for good")))
    assert forget(context, configured=False).units == 2
    assert left(context) == (False, 0, 0)
    assert topic.calls == []


def test_a_cluster_that_cannot_bar_the_producers_changes_nothing(
    context: ExportContext, topic: MemoryTopic
) -> None:
    topic.fail("fence", KafkaException(KafkaError(KafkaError._TRANSPORT, "away")))
    with pytest.raises(Unavailable, match="could not bar the producers of export 'trips'"):
        forget(context)
    assert left(context) == (True, 2, 1)
    assert topic.calls == ["fence", "give_up"]
    state = context.datastore.state
    assert state.get(Control(state, context.export.group).reset_key) is None, "no reset is left"
    assert forget(context).offsets == 2


def test_an_export_is_not_forgotten_while_an_exporter_runs(
    context: ExportContext, topic: MemoryTopic, coordinator: StoreCoordinator
) -> None:
    session = coordinator.join(context.export.group, "exporter", 30.0)
    with pytest.raises(Refused, match=r"at work \(exporter\)"):
        forget(context)
    assert (left(context), topic.calls) == ((True, 2, 1), [])
    coordinator.leave(session)
    forget(context)


def test_an_export_is_not_forgotten_while_shards_are_claimed(
    context: ExportContext,
    topic: MemoryTopic,
    coordinator: StoreCoordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = context.export.group
    session = coordinator.join(group, "exporter", 30.0)
    coordinator.claim(session, "trips", [2, 9])
    real = coordinator.members
    monkeypatch.setattr(
        coordinator, "members", lambda of: [each for each in real(of) if each != "exporter"]
    )
    with pytest.raises(Refused, match="2 of its shards are not free yet"):
        forget(context)
    assert (left(context), topic.calls) == ((True, 2, 1), [])
    assert set(coordinator.owners(group, "trips")) == {2, 9}, "its own claims are let go"


def test_two_operators_do_not_forget_an_export_at_once_and_a_dead_ones_note_delays_nobody(
    context: ExportContext, coordinator: StoreCoordinator
) -> None:
    state, group = context.datastore.state, context.export.group
    key = Control(state, group).reset_key
    other = f"{OPERATOR}bob@host 1-aa"
    import msgspec

    note = msgspec.json.encode(Pause("bob@host", "why not", state.now_us(), other))
    state.commit({key: note})
    session = coordinator.join(group, other, 30.0)
    with pytest.raises(Refused, match="forgotten by somebody else"):
        forget(context)
    entry = state.get(key)
    assert entry is not None
    assert entry.value == note, "the other one's note stays"
    assert left(context) == (True, 2, 1)
    coordinator.leave(session)
    forget(context)
    assert state.get(key) is None


@pytest.mark.parametrize("kept", ["terms", "offsets", "parked", "records"])
def test_an_export_is_forgotten_if_only_one_kind_of_its_records_exists(
    context_of: Contexts,
    datastore: Datastore,
    coordinator: StoreCoordinator,
    topic: MemoryTopic,
    kept: str,
) -> None:
    context = context_of()
    group, state = context.export.group, datastore.state
    if kept != "terms":
        forget(context)
    if kept == "records":
        state.commit({f"{group_prefix(group)}workers/one": b"x"})
    elif kept == "parked":
        datastore.put_cell(UUID(int=1), "BASE", 1, {})
        shard = datastore.shard_of(UUID(int=1))
        cell = context.encoder._parked(shard, datastore.engine.scan(shard, 0, 1)[0], "large")
        state.commit(ParkedCells(state).entry(cell))
    elif kept == "offsets":
        session = coordinator.join(group, "one", 30.0)
        claims = list(coordinator.claim(session, "trips", [0]).values())
        coordinator.commit_offsets(group, {("trips", 0): CommittedOffset(0)}, claims=claims)
        coordinator.release(claims)
        coordinator.leave(session)
    found = forget_export(datastore, coordinator, "trips", None, SOMEBODY)
    assert (found.units, found.offsets, found.parked) == (
        2 * (kept == "terms"),
        kept == "offsets",
        kept == "parked",
    )
    assert state.list(f"{group_prefix(group)}workers/") == []
