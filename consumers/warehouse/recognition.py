"""Whether the cluster that a loader reads from is one of the table's.

Rows of another log than the table's must not enter it: before each commit the loader asks the
cluster for its id (:mod:`cellfeed.consumers.warehouse.source`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cellfeed.consumers.warehouse import kafka_records
from cellfeed.consumers.warehouse.cell_rows import WarehouseRow
from cellfeed.consumers.warehouse.kafka_records import CONSUME_WAIT_S, content_of
from cellfeed.consumers.warehouse.shard_loader import decoded_row
from cellfeed.consumers.warehouse.source import TableSource
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.store.errors import Unavailable

_log = logging.getLogger("cellfeed.consumers.warehouse.loader")


class Recognition:
    """Asks with a client of its own: beside a fetch that is under way a question would wait for
    it. ``config``: librdkafka settings of that client."""

    def __init__(self, config: Mapping[str, Any], topic: str, directory: Path) -> None:
        self.is_recognised = False
        self._topic = topic
        self._directory = directory
        self._source = TableSource(directory)
        self._consumer = Consumer(dict(config), logger=_log)

    def close(self) -> None:
        self._consumer.close()

    def recognise(self) -> bool:
        """Whether the cluster reported its id just now, and is one of the table's. Raises
        ProtectData for another one's log."""
        try:
            cluster_id = self._consumer.list_topics(
                self._topic, kafka_records.METADATA_TIMEOUT_S
            ).cluster_id
            self._source.accept(
                cluster_id, WarehouseTable(self._directory).last_rows, self._record_at
            )
        except (KafkaException, Unavailable) as error:
            _log.warning("%s is not asked for its identity: %s", self._topic, error)
            return False
        self.is_recognised = True
        return True

    def _record_at(self, shard: int, offset: int) -> WarehouseRow | None:
        """The cell that lies there now. Raises Unavailable."""
        try:
            self._consumer.assign([TopicPartition(self._topic, shard, offset)])
            ends_at = time.monotonic() + kafka_records.METADATA_TIMEOUT_S
            while time.monotonic() < ends_at:
                for record in self._consumer.consume(1, CONSUME_WAIT_S):
                    error = record.error()
                    if error is None:
                        return (
                            decoded_row(shard, record.offset() or 0, *content_of(record))
                            if record.offset() == offset
                            else None
                        )
                    if error.code() in (
                        KafkaError._PARTITION_EOF,  # noqa: SLF001
                        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
                        KafkaError.OFFSET_OUT_OF_RANGE,
                    ):
                        return None
            raise Unavailable(
                f"no record of partition {shard} at offset {offset} within"
                f" {kafka_records.METADATA_TIMEOUT_S:.0f} s"
            )
        finally:
            self._consumer.unassign()
