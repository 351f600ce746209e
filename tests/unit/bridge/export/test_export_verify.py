"""The comparison of a partition with its log: each way to differ is found and named, and nothing
else counts as one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException

from cellfeed.bridge.events.record_headers import LeaderEpochs
from cellfeed.bridge.export import partition_records, verify
from cellfeed.bridge.export.records import OutRecord
from cellfeed.bridge.export.shard_comparison import ShardVerdict
from cellfeed.bridge.export.taking_over import ExportContext
from cellfeed.bridge.export.verify import ExportVerifier, verify_export
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import NotFound, Unavailable
from tests.support.memory_topic import MemoryConsumer, MemoryTopic, Message

Contexts = Callable[..., ExportContext]
SHARD = 3


@pytest.fixture
def rows(datastore: Datastore) -> list[UUID]:
    """The rows of SHARD, in the order of its log."""
    found = [UUID(int=n) for n in range(400)]
    mine = [row for row in found if datastore.shard_of(row) == SHARD][:12]
    for number, row in enumerate(mine):
        datastore.put_cell(row, "BASE", 1, {"n": number})
    return mine


@pytest.fixture
def context(context_of: Contexts, topic: MemoryTopic) -> ExportContext:
    return context_of()


def records(context: ExportContext) -> list[OutRecord]:
    cells = context.datastore.engine.scan(SHARD, 0, 1_000)
    epochs = LeaderEpochs(context.datastore.engine.leader_epochs(SHARD), 0)
    return context.encoder.encode(SHARD, cells, epochs).records


def look(context: ExportContext) -> ShardVerdict:
    [found] = verify_export(context.export, context.datastore, [SHARD])
    return found


def test_a_partition_equal_to_the_log_passes_and_has_the_logs_digest(
    context: ExportContext, topic: MemoryTopic, rows: list[UUID]
) -> None:
    for record in records(context):
        topic.append(record)
    found = look(context)
    assert (found.equal, found.cells, found.until, found.erased_since) == (True, 12, 12, 0)
    assert found.partition_digest == found.log_digest != ""


def test_a_partition_that_is_behind_is_compared_up_to_its_end_and_later_from_there(
    context: ExportContext, topic: MemoryTopic, rows: list[UUID]
) -> None:
    made = records(context)
    with closing(ExportVerifier(context.export, context.datastore)) as verifier:
        found = []
        for piece in (made[:0], made[:5], made[5:6], made[6:]):
            for record in piece:
                topic.append(record)
            [each] = verifier.look([SHARD])
            found.append((each.equal, each.cells, each.until))
            assert each.partition_digest == each.log_digest
    assert found == [(True, 0, 0), (True, 5, 5), (True, 6, 6), (True, 12, 12)]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"key": b"another"}, "cell 4 is another one"),
        ({"value": b'{"another":1}'}, "cell 4 is another one"),
        ({"timestamp_ms": 77}, "cell 4 is another one"),
        ({"shared": [("column_name", b"OTHER")]}, "cell 4 is another one"),
        ({"added_id": -1}, "has no header added_id"),
        ({"added_id": 6}, "the partition continues with cell 6, the log with cell 4"),
        ({"added_id": 99}, "the partition continues with cell 99, the log with cell 4"),
        ({"added_id": 2}, "the partition continues with cell 2, the log with cell 4"),
    ],
    ids=str,
)
def test_a_record_that_is_not_the_logs_next_one_is_where_they_differ(
    context: ExportContext,
    topic: MemoryTopic,
    rows: list[UUID],
    change: dict[str, object],
    what: str,
) -> None:
    for number, record in enumerate(records(context)):
        topic.append(record._replace(**change) if number == 4 else record)  # type: ignore[arg-type]
    found = look(context)
    assert what in found.what
    assert found.differs_at is not None
    assert (found.equal, found.cells, found.until) == (False, 4, 4)


def test_a_missing_a_doubled_and_an_invented_record_are_found(
    context: ExportContext, topic: MemoryTopic, rows: list[UUID]
) -> None:
    made = records(context)
    for wrong, at in (
        (made[:4] + made[5:], 4),
        (made[:5] + made[4:], 4),
        ([*made, made[-1]._replace(added_id=12)], 12),
        (made[1:], 0),
    ):
        topic.records[SHARD] = []
        for record in wrong:
            topic.append(record)
        found = look(context)
        assert (found.equal, found.differs_at) == (False, at), found.what


def test_a_record_beyond_the_log_is_named_with_the_last_cell_that_is_shown(
    context: ExportContext, topic: MemoryTopic, rows: list[UUID]
) -> None:
    for record in records(context):
        topic.append(record)
    topic.append(records(context)[-1]._replace(added_id=20))
    found = look(context)
    assert (found.differs_at, found.cells) == (20, 12)
    assert found.what == ("the partition holds cell 20, which the log does not show behind cell 11")


def test_verify_compares_no_record_behind_a_difference(
    context: ExportContext, topic: MemoryTopic, rows: list[UUID]
) -> None:
    made = records(context)
    with closing(ExportVerifier(context.export, context.datastore)) as verifier:
        topic.append(made[1])
        [found] = verifier.look([SHARD])
        topic.records[SHARD] = [record for each in made for record in (each, None)]
        [again] = verifier.look([SHARD])
    assert (again.equal, again.differs_at) == (found.equal, found.differs_at) == (False, 0)


def test_parked_and_skipped_cells_need_no_record_and_those_of_others_do(
    context: ExportContext, topic: MemoryTopic, rows: list[UUID]
) -> None:
    made = records(context)
    for record in made[:4] + made[5:]:
        topic.append(record)
    parked = ParkedCells(context.datastore.state)
    cell = context.encoder._parked(SHARD, context.datastore.engine.scan(SHARD, 4, 1)[0], "large")
    assert not look(context).equal
    context.datastore.state.commit(parked.entry(cell))
    assert look(context).equal
    parked.skip(context.export.group, cell.cell_id, "nobody needs it")
    assert look(context).equal


def test_verify_skips_cells_before_the_exports_start(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic, rows: list[UUID]
) -> None:
    context = context_of(start="latest")
    assert context.terms.starts[SHARD] == 12
    for record in records(context)[:3]:
        topic.append(record._replace(value=b"whatever was there before"))
    datastore.put_cell(rows[0], "BASE", 2, {"n": 12})
    topic.append(records(context)[-1])
    found = look(context)
    assert (found.equal, found.cells, found.until) == (True, 1, 13)


def test_a_cell_erased_since_its_export_is_compared_without_its_body(
    context: ExportContext, topic: MemoryTopic, rows: list[UUID]
) -> None:
    made = records(context)
    context.datastore.erase_row(rows[4])
    for record in made:
        topic.append(record)
    found = look(context)
    assert (found.equal, found.cells, found.erased_since) == (True, 12, 1), found.what
    assert found.partition_digest == found.log_digest
    topic.records[SHARD][8] = made[4]._replace(key=b"another")
    assert look(context).differs_at == 4
    topic.records[SHARD][8] = made[4]._replace(timestamp_ms=7)
    assert look(context).differs_at == 4
    topic.records[SHARD][8] = made[4]._replace(shared=[])
    assert look(context).differs_at == 4


def test_errors_of_the_cluster_are_raised_or_waited_out(
    context: ExportContext,
    topic: MemoryTopic,
    rows: list[UUID],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for record in records(context):
        topic.append(record)
    passing = Message(SHARD, 0, error=KafkaError(KafkaError._TRANSPORT, "away", retriable=True))
    lasting = Message(SHARD, 0, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no"))
    monkeypatch.setattr(verify, "consumer_of", lambda _: MemoryConsumer(topic, [passing]))
    assert look(context).cells == 12
    monkeypatch.setattr(verify, "consumer_of", lambda _: MemoryConsumer(topic, [lasting]))
    with pytest.raises(KafkaException):
        look(context)
    silent = MemoryConsumer(topic)
    monkeypatch.setattr(silent, "assign", lambda _: None)
    monkeypatch.setattr(verify, "consumer_of", lambda _: silent)
    monkeypatch.setattr(partition_records, "TAIL_READ_S", 0.0)
    with pytest.raises(Unavailable, match=f"partition {SHARD} of 'out' sent nothing"):
        look(context)
    assert silent.is_closed


def test_an_export_that_has_never_begun_cannot_be_compared(
    datastore: Datastore, topic: MemoryTopic
) -> None:
    from tests.unit.bridge.export.conftest import EXPORT

    with pytest.raises(NotFound, match="'trips' has never begun"):
        list(verify_export(EXPORT, datastore))
