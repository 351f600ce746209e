"""Readers of a fault run on clusters beside its tailers, each over an engine and a coordination of
its own: an exporter into a real Kafka broker; Kafka clients of a gateway, assigned and in a group,
one of them a warehouse loader; a trigger that charges."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from uuid import UUID

import confluent_kafka

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.events.messages import cell_of_message
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.verify import verify_export
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.consumers.billing.app import card_of
from cellfeed.consumers.billing.card_provider import SandboxCardProvider
from cellfeed.consumers.billing.charge_keys import GROUP as BILLING
from cellfeed.consumers.billing.charge_keys import key_of_place
from cellfeed.consumers.warehouse.loader import run_warehouse_loader
from cellfeed.consumers.warehouse.loader_progress import FlushPolicy
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.store.cells.cell import Cell
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import NotFound
from tests.faults.cluster_system import seen_stored
from tests.faults.export_faults import has_come_to, until
from tests.faults.invariants import (
    Log,
    Seen,
    Violations,
    check_once_per_cell,
    check_reader,
    merge,
    verdict,
)
from tests.faults.shown import Shown
from tests.faults.workload import seen_cell
from tests.support.export_steps import check_equal, export_to
from tests.support.local_kafka import Kafka
from tests.support.move_steps import gateway, kafka_consumer
from tests.support.trigger_workers import Recorder, working

_FLUSH = FlushPolicy(rows=50, age_s=0.3)

CLIENT_PATHS = ("the assigned client", "the group", "the trigger", "the warehouse")

Place = tuple[int, int]
"""Shard and added_id."""


class Exported:
    """The records that the exporter has made."""

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
        differing = [
            each.shard
            for each in verify_export(self._export, datastore)
            if not each.equal or each.partition_digest != each.log_digest
        ]
        return {
            "I15": [repr(each) for each in self._failed],
            "I17": [f"partition {shard} differs from its log" for shard in differing],
        }


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
    """The cells that Kafka clients have read, and a trigger has run, by shard and added_id, in its
    order; and its outcome in ``place``: charges, a warehouse."""

    def __init__(self, place: Path, shown: Shown) -> None:
        self._shown = shown
        self.assigned: list[Place] = []
        self.grouped: list[Place] = []
        self.recorder = Recorder()
        self.recorder.before = self._charge
        self.warehouse = place / "warehouse"
        self.failed: list[BaseException] = []
        self.provider = SandboxCardProvider(place / "charges.sqlite3")

    def _charge(self, cell: Cell) -> None:
        """The claim of the cell's own body: another body at a place that was charged already is
        refused by the provider."""
        self._shown.see("the trigger", cell.shard, seen_cell(cell))
        self.provider.charge(key_of_place(cell), card_of(cell.row_key), cell.body["n"])

    def poll(
        self,
        consumer: confluent_kafka.Consumer,
        path: str,
        into: list[Place],
        stop: threading.Event,
    ) -> None:
        """Reads as a client does, until it is asked to stop."""
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            event = cell_of_message(message)
            place = message.partition() or 0, message.offset() or 0
            into.append(place)
            self._shown.see(
                path,
                place[0],
                Seen(
                    place[1],
                    UUID(bytes=event.row_key),
                    event.column_name,
                    event.ref_key,
                    event.body_json,
                ),
            )
            if (event.shard, event.added_id) != place:
                self.failed.append(
                    ValueError(
                        f"{path} was given {event.shard}/{event.added_id} at {place[0]}/{place[1]}"
                    )
                )

    def load(self, bootstrap: str, stop: threading.Event) -> None:
        """Loads the topic into the warehouse until it is asked to stop."""
        try:
            run_warehouse_loader(
                bootstrap, "trips", "warehouse", self.warehouse, stop, flush=_FLUSH
            )
        except BaseException as error:
            self.failed.append(error)

    def violations(self, datastore: Datastore) -> Violations:
        """I7, I8, I14 and I16, once nobody writes any more: an assigned client has read every cell
        once, in order; a group and a trigger have had every cell, some of them again after a claim
        was lost; each cell has one charge, and one row in the warehouse."""
        log = {
            shard: [seen_stored(cell) for cell in datastore.engine.scan(shard, 0, 1_000_000)]
            for shard in datastore.heads()
        }
        wanted = {(shard, cell.added_id) for shard, cells in log.items() for cell in cells}
        found: Violations = {}
        everybody = (
            ("I8", "the assigned client", self.assigned),
            ("I8", "the group", self.grouped),
            ("I14", "the trigger", self.recorder.cells),
        )
        for invariant, name, read in everybody:
            try:
                until(lambda read=read: wanted <= set(read), f"{name} has come to the ends")  # type: ignore[misc]
            except TimeoutError:
                found.setdefault(invariant, []).append(
                    f"{name} lacks {sorted(wanted - set(read))[:5]}"
                )
            if invented := set(read) - wanted:
                found.setdefault("I2", []).append(f"{name} was given {sorted(invented)[:5]}")
        for shard, cells in log.items():
            ids = [added_id for number, added_id in self.assigned if number == shard]
            if ids != list(range(len(cells))):
                found.setdefault("I7", []).append(
                    f"the assigned client read {shard} as {ids[:5]}…, {len(ids)} of {len(cells)},"
                    " not each once and in order"
                )
        return merge(found, self._charges(log), verdict("the warehouse", lambda: self._rows(log)))

    def _charges(self, log: Log) -> Violations:
        due = {
            f"{BILLING}-{shard}-{cell.added_id}": json.loads(cell.body_json)["n"]
            for shard, cells in log.items()
            for cell in cells
        }
        charges = self.provider.charges()
        wrong = [
            f"{each.idempotency_key} took {each.amount_cents} cents"
            for each in charges
            if each.amount_cents != due.get(each.idempotency_key)
        ]
        return merge(
            check_once_per_cell(due, [each.idempotency_key for each in charges], "charge"),
            {"I16": wrong},
        )

    def _rows(self, log: Log) -> Violations:
        ends = {shard: len(cells) for shard, cells in log.items() if cells}

        def loaded() -> bool:
            try:
                positions = WarehouseTable(self.warehouse).positions()
            except NotFound:
                return False
            return all(
                shard in positions and positions[shard].next_id >= end
                for shard, end in ends.items()
            )

        try:
            until(loaded, "the warehouse has come to the ends")
        except TimeoutError as error:
            return {"I16": [str(error), *map(repr, self.failed)]}
        table = WarehouseTable(self.warehouse)
        rows = {
            shard: [
                Seen(
                    row.added_id,
                    UUID(bytes=row.row_key),
                    row.column_name,
                    row.ref_key,
                    row.body_json,
                )
                for row in table.rows(shard)
            ]
            for shard in table.shards()
        }
        self._shown.log("the warehouse", rows)
        told = check_reader(
            {shard: log.get(shard, []) for shard in {*log, *rows}}, rows, "the warehouse"
        )
        return {
            "I16": [*(each for some in told.values() for each in some), *map(repr, self.failed)]
        }


@contextmanager
def following(engine: Engine, shown: Shown) -> Iterator[Followed]:
    """A gateway with its clients, and a trigger; they end with the context. Closes the engine.
    ``shown`` has all that they are given."""
    stop = threading.Event()
    with ExitStack() as stack:
        followed = Followed(
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cellfeed-followed-"))),
            shown,
        )
        datastore = stack.enter_context(Datastore(engine))
        coordinator = StoreCoordinator(datastore.state)
        stack.callback(coordinator.close)
        stack.enter_context(working(datastore, coordinator, followed.recorder))
        bootstrap = stack.enter_context(gateway(datastore, coordinator))
        by_hand, member = kafka_consumer(bootstrap, "by-hand"), kafka_consumer(bootstrap, "members")
        by_hand.assign(
            [confluent_kafka.TopicPartition("trips", shard, 0) for shard in range(datastore.shards)]
        )
        member.subscribe(["trips"])
        threads = [
            threading.Thread(target=followed.load, args=(bootstrap, stop), name="warehouse"),
            threading.Thread(
                target=followed.poll,
                args=(by_hand, "the assigned client", followed.assigned, stop),
                name="by-hand",
            ),
            threading.Thread(
                target=followed.poll,
                args=(member, "the group", followed.grouped, stop),
                name="member",
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            yield followed
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            by_hand.close()
            member.close()
