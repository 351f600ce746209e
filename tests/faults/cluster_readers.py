"""Readers of a fault run on clusters beside its tailers, each over an engine and a coordination of its own: an exporter into a real Kafka broker; Kafka clients
of a gateway, assigned and in a group; a trigger."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import confluent_kafka

from bridge.coordination.in_store import StoreCoordinator
from bridge.export.declaration import Export
from bridge.export.verify import verify_export
from bridge.export.worker import run_exporter
from store.clusters.engine import ClusteredEngine
from store.datastore import Datastore
from tests.faults.export_faults import has_come_to, until
from tests.faults.invariants import Violations
from tests.integration.export_steps import check_equal, export_to
from tests.integration.move_steps import kafka_consumer, polled
from tests.services.local_kafka import Kafka
from tests.unit.trigger_workers import Recorder, working

Place = tuple[int, int]
"""Shard and added_id."""


class Exported:
    """What the exporter has made."""

    def __init__(self, export: Export, failed: list[BaseException]) -> None:
        self._export, self._failed = export, failed

    def violations(self, datastore: Datastore) -> Violations:
        """I15 and I17, once everything is exported and nobody writes any more."""
        ends = {shard: head.watermark for shard, head in datastore.heads().items()}
        try:
            until(lambda: has_come_to(self._export, ends), "everything is exported")
            check_equal(datastore, self._export)
        except (TimeoutError, AssertionError) as error:
            return {"I15": [str(error)[:500], *map(repr, self._failed)]}
        differing = [each.shard for each in verify_export(self._export, datastore) if not each.equal or each.partition_digest != each.log_digest]
        return {"I15": [repr(each) for each in self._failed], "I17": [f"partition {shard} differs from its log" for shard in differing]}


@contextmanager
def exporting(engine: ClusteredEngine) -> Iterator[Exported]:
    """A broker and an exporter; both end with the context. Closes the engine."""
    stop, failed = threading.Event(), list[BaseException]()
    with (
        tempfile.TemporaryDirectory(prefix="cellfeed-kafka-") as directory,
        Datastore(engine) as datastore,
        closing(StoreCoordinator(datastore.state)) as coordinator,
    ):
        kafka = Kafka(Path(directory))
        export = export_to(kafka, units=2)

        def run() -> None:
            try:
                run_exporter([export], datastore, coordinator, "exporter", stop)
            except BaseException as error:
                failed.append(error)

        try:
            kafka.start()
            thread = threading.Thread(target=run, name="exporter")
            thread.start()
            try:
                yield Exported(export, failed)
            finally:
                stop.set()
                thread.join()
        finally:
            kafka.kill()


class Followed:
    """What Kafka clients have read, and a trigger has run: by shard and added_id, in its order."""

    def __init__(self) -> None:
        self.assigned: list[Place] = []
        self.grouped: list[Place] = []
        self.recorder = Recorder()

    def violations(self, datastore: Datastore) -> Violations:
        """I7, I8 and I14, once nobody writes any more: an assigned client has read every cell once, in order; a group and a trigger have had every cell, some
        of them again after a claim was lost."""
        ends = {shard: head.next_added_id for shard, head in datastore.heads().items()}
        wanted = {(shard, added_id) for shard, end in ends.items() for added_id in range(end)}
        found: Violations = {}
        everybody = (("I8", "the assigned client", self.assigned), ("I8", "the group", self.grouped), ("I14", "the trigger", self.recorder.cells))
        for invariant, name, read in everybody:
            try:
                until(lambda read=read: wanted <= set(read), f"{name} has come to the ends")  # type: ignore[misc]
            except TimeoutError:
                found.setdefault(invariant, []).append(f"{name} lacks {sorted(wanted - set(read))[:5]}")
            if invented := set(read) - wanted:
                found.setdefault("I2", []).append(f"{name} was given {sorted(invented)[:5]}")
        for shard, end in ends.items():
            ids = [added_id for number, added_id in self.assigned if number == shard]
            if ids != list(range(end)):
                found.setdefault("I7", []).append(f"the assigned client read shard {shard} as {ids[:5]}…, {len(ids)} of {end}, not each once and in order")
        return found


@contextmanager
def following(engine: ClusteredEngine) -> Iterator[Followed]:
    """A gateway with its clients, and a trigger; they end with the context. Closes the engine."""
    followed, stop = Followed(), threading.Event()
    with ExitStack() as stack:
        datastore = stack.enter_context(Datastore(engine))
        coordinator = StoreCoordinator(datastore.state)
        stack.callback(coordinator.close)
        stack.enter_context(working(datastore, coordinator, followed.recorder))
        consumer = stack.enter_context(kafka_consumer(datastore, coordinator))
        by_hand, member = consumer({"group.id": "by-hand"}), consumer({"group.id": "members"})
        by_hand.assign([confluent_kafka.TopicPartition("trips", shard, 0) for shard in range(datastore.shards)])
        member.subscribe(["trips"])
        threads = [polled(by_hand, followed.assigned, stop), polled(member, followed.grouped, stop)]
        try:
            yield followed
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            by_hand.close()
            member.close()
