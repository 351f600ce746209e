"""The ends of partitions, read by an exporter that takes over: the last committed record counts,
however many marks stand behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.events.record_headers import LeaderEpochs
from cellfeed.bridge.export import tails, taking_over
from cellfeed.bridge.export.export_terms import read_terms
from cellfeed.bridge.export.records import OutRecord
from cellfeed.bridge.export.resume import metadata_of
from cellfeed.bridge.export.tails import read_tails
from cellfeed.bridge.export.taking_over import ExportContext, look_again, take_over
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData, Unavailable
from cellfeed.store.limits import ADDED_ID_MAX
from tests.support.memory_topic import MemoryConsumer, MemoryTopic, Message

Contexts = Callable[..., ExportContext]


def record(shard: int, added_id: int, key: bytes = b"key") -> OutRecord:
    return OutRecord(shard, added_id, key, b"value", [("column", b"BASE")], 5)


def read(topic: MemoryTopic, partitions: list[int], consumer: MemoryConsumer | None = None) -> Any:
    return read_tails(cast("Consumer", consumer or topic.consumer()), "out", partitions)


def test_the_last_record_of_each_partition_is_its_tail() -> None:
    topic = MemoryTopic(4)
    for added_id in range(5):
        topic.append(record(1, added_id))
    topic.append(record(2, 9))
    topic.starts[2] = 0
    topic.records[3], topic.starts[3] = [None, None], 2
    found = read(topic, [0, 1, 2, 3])
    assert {shard: each.tail for shard, each in found.items()} == {
        0: (None, 0, 0, False),
        1: (4, 0, 10, False),
        2: (9, 0, 2, False),
        3: (None, 2, 2, False),
    }
    assert found[1].last == (8, b"key", {"added_id": b"4", "column": b"BASE"}, 4)
    assert found[0].last is found[3].last is None


@pytest.mark.parametrize("marks", [0, 3, 4, 5, 63, 64, 65, 2_000])
def test_the_last_record_is_found_behind_any_number_of_marks(marks: int) -> None:
    topic = MemoryTopic(2)
    topic.append(record(0, 7))
    topic.records[0] += [None] * marks
    topic.append(record(1, 3))
    consumer = topic.consumer()
    found = read(topic, [0, 1], consumer)
    assert (found[0].tail, found[1].tail) == (
        (7, 0, 2 + marks, False),
        (3, 0, 2, False),
    )
    assert all(1 not in each for each in consumer.assigned[1:]), "what was found is not read again"


def test_marks_alone_are_read_once_from_the_start_and_no_further() -> None:
    topic = MemoryTopic(1)
    topic.records[0], topic.starts[0] = [None] * 50, 20
    consumer = topic.consumer()
    assert read(topic, [0], consumer)[0].tail == (None, 20, 50, False)
    assert consumer.assigned == [{0: 46}, {0: 20}]


def test_a_record_without_an_added_id_is_foreign() -> None:
    topic = MemoryTopic(1)
    topic.append(record(0, 1))
    topic.append(record(0, -1))
    assert read(topic, [0])[0].tail == (None, 0, 4, True)


def test_an_error_that_may_pass_is_waited_out_and_any_other_is_raised() -> None:
    topic = MemoryTopic(1)
    topic.append(record(0, 1))
    passing = Message(0, 0, error=KafkaError(KafkaError._TRANSPORT, "away", retriable=True))
    assert read(topic, [0], MemoryConsumer(topic, [passing]))[0].tail == (1, 0, 2, False)
    lasting = Message(0, 0, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not yours"))
    consumer = MemoryConsumer(topic, [lasting])
    with pytest.raises(KafkaException):
        read(topic, [0], consumer)
    assert consumer.poll(0) is None, "nothing is assigned any more"


def test_a_partition_whose_end_is_not_reached_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tails, "TAIL_READ_S", 0.0)
    topic = MemoryTopic(4)
    topic.append(record(3, 1))
    consumer = topic.consumer()
    monkeypatch.setattr(consumer, "assign", lambda _: None)
    with pytest.raises(Unavailable, match="the end of partition 3 of 'out'"):
        read(topic, [0, 3], consumer)


# --- taking over ----------------------------------------------------------------------------------


def exported(context: ExportContext, topic: MemoryTopic, shards: list[int]) -> None:
    """All cells of these shards are in their partitions."""
    engine = context.datastore.engine
    for shard in shards:
        cells = engine.scan(shard, 0, 1_000)
        for each in context.encoder.encode(shard, cells, LeaderEpochs([(0, 0)], 0)).records:
            topic.append(each)


def save(context: ExportContext, shard: int, offset: int, exported_id: int) -> None:
    group = context.export.group
    session = context.coordinator.join(group, "saver", 30.0)
    claims = context.coordinator.claim(session, "trips", [shard])
    context.coordinator.commit_offsets(
        group,
        {("trips", shard): CommittedOffset(offset, -1, metadata_of(exported_id))},
        claims=list(claims.values()),
    )
    context.coordinator.leave(session)


@pytest.fixture
def context(context_of: Contexts, datastore: Datastore) -> ExportContext:
    for number in range(80):
        datastore.put_cell(UUID(int=number), "BASE", 1, {"n": number})
    return context_of()


def test_a_unit_continues_behind_its_partitions_records_and_mends_the_offsets(
    context: ExportContext, topic: MemoryTopic
) -> None:
    exported(context, topic, [0, 2])
    ends = {shard: head.watermark for shard, head in context.datastore.engine.heads().items()}
    save(context, 0, ends[0], ends[0] - 1)
    save(context, 2, 1, 0)
    context.refusal = "of an earlier look"
    taken = take_over(context, [0, 2, 4])
    assert taken.locations == {0: ends[0], 2: ends[2], 4: 0}
    assert taken.exported == {0: ends[0] - 1, 2: ends[2] - 1, 4: -1}
    assert taken.ends == {shard: len(topic.records[shard]) for shard in (0, 2, 4)}
    [said] = context.repaired
    assert said.startswith("partition 2: ")
    assert said.endswith(f"the partition is believed, the export continues at {ends[2]}")
    assert context.refusal is None, "it was of an earlier look"


def test_a_partition_with_records_and_no_offset_is_a_repair_and_an_empty_partition_is_not(
    context: ExportContext, topic: MemoryTopic
) -> None:
    exported(context, topic, [2])
    take_over(context, [0, 2])
    assert [said.split(":")[0] for said in context.repaired] == ["partition 2"]


def test_refused_partitions_are_named_the_first_three_and_how_many_more(
    context: ExportContext, topic: MemoryTopic
) -> None:
    for shard in (0, 2, 4, 6, 8):
        topic.append(record(shard, 500))
    with pytest.raises(ProtectData) as refused:
        take_over(context, [0, 2, 4, 6, 8, 10])
    said = str(refused.value)
    assert [f"partition {shard}: " in said for shard in (0, 2, 4, 6)] == [True, True, True, False]
    assert said.endswith("; and 2 more")
    for shard in (6, 8):
        topic.records[shard] = []
    with pytest.raises(ProtectData) as refused:
        take_over(context, [0, 2, 4, 6, 8, 10])
    assert "more" not in str(refused.value)


def test_a_record_of_another_log_at_the_same_id_is_refused(
    context: ExportContext, topic: MemoryTopic
) -> None:
    topic.append(record(2, 1, key=b"somebody else"))
    with pytest.raises(ProtectData, match=r"partition 2: .*the export of another log"):
        take_over(context, [0, 2])


def test_a_log_with_an_unknown_end_is_waited_for(
    context: ExportContext, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = context.datastore.engine
    real = engine.heads

    def heads(shards: list[int] | None = None) -> Any:
        return {
            shard: head._replace(next_added_id=ADDED_ID_MAX) if shard == 2 else head
            for shard, head in real(shards).items()
        }

    monkeypatch.setattr(engine, "heads", heads)
    with pytest.raises(Unavailable, match="where the log of shard 2 ends"):
        take_over(context, [0, 2])


def test_a_topic_made_again_is_refused_unless_the_export_begins_again_in_it(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.topic_id = "another"
    with pytest.raises(ProtectData, match="was deleted and made again"):
        take_over(context_of(), [0])
    looked: list[tuple[object, ...]] = []
    monkeypatch.setattr(taking_over, "refuse_foreign_topic", lambda *given: looked.append(given))
    context = context_of(on_lost_topic="start_over")
    take_over(context, [0])
    assert len(looked) == 1
    assert (context.terms.topic_id, context.terms.generation) == ("another", 2)
    assert read_terms(datastore, "trips") == context.terms


def test_a_look_at_the_topic_notes_why_it_is_unfit_until_it_is_fit_again(
    context: ExportContext, topic: MemoryTopic
) -> None:
    def looked() -> str | None:
        look_again(context)
        return context.refusal

    topic.fail("ensure_topic", ProtectData("three partitions are missing"))
    assert looked() == "three partitions are missing"
    assert looked() is None
    topic.topic_id = "another"
    assert looked() == "topic 'out' was deleted and made again"
    topic.topic_id = context.terms.topic_id
    assert looked() is None


def test_a_partition_that_no_broker_leads_has_no_end() -> None:
    topic = MemoryTopic(2)
    consumer = topic.consumer()
    real = consumer.offsets_for_times

    def without_leader(wanted: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        error = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
        return [
            cast("TopicPartition", SimpleNamespace(partition=1, offset=0, error=error))
            if each.partition == 1
            else each
            for each in real(wanted, timeout)
        ]

    consumer.offsets_for_times = without_leader  # type: ignore[method-assign]
    with pytest.raises(KafkaException, match="NOT_LEADER_FOR_PARTITION"):
        read(topic, [0, 1], consumer)
