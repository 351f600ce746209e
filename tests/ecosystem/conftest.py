"""A gateway with the views of ``docs/recipes.md``, and a Kafka cluster beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import cellfeed.schemas
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.stored_columns import Settings
from cellfeed.bridge.typed.versions import register
from cellfeed.store.datastore import Datastore
from tests.ecosystem.place import PAGE, Place
from tests.support.local_kafka import started_kafka
from tests.support.running_gateway import GatewayProcess


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    [views, *_] = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    declared = yaml.safe_load(views)["datastore"]
    [schema] = declared["schemas"]
    with Datastore.open_embedded(tmp_path / "store") as store:
        register(
            store.state,
            schema["column"],
            body_schema(cellfeed.schemas.avro_text(schema["schema"])),
            Settings(schema["unfit"]),
        )
        running = GatewayProcess(
            tmp_path / "store",
            tmp_path / "gateway.log",
            formats={"*": "avro"},
            topics=declared["topics"],
        )
        with running as gateway:
            (tmp_path / "recipe").mkdir()
            yield Place(tmp_path / "recipe", store, gateway)


@pytest.fixture
def clustered(place: Place) -> Iterator[Place]:
    """With a Kafka cluster."""
    with started_kafka() as broker:
        place.words["127.0.0.1:9094"] = broker.bootstrap
        yield place
