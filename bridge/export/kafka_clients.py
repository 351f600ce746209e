"""The Kafka clients of an export, with the settings that exactly-once rests upon, and those of the
configuration."""

from __future__ import annotations

import logging
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.limits import (
    CLIENT_QUEUE_KBYTES,
    KAFKA_CALL_S,
    TRANSACTION_CELLS_MAX,
    TRANSACTION_TIMEOUT_S,
)
from cellfeed.store.secret_references import resolved_settings

_log: Final = logging.getLogger("cellfeed.export.client")
_RECONNECT_MS_MAX: Final = 1_000
"""The longest pause between two tries to connect (the client makes it up to half as long again): so
much later an export notices that its cluster is back."""


def transactional_id(export: Export, unit: int, number: int) -> str:
    """Stable for each of a unit's producers: a new producer with it fences the one before."""
    return f"cellfeed-export-{export.name}-{unit}-{number}"


def producer_of(export: Export, unit: int, number: int) -> Producer:
    """One of a unit's transactional producers; nothing is asked of the cluster yet."""
    timeout_ms = int(TRANSACTION_TIMEOUT_S * 1000)
    own = {
        "transactional.id": transactional_id(export, unit, number),
        "enable.idempotence": True,
        "acks": "all",
        "transaction.timeout.ms": timeout_ms,
        "message.max.bytes": export.record_bytes_max,
    }
    defaults = {
        # About the time in which a shard's records of a large transaction are handed over: the
        # broker gets few large batches, and is at work on the first ones while the rest are handed
        # over. (With 20 ms it takes no less CPU, and most of them wait for the flush.) A small
        # transaction does not wait for it: flush sends the queued records.
        "linger.ms": 5,
        "batch.size": min(export.record_bytes_max, 1_000_000),
        "compression.type": export.compression,
        "message.timeout.ms": timeout_ms,
        "queue.buffering.max.kbytes": CLIENT_QUEUE_KBYTES,
        "queue.buffering.max.messages": 2 * TRANSACTION_CELLS_MAX,
    }
    return Producer(
        _common(export) | defaults | resolved_settings(export.client) | own, logger=_log
    )


def consumer_of(export: Export, *, queued_kbytes: int = 16 << 10) -> Consumer:
    """Reads committed records of partitions that it is assigned; it joins no group and commits
    nothing."""
    own = {
        "group.id": f"cellfeed-export-{export.name}-reader",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }
    defaults = {
        "queued.max.messages.kbytes": queued_kbytes,
        "fetch.wait.max.ms": 100,
        "fetch.message.max.bytes": max(1 << 20, export.record_bytes_max),
    }
    return Consumer(_common(export) | defaults | _for_readers(export) | own, logger=_log)


def admin_of(export: Export) -> AdminClient:
    """For looking at the topic, and making it."""
    return AdminClient(_common(export) | _for_readers(export), logger=_log)


def _common(export: Export) -> dict[str, Any]:
    return {
        "bootstrap.servers": export.bootstrap,
        "client.id": f"cellfeed-export-{export.name}",
        "reconnect.backoff.max.ms": _RECONNECT_MS_MAX,
        # a transaction is several small requests, each of which would wait for the answer to the
        # one before
        "socket.nagle.disable": True,
        "socket.timeout.ms": int(4 * KAFKA_CALL_S * 1000),
        "log.connection.close": False,
        # Lag and the process's own log say why an export waits: the client's lines about each
        # attempt say nothing more.
        "log_level": 2,
        # Without it the Python client raises a fatal error out of the next call, of any kind; each
        # call that concerns it has it from the library anyway.
        "error_cb": _noted,
    }


def _noted(error: KafkaError) -> None:
    _log.debug("%s", error)


_PRODUCER_ONLY: Final = (
    "linger.ms",
    "batch.",
    "compression.",
    "queue.buffering.",
    "retries",
    "retry.",
    "message.timeout",
    "delivery.",
    "sticky.",
    "partitioner",
)


def _for_readers(export: Export) -> dict[str, Any]:
    """The configured settings, without those that only a producer knows: the client warns of
    each."""
    return {
        name: value
        for name, value in resolved_settings(export.client).items()
        if not name.startswith(_PRODUCER_ONLY)
    }
