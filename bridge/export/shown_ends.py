"""How far readers of committed records see the partitions of an export.

A broker answers a commit before it has written the transaction's marks into the partitions
(``unit_producer.py``). Until then readers of commits do not see its records. An offset is saved
behind the marks: so a reader that looks after a wait for the export finds the record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_clients import admin_of
from cellfeed.bridge.export.kafka_errors import error_of, words
from cellfeed.store.errors import Unavailable

SHOWN_S: Final = 1.0
"""How long the marks of a commit are waited for; the offset is saved a moment later otherwise. A
broker writes them in some milliseconds."""

_ASK_S: Final = 2.0
"""How long one question to the cluster waits."""

_AGAIN_FIRST_S: Final = 0.001
_AGAIN_MAX_S: Final = 0.02


class Shown(Protocol):
    """The ends that a save waits for."""

    def wait(self, ends: Mapping[int, int]) -> None:
        """Returns once readers of commits see each partition up to its end, a Kafka offset. Raises
        Unavailable."""
        ...


class ShownEnds:
    """:class:`Shown` of a topic in a cluster. Any number of threads, each with its partitions."""

    def __init__(self, export: Export, topic: str) -> None:
        self._export = export
        self._topic = topic
        self._admin: AdminClient | None = None
        self._opening = threading.Lock()
        self._seen: dict[int, int] = {}

    def wait(self, ends: Mapping[int, int]) -> None:
        deadline_s, again_s = time.monotonic() + SHOWN_S, _AGAIN_FIRST_S
        left = {each: end for each, end in ends.items() if self._seen.get(each, 0) != end}
        while left:
            found = self._committed(left)
            for each in [each for each, end in left.items() if found[each] >= end]:
                self._seen[each] = left.pop(each)
            if not left:
                return
            if time.monotonic() > deadline_s:
                partition = min(left)
                raise Unavailable(
                    f"readers of commits see partition {partition} of {self._topic!r} up to"
                    f" {found[partition]}, and {left[partition]} was committed"
                )
            time.sleep(again_s)
            again_s = min(_AGAIN_MAX_S, again_s * 2)

    def _committed(self, partitions: Mapping[int, int]) -> dict[int, int]:
        spec: Any = OffsetSpec  # has no types
        wanted = {TopicPartition(self._topic, each): spec.latest() for each in partitions}
        with self._opening:
            admin = self._admin = self._admin or admin_of(self._export)
        try:
            answers = admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ASK_S
            )
            return {each.partition: got.result().offset for each, got in answers.items()}
        except KafkaException as error:
            # librdkafka's client asks by the leader epochs that it once learnt, and learns no newer
            # ones by their refusal: after a restart of the brokers it would be refused for ever.
            if self._admin is admin:
                self._admin = None
            raise Unavailable(
                f"the ends of {self._topic!r} could not be read: {words(error_of(error))}"
            ) from None
