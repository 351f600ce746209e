"""The results of an outlet, read beside the answer of a wait: no answer may come before its effect.

Each kind has a reading that is taken right behind an answer, and a judgement of it. The reading may
be a length: of the trigger's file, or of a partition's committed part. Then the judgement comes at
the end of the run, when the places of all effects are known. So nothing that came behind the answer
counts.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.events.messages import header_values
from cellfeed.bridge.events.record_headers import added_id_of
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from tests.faults.lake_evidence import LakeEvidence
from tests.faults.waited_program import LINE_BYTES

CONSUMERS: Final = "readers"
_READ_S: Final = 60.0


class Batch(NamedTuple):
    """Cells that were put together: the value that the index has of them all, their rows, and their
    places."""

    name: str
    rows: frozenset[UUID]
    places: Sequence[Places]


class Evidence:
    """Any number of threads."""

    def __init__(
        self,
        datastore: Datastore,
        coordinator: Coordinator,
        effects: Path,
        index: str,
        topic: str,
        lake: LakeEvidence,
    ) -> None:
        self._datastore = datastore
        self._coordinator = coordinator
        self._effects = effects
        self._index = index
        self._topic = topic
        self._lake = lake
        self._versions: list[tuple[Batch, str]] = []
        self._broker: AdminClient | None = None
        self._lengths: list[tuple[Batch, int]] = []
        self._ends: list[tuple[Batch, Mapping[int, int]]] = []
        self._lock = threading.Lock()
        self.early: list[str] = []
        """Answers that came before the effect."""

    def at_broker(self, bootstrap: str) -> None:
        self._broker = AdminClient({"bootstrap.servers": bootstrap})

    def take(self, kind: str, batch: Batch) -> None:
        """Reads the outlet's results for a batch, right behind the answer."""
        if kind == "trigger":
            length = self._effects.stat().st_size
            with self._lock:
                self._lengths.append((batch, length))
        elif kind == "export":
            ends = self._committed_ends([each.shard for each in batch.places])
            with self._lock:
                self._ends.append((batch, ends))
        elif kind == "lake":
            version = self._lake.version()
            with self._lock:
                self._versions.append((batch, version))
        elif kind == "index":
            found = self._datastore.query_index(self._index, batch.name, limit=1_000, mode="fast")
            missing = batch.rows - {row.row_key for row in found.rows}
            self._note([f"index: {each} of batch {batch.name} is not found" for each in missing])
        else:
            topic = self._datastore.name
            saved = self._coordinator.fetch_offsets(
                CONSUMERS, [(topic, each.shard) for each in batch.places]
            )
            offsets = {shard: each.offset for (_, shard), each in saved.items()}
            self._note(
                f"group: {each} was answered at offset {offsets.get(each.shard)}"
                for each in batch.places
                if offsets.get(each.shard, 0) <= each.last
            )

    def judge(self, bootstrap: str, places_of: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        """Compares the lengths with the places of the effects; ``places_of`` a batch's name its
        cells."""
        text = self._effects.read_bytes()
        ended: dict[tuple[int, int], int] = {}
        for begin in range(0, len(text), LINE_BYTES):
            shard, added_id = text[begin : begin + LINE_BYTES].split()
            ended.setdefault((int(shard), int(added_id)), begin + LINE_BYTES)
        for batch, length in self._lengths:
            self._note(
                f"trigger: {shard}/{added_id} was answered before its run"
                for shard, added_id in places_of[batch.name]
                if ended.get((shard, added_id), length + 1) > length
            )
        brought, numbers = self._lake.brought()
        for batch, version in self._versions:
            self._note(
                f"lake: {shard}/{added_id} was answered at version {version} of the table"
                for shard, added_id in places_of[batch.name]
                if brought.get((shard, added_id), numbers[version] + 1) > numbers[version]
            )
        offsets = self._offsets(bootstrap)
        for batch, ends in self._ends:
            self._note(
                f"export: {shard}/{added_id} was answered before its record was committed"
                for shard, added_id in places_of[batch.name]
                if offsets.get((shard, added_id), ends[shard]) >= ends[shard]
            )

    def _note(self, found: Iterable[str]) -> None:
        with self._lock:
            self.early += found

    def _committed_ends(self, shards: Sequence[int]) -> Mapping[int, int]:
        assert self._broker is not None
        spec: Any = OffsetSpec
        asked = {TopicPartition(self._topic, shard): spec.latest() for shard in shards}
        answers = self._broker.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=20
        )
        return {each.partition: answer.result().offset for each, answer in answers.items()}

    def _offsets(self, bootstrap: str) -> Mapping[tuple[int, int], int]:
        """Of the committed records of the exported topic, by shard and added_id."""
        found: dict[tuple[int, int], int] = {}
        shards = range(self._datastore.shards)
        ends = self._committed_ends(shards)
        with closing(
            Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": "evidence",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                }
            )
        ) as consumer:
            consumer.assign([TopicPartition(self._topic, shard, 0) for shard in shards])
            at_end: set[int] = set()
            deadline_s = time.monotonic() + _READ_S
            while len(at_end) < len(shards) and time.monotonic() < deadline_s:
                for message in consumer.consume(1_000, timeout=0.5):
                    partition = message.partition() or 0
                    if message.error() is not None:
                        at_end.add(partition)
                        continue
                    added_id = added_id_of(header_values(message).items())
                    assert added_id is not None
                    found[partition, added_id] = message.offset() or 0
        assert len(at_end) == len(shards), f"the topic was not read to its ends {ends}"
        return found


class Consuming(threading.Thread):
    """A consumer of the gateways that commits behind each batch of records, repeats a commit that
    failed, and joins again as often as it must."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name="consumer of fault runs", daemon=True)
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": CONSUMERS,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "reconnect.backoff.max.ms": 500,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
        self._topic = topic
        self._ended = threading.Event()
        self.commits: dict[str, int] = defaultdict(int)
        """By result."""

    def run(self) -> None:
        with closing(Consumer(self._settings)) as consumer:
            consumer.subscribe([self._topic])
            is_due = False
            while not self._ended.is_set():
                messages = consumer.consume(100, timeout=0.05)
                is_due = is_due or any(each.error() is None for each in messages)
                if not is_due:
                    continue
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:
                    self.commits[str(error.args[0].name())] += 1
                    # Nothing to commit: the partitions have gone to another member, or came back.
                    is_due = error.args[0].code() != KafkaError._NO_OFFSET
                else:
                    self.commits["done"] += 1
                    is_due = False

    def stop(self) -> None:
        self._ended.set()
        self.join(30)
