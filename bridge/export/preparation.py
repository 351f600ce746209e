"""Making sure, before an export begins, that its topic is there and its own; and the parts that its
units share.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Final

from confluent_kafka import KafkaException

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.export.batches import Throttle
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_terms import agree_terms, read_terms
from cellfeed.bridge.export.foreign_topics import refuse_foreign_topic
from cellfeed.bridge.export.kafka_clients import admin_of
from cellfeed.bridge.export.kafka_errors import error_of, words
from cellfeed.bridge.export.limits import BACKOFF_MAX_S, REFUSED_LOOK_S
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.export.schema_ids import schema_id_for, typed_format
from cellfeed.bridge.export.shown_ends import ShownEnds
from cellfeed.bridge.export.taking_over import ExportContext
from cellfeed.bridge.export.topics import cluster_id_of, ensure_topic
from cellfeed.bridge.groups.work_threads import WorkThreads
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, ProtectData

_log: Final = logging.getLogger("cellfeed.export")


class Preparation:
    """Used by the process's main thread; works in one of ``threads``."""

    def __init__(
        self,
        export: Export,
        datastore: Datastore,
        coordinator: Coordinator,
        heads_wanted: threading.Event,
        threads: WorkThreads,
    ) -> None:
        self._export = export
        self._datastore = datastore
        self._coordinator = coordinator
        self._heads_wanted = heads_wanted
        self._threads = threads
        self._preparing: Future[None] | None = None
        self._prepare_at_s = 0.0
        self.waits: str = "not started"
        self.refused: ProtectData | None = None
        """Why the export cannot begin at all, as long as it is so."""
        self.context: ExportContext | None = None

    def result(self, now_s: float) -> ExportContext | None:
        """The units' shared parts; None while the topic was not looked at, or is refused."""
        if self.context is not None or now_s < self._prepare_at_s:
            return self.context
        if self._preparing is None:
            self._preparing = self._threads.submit(self._prepare)
        elif self._preparing.done():
            error, self._preparing = self._preparing.exception(), None
            if error is not None:
                self._not_prepared(error, now_s)
        return self.context

    def _prepare(self) -> None:
        export, datastore = self._export, self._datastore
        topic, known = export.topic_of(datastore.name), read_terms(datastore, export.name)
        admin = admin_of(export)
        cluster_id = cluster_id_of(admin)
        if known is not None:  # before a topic is made in a cluster that gets none
            agree_terms(datastore, export, known.topic_id, cluster_id)
        facts = ensure_topic(
            admin,
            export,
            topic,
            datastore.shards,
            make=known is None or export.on_lost_topic == "start_over",
        )
        if known is None:
            refuse_foreign_topic(export, datastore, topic)
        encoder = RecordEncoder(
            export,
            datastore.name,
            schema_id_for(export, topic),
            typed_format(export, datastore, topic),
        )
        agreed = agree_terms(datastore, export, facts.topic_id, cluster_id)
        throttle = Throttle(export.cells_per_s)
        self.context = ExportContext(
            export,
            datastore,
            self._coordinator,
            topic,
            agreed,
            encoder,
            throttle,
            ShownEnds(export, topic),
            self._heads_wanted,
        )
        self.refused = None

    def _not_prepared(self, error: BaseException, now_s: float) -> None:
        if isinstance(error, ProtectData):
            self.refused, self.waits, wait_s = error, f"stands still: {error}", REFUSED_LOOK_S
        elif isinstance(error, KafkaException):
            self.waits, wait_s = (
                f"waiting: the Kafka cluster: {words(error_of(error))}",
                BACKOFF_MAX_S / 2,
            )
        elif isinstance(error, CellfeedError):
            self.waits, wait_s = f"waiting: {error}", BACKOFF_MAX_S / 2
        else:
            raise error
        self._prepare_at_s = now_s + wait_s
        _log.warning("%s %s", self._export.group, self.waits)
