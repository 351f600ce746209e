"""Which log the records come from: the ids of the Kafka cluster and of the topic, asked of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cellfeed.bridge.export.topics import cluster_id_of, describe
from cellfeed.store.errors import NotFound, Unavailable

_log = logging.getLogger("cellfeed.consumers.lake")

_NOT_FOR_ADMIN: Final = frozenset(
    {
        "group.id",
        "group.instance.id",
        "session.timeout.ms",
        "isolation.level",
        "queued.max.messages.kbytes",
        "fetch.message.max.bytes",
    }
)
"""Settings of consumers alone, which the client would warn of."""


class LogSource:
    """Asks with a client of its own: beside a fetch that is under way a question would wait for it.
    ``config``: librdkafka's settings."""

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._admin = AdminClient(
            {name: value for name, value in config.items() if name not in _NOT_FOR_ADMIN},
            logger=_log,
        )
        self._topic = topic

    def ask(self) -> str:
        """``<cluster id>/<topic>/<topic id>``: another log has another one. Raises Unavailable, and
        NotFound when the cluster has no such topic."""
        try:
            cluster_id = cluster_id_of(self._admin)
            facts = describe(self._admin, self._topic)
        except KafkaException as error:
            raise Unavailable(
                f"the Kafka cluster does not describe topic {self._topic}: {error}"
            ) from error
        if facts is None:
            raise NotFound(f"the Kafka cluster has no topic {self._topic}")
        if not cluster_id:
            raise Unavailable("the Kafka cluster does not report its id")
        return f"{cluster_id}/{self._topic}/{facts.topic_id}"
