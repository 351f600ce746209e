"""A topic as a place: of the gateway, or of a broker to which the cells are exported."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cellfeed.bridge.events.decoded_event import DecodedEvent
from cellfeed.bridge.events.messages import cell_of_message
from cellfeed.consumers.warehouse.kafka_records import end_offsets
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.errors import DataDamaged, InvalidRequest, Unavailable
from cellfeed.verify.place import Erased

SILENCE_MAX_S: Final = 30.0
"""How long a topic may send nothing before its end is reached: longer than a client's own retries
after a lost connection."""


_CONNECT_S: Final = 3.0
"""How long an address may take to accept a connection: longer than any network that answers."""

_CONSUME_RECORDS: Final = 5_000


_CONSUME_WAIT_S: Final = 1.0


class TopicPlace:
    """A topic with a cell in every record: of a gateway, or of a Kafka cluster. Reads by assignment
    and commits no offsets."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        name: str = "gateway",
        consumer_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._bootstrap = bootstrap
        self._topic = topic
        # The client's own log has a line for every attempt; the error has the cause.
        self._config = {"log_level": 2, **(consumer_config or {})}

    def first_ids(self) -> dict[int, int]:
        """Nothing: offsets of a cluster's topic are no ids, and a gateway's log starts where the
        store's does."""
        return {}

    def next_ids(self) -> dict[int, int]:
        """The end offsets: in a cluster's topic they may be ahead of the ids, never behind."""
        return end_offsets(self._bootstrap, self._topic, self._config)

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        digests = {shard: ShardDigest() for shard in ids}
        unread = {shard for shard, each in ids.items() if each}
        if not unread:
            return digests
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"cellfeed-verify-{uuid.uuid4().hex}",
                "isolation.level": "read_committed",
                **self._config,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        try:
            consumer.assign(
                [TopicPartition(self._topic, shard, OFFSET_BEGINNING) for shard in sorted(unread)]
            )
            self._read(consumer, ids, digests, unread, erased)
        except KafkaException as error:
            raise Unavailable(f"reading {self._topic} from {self._bootstrap}: {error}") from error
        finally:
            consumer.close()
        return digests

    def _read(
        self,
        consumer: Consumer,
        ids: Mapping[int, range],
        digests: Mapping[int, ShardDigest],
        unread: set[int],
        erased: Erased,
    ) -> None:
        silence_s = 0.0
        while unread:
            records = consumer.consume(_CONSUME_RECORDS, _CONSUME_WAIT_S)
            # Counted in waits, not by a clock: a machine that was asleep has not been waiting.
            silence_s = 0.0 if records else silence_s + _CONSUME_WAIT_S
            if silence_s >= SILENCE_MAX_S:
                raise Unavailable(
                    f"{self._topic} at {self._bootstrap} sent nothing for {SILENCE_MAX_S:.0f} s,"
                    f" shards {sorted(unread)[:10]} not read whole"
                )
            for record in records:
                shard, error = record.partition(), record.error()
                if shard is None or shard not in unread:
                    continue
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (librdkafka's public name for it)
                        unread.discard(shard)
                    elif not error.retriable():
                        raise Unavailable(
                            f"reading partition {shard} of {self._topic}: {error.str()}"
                        )
                    continue
                cell = cell_of_message(record)
                if cell.shard != shard:
                    raise DataDamaged(
                        f"partition {shard} of {self._topic}, offset {record.offset()}: a cell of"
                        f" shard {cell.shard}"
                    )
                if cell.added_id in ids[shard]:
                    _add(
                        digests[shard],
                        cell._replace(body_json=erased.body(shard, cell.added_id, cell.body_json)),
                    )
                if cell.added_id + 1 >= ids[shard].stop:
                    unread.discard(shard)


def _add(digest: ShardDigest, cell: DecodedEvent) -> None:
    try:
        digest.add(cell.added_id, cell.row_key, cell.column_name, cell.ref_key, cell.body_json)
    except ValueError as error:
        raise DataDamaged(str(error)) from None


def check_reachable(bootstrap: str) -> None:
    """Raises Unavailable where none of the addresses accepts a connection, InvalidRequest for one
    that is none."""
    reasons = []
    for address in bootstrap.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not (colon and host and port.isdigit() and 0 < int(port) <= 65_535):
            raise InvalidRequest(
                f"{ascii(address)[:80]} is not the address of a gateway: HOST:PORT"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except OSError as error:
            reasons.append(f"{address.strip()}: {error.strerror or error}")
        else:
            return
    raise Unavailable(
        f"no gateway or Kafka broker accepts a connection at {'; '.join(reasons)}. `cellfeed"
        " status` shows where the instance's gateways listen"
    )
