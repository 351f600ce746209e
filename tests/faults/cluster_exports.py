"""An exporter among the readers of a fault run on clusters: every shard's log into a real Kafka broker, over an engine and a coordination of its own."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bridge.coordination.in_store import StoreCoordinator
from bridge.export.declaration import Export
from bridge.export.verify import verify_export
from bridge.export.worker import run_exporter
from store.clusters.engine import ClusteredEngine
from store.datastore import Datastore
from tests.faults.export_faults import has_come_to, until
from tests.faults.invariants import Violations
from tests.integration.export_steps import check_equal, export_to
from tests.services.local_kafka import Kafka


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
