"""One unit of an export over a topic in memory: its partitions are the logs after every failure and
event, and nothing is saved that they do not have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export import unit_looks, unit_offsets, unit_run
from cellfeed.bridge.export.batches import BatchReader
from cellfeed.bridge.export.resume import exported_of
from cellfeed.bridge.export.taking_over import ExportContext
from cellfeed.bridge.export.unit_run import UnitRun
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import DataDamaged, ProtectData, Unavailable
from tests.support.memory_topic import MemoryTopic
from tests.support.waiting import wait_until

LOST = KafkaException(KafkaError(KafkaError._TRANSPORT, "the broker went away"))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in (
        (unit_run, ("BACKOFF_FIRST_S", "REFUSED_LOOK_S")),
        (unit_looks, ("SAVE_EVERY_S",)),
        (unit_offsets, ("SAVE_EVERY_S", "IDLE_SAVE_AGAIN_S")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 0.01)


def put(datastore: Datastore, count: int, first: int = 0, text: str = "") -> None:
    for number in range(first, first + count):
        datastore.put_cell(UUID(int=number), "BASE", 1, {"n": number, "text": text})


class Unit:
    """A run of unit 0, and the heads that it sees."""

    def __init__(self, context: ExportContext, member: str = "one") -> None:
        self.context, datastore = context, context.datastore
        self.session = context.coordinator.join(context.export.group, member, 30.0)
        self.shards = context.terms.shards_of(0)
        self.heads: dict[int, Head] = dict(datastore.engine.heads())
        claims = context.coordinator.claim(self.session, datastore.name, self.shards)
        self.run = UnitRun(context, 0, claims, self.session.epoch, self.heads)

    def look(self) -> None:
        """As the exporter's main thread does."""
        found = self.context.datastore.engine.heads()
        changed = [shard for shard, head in found.items() if head != self.heads[shard]]
        self.heads.update(found)
        self.run.note_heads(changed, 0.001)

    def has_all(self, topic: MemoryTopic) -> bool:
        self.look()
        return all(
            topic.ids(shard) == list(range(self.heads[shard].watermark)) for shard in self.shards
        )

    def saved(self) -> dict[int, tuple[int, int | None]]:
        found = self.context.coordinator.fetch_offsets(self.context.export.group)
        return {
            shard: (each.offset, exported_of(each.metadata)) for (_, shard), each in found.items()
        }

    def all_saved(self) -> bool:
        return self.saved() == {
            shard: (self.heads[shard].watermark, self.heads[shard].watermark - 1)
            for shard in self.shards
        }


@contextmanager
def running(unit: Unit) -> Iterator[Unit]:
    unit.run.start()
    try:
        yield unit
    finally:
        unit.run.end()
        wait_until(lambda: unit.run.has_ended, "the unit has ended")
    assert unit.run.failed is None


Contexts = Callable[..., ExportContext]


def test_the_logs_of_its_shards_are_copied_and_the_offsets_saved_with_the_last_record(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic
) -> None:
    put(datastore, 60)
    with running(Unit(context_of())) as unit:
        wait_until(lambda: unit.has_all(topic), "all is copied")
        wait_until(unit.all_saved, "all is saved")
        put(datastore, 30, first=60)
        wait_until(lambda: unit.has_all(topic), "what came later is copied")
    assert unit.all_saved()
    assert all(topic.ids(shard) == [] for shard in range(16) if shard not in unit.shards)
    assert unit.run.progress[0].location == unit.heads[0].watermark
    assert unit.run.progress[0].because == f"came to {unit.heads[0].watermark - 1}"
    assert unit.run.progress[0].last_progress_s > 0
    assert (unit.context.cells, unit.context.records) == (
        sum(unit.heads[shard].watermark for shard in unit.shards),
    ) * 2
    assert topic.calls.count("fence") == 1
    assert topic.calls[-1] == "give_up"


def test_a_unit_that_has_read_all_waits_until_its_own_shards_change(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic
) -> None:
    put(datastore, 20)
    with running(Unit(context_of())) as unit:
        wait_until(lambda: unit.has_all(topic), "all is copied")
        wait_until(lambda: unit.run._looks.awaits_change, "it waits")
        wanted = unit.context.heads_wanted
        wanted.clear()
        unit.run.note_heads([1], 0.001)  # a shard of the other unit
        assert wanted.is_set(), "the next look is wanted, too"
        assert unit.run._looks.changes == 0 or unit.run._looks.awaits_change


@pytest.mark.parametrize("call", ["fence", "begin", "commit", "ensure_topic"])
def test_after_an_error_of_the_cluster_the_unit_is_taken_over_again_and_no_record_doubled(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic, call: str
) -> None:
    put(datastore, 40)
    topic.fail(call, LOST)
    with running(Unit(context_of())) as unit:
        wait_until(lambda: unit.has_all(topic), "all is copied")
    assert topic.calls.count("fence") == 2
    assert unit.all_saved()


def test_records_committed_without_an_answer_are_not_sent_again(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic
) -> None:
    put(datastore, 40)
    failures = [LOST]

    def lose() -> None:
        if failures:
            raise failures.pop()

    topic.on_commit = lose
    with running(Unit(context_of())) as unit:
        wait_until(lambda: topic.calls.count("fence") == 2, "it is taken over again")
        wait_until(lambda: unit.has_all(topic) and unit.all_saved(), "all is copied and saved")


def test_waits_grow_after_each_error_and_begin_again_after_a_commit(
    context_of: Contexts, datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_run, "BACKOFF_FIRST_S", 0.2)
    run = Unit(context_of()).run
    assert [run._next_backoff_s() for _ in range(6)] == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_unit_with_void_claims_ends_before_it_fences_a_producer(
    context_of: Contexts, datastore: Datastore, coordinator: StoreCoordinator, topic: MemoryTopic
) -> None:
    put(datastore, 20)
    unit = Unit(context := context_of())
    coordinator.leave(unit.session)
    taken = Unit(context, "two")
    with running(unit):
        wait_until(lambda: unit.run.has_ended, "it has ended")
    assert unit.run.lost
    assert topic.calls == []
    assert not taken.run.lost


def test_a_unit_that_another_exporter_has_taken_meanwhile_saves_nothing_more(
    context_of: Contexts, datastore: Datastore, coordinator: StoreCoordinator, topic: MemoryTopic
) -> None:
    put(datastore, 20)
    with running(Unit(context := context_of())) as unit:
        wait_until(unit.all_saved, "all is saved")
        coordinator.leave(unit.session)
        other = Unit(context, "two")
        with running(other):
            put(datastore, 40, first=20)
            wait_until(lambda: other.has_all(topic), "the other one copies")
            unit.look()
            wait_until(lambda: unit.run.lost, "the first one knows")
        assert other.all_saved()
    assert unit.has_all(topic)


def test_claims_of_a_new_session_replace_the_old_ones_once_all_were_made(
    context_of: Contexts, datastore: Datastore, coordinator: StoreCoordinator
) -> None:
    unit = Unit(context_of())
    offsets, before = unit.run.offsets, dict(unit.run.offsets.claims)
    coordinator.leave(unit.session)
    session = coordinator.join(unit.context.export.group, "one", 30.0)

    def some(shards: object) -> dict[int, object]:
        del shards
        return {}

    assert not offsets.claim_again(some, session.epoch + 7)  # type: ignore[arg-type]
    assert (offsets.epoch, offsets.claims) == (unit.session.epoch, before)
    assert offsets.claim_again(
        lambda shards: coordinator.claim(session, datastore.name, shards), session.epoch + 7
    )
    assert offsets.epoch == session.epoch + 7
    assert offsets.claims != before
    offsets.check_claims()


def test_a_topic_that_must_not_be_written_is_checked_again_and_the_reason_reported(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic
) -> None:
    put(datastore, 20)
    topic.fail("ensure_topic", ProtectData("two partitions are missing"))
    seen: list[tuple[str, str]] = []
    with running(Unit(context_of())) as unit:
        topic.on_commit = lambda: seen.append((str(unit.run.refused), ""))
        wait_until(lambda: unit.has_all(topic), "all is copied when it was mended")
        unit.context.refusal = "it has more partitions now"
        put(datastore, 20, first=20)
        unit.look()
        wait_until(lambda: topic.calls.count("fence") == 3, "it is taken over again")
        wait_until(lambda: unit.has_all(topic), "all is copied")
    assert {refused for refused, _ in seen} == {"None"}, "forgotten once it is taken over"


def test_a_refusal_stands_as_the_reason_of_every_shard(
    context_of: Contexts, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_run, "REFUSED_LOOK_S", 60.0)
    topic.fail("ensure_topic", ProtectData("two partitions are missing"))
    with running(Unit(context_of())) as unit:
        wait_until(lambda: unit.run.refused is not None, "it is refused")
        wait_until(
            lambda: (
                {each.because for each in unit.run.progress.values()}
                == {"stands still: two partitions are missing"}
            ),
            "each shard says so",
        )


@pytest.mark.parametrize(
    "error", [DataDamaged("a body is damaged"), Unavailable("the store is away")]
)
def test_a_log_that_cannot_be_read_is_waited_for(
    context_of: Contexts,
    datastore: Datastore,
    topic: MemoryTopic,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    put(datastore, 20)
    failures = [error]
    real = BatchReader.read

    def read(*given: object) -> object:
        if failures:
            raise failures.pop()
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(BatchReader, "read", read)
    with running(Unit(context_of())) as unit:
        wait_until(lambda: unit.has_all(topic), "all is copied")


def test_cells_without_a_record_are_parked_before_the_commit_that_passes_them(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic
) -> None:
    put(datastore, 20)
    put(datastore, 40, first=20, text="x" * 9_000)
    put(datastore, 20, first=60)
    parked = ParkedCells(datastore.state)
    at_commit: list[int] = []
    context = context_of(record_bytes_max=4_096)
    topic.on_commit = lambda: at_commit.append(len(parked.all(context.export.group)))
    with running(Unit(context)) as unit:
        wait_until(
            lambda: all(
                unit.saved().get(s, (0,))[0] == unit.heads[s].watermark for s in unit.shards
            ),
            "all is passed",
        )
    large = {
        (cell.shard, cell.added_id)
        for shard in unit.shards
        for cell in datastore.get_cells_for_shard(shard, 0, 100).cells
        if 20 <= cell.body["n"] < 60
    }
    assert {(c.partition, c.added_id) for c in parked.all(context.export.group)} == large
    assert at_commit[0] == len(large)
    assert sum(each.parked for each in unit.run.progress.values()) == len(large)
    for shard in unit.shards:
        assert topic.ids(shard) == [
            number for number in range(unit.heads[shard].watermark) if (shard, number) not in large
        ]
        assert unit.saved()[shard][1] == topic.ids(shard)[-1]


def test_a_coordination_that_is_away_stops_no_transaction_and_gets_the_offsets_later(
    context_of: Contexts,
    datastore: Datastore,
    coordinator: StoreCoordinator,
    topic: MemoryTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(datastore, 20)
    away = False
    real = coordinator.commit_offsets

    def commit(*given: object, **how: object) -> None:
        if away:
            raise Unavailable("the coordination is away")
        real(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(coordinator, "commit_offsets", commit)
    with running(Unit(context_of())) as unit:
        wait_until(unit.all_saved, "all is saved")
        away, before = True, unit.saved()
        put(datastore, 40, first=20)
        wait_until(lambda: unit.has_all(topic), "it exports meanwhile")
        time.sleep(0.05)
        assert unit.saved() == before
        away = False
        wait_until(unit.all_saved, "the offsets follow")
    assert topic.calls.count("fence") == 1


def test_offsets_are_committed_some_at_a_time_each_under_its_claim(
    context_of: Contexts,
    datastore: Datastore,
    coordinator: StoreCoordinator,
    topic: MemoryTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unit_offsets, "OFFSETS_IN_A_COMMIT_MAX", 3)
    put(datastore, 60)
    sizes: list[tuple[int, list[int]]] = []
    real = coordinator.commit_offsets

    def commit(group: str, offsets: dict[tuple[str, int], object], *, claims: list[object]) -> None:
        sizes.append((len(offsets), [claim.partition for claim in claims]))  # type: ignore[attr-defined]
        assert [shard for _, shard in offsets] == sizes[-1][1] or not offsets
        real(group, offsets, claims=claims)  # type: ignore[arg-type]

    monkeypatch.setattr(coordinator, "commit_offsets", commit)
    with running(Unit(context_of())) as unit:
        wait_until(unit.all_saved, "all is saved")
    assert [found for found in sizes if not found[0]] == [
        (0, [0, 2, 4]),
        (0, [6, 8, 10]),
        (0, [12, 14]),
    ]
    assert max(count for count, _ in sizes) == 3


def test_cells_are_exported_while_the_cluster_takes_its_time_over_ends(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()
    real = topic.wait

    def slow(ends: Mapping[int, int]) -> None:
        asked.set()
        assert answered.wait(20)
        real(ends)

    with running(Unit(context_of())) as unit:
        wait_until(lambda: unit.run._looks.awaits_change, "it has taken the unit over")
        monkeypatch.setattr(topic, "wait", slow)
        put(datastore, 20)
        wait_until(lambda: unit.has_all(topic) and asked.is_set(), "a save is under way")
        put(datastore, 20, 20)
        wait_until(lambda: unit.has_all(topic), "what came meanwhile is exported")
        assert not unit.all_saved()
        answered.set()
        wait_until(unit.all_saved, "all is saved", 20)


def test_no_offset_is_saved_before_readers_of_commits_see_its_records(
    context_of: Contexts, datastore: Datastore, topic: MemoryTopic
) -> None:
    with running(Unit(context_of())) as unit:
        wait_until(lambda: unit.run._looks.awaits_change, "it has taken the unit over")
        topic.fail("shown", *[Unavailable("the marks are on their way")] * 40)
        put(datastore, 20)
        wait_until(lambda: unit.has_all(topic), "all is copied")
        assert topic.fails["shown"]
        assert not unit.all_saved()
        wait_until(unit.all_saved, "all is saved", 20)
    assert not topic.fails["shown"]
