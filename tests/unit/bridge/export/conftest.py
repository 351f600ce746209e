"""An export of the embedded store into a topic in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.batches import Throttle
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_terms import agree_terms
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.export.taking_over import ExportContext
from cellfeed.store.datastore import Datastore
from tests.support.memory_topic import TOPIC_ID, MemoryTopic, in_place_of_kafka

EXPORT = Export("trips", "broker:9092", topic="out", format="json", units=2, lease_s=30.0)


@pytest.fixture
def topic(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    made = MemoryTopic(datastore.shards)
    in_place_of_kafka(monkeypatch, made)
    return made


@pytest.fixture
def coordinator(datastore: Datastore) -> Iterator[StoreCoordinator]:
    made = StoreCoordinator(datastore.state)
    yield made
    made.close()


@pytest.fixture
def context_of(
    datastore: Datastore, coordinator: StoreCoordinator, topic: MemoryTopic
) -> Callable[..., ExportContext]:
    """Makes the parts that the units share; changes of the export by name."""

    def make(**changed: Any) -> ExportContext:
        export = msgspec.structs.replace(EXPORT, **changed)
        return ExportContext(
            export,
            datastore,
            coordinator,
            "out",
            agree_terms(datastore, export, TOPIC_ID, "cluster"),
            RecordEncoder(export, datastore.name, 1),
            Throttle(None),
            topic,
            threading.Event(),
        )

    return make
