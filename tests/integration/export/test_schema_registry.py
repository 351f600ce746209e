"""Confluent's own client against the registry over a real socket: ``AvroDeserializer`` works
unchanged."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import uvicorn
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import cellfeed.schemas
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.events.envelope import AvroFormat
from cellfeed.bridge.events.registry import SchemaRegistry, envelope_schema_id
from cellfeed.bridge.events.registry_http import registry_app
from cellfeed.bridge.events.views import Condition
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.run import run_gateway
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore

START_TIMEOUT_S = 20.0
TOPIC = "trips.BASE"
ROW_KEY = uuid.UUID("5f0c7a52-28b4-5d6f-9f1b-3c9a1e0d7b44")
CELL = StoredCell(4711, ROW_KEY.bytes, "BASE", -3, 1_790_000_000_123_456, b"")
BODY = '{"fare":12.5,"zone":"Théâtre"}'.encode()


@pytest.fixture(scope="module")
def registry_url() -> Iterator[str]:
    """The address of a registry served by uvicorn in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                registry_app(SchemaRegistry("trips", lambda: ["BASE"])),
                log_level="warning",
                lifespan="on",
            )
        )
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="registry-under-test"
        )
        thread.start()
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not server.started:
                assert time.monotonic() < deadline, "the registry did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(START_TIMEOUT_S)
            assert not thread.is_alive(), "the registry did not end"


@pytest.fixture
def client(registry_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_url}) as opened:
        yield opened


def value() -> bytes:
    return AvroFormat(envelope_schema_id()).encode(7, CELL, row_key_text(CELL.row_key), BODY)


@pytest.mark.integration
@pytest.mark.parametrize(
    "settings", [{}, {"use.latest.version": True}], ids=["writer's schema", "latest version"]
)
def test_avro_deserializer_reads_a_cell(
    client: SchemaRegistryClient, settings: dict[str, object]
) -> None:
    deserializer = AvroDeserializer(client, conf=settings)
    event = deserializer(value(), SerializationContext(TOPIC, MessageField.VALUE))
    assert event == {
        "row_key": ROW_KEY,
        "column_name": "BASE",
        "ref_key": -3,
        "added_id": 4711,
        "shard": 7,
        "created_at": datetime(2026, 9, 21, 14, 13, 20, 123456, tzinfo=UTC),
        "body": BODY.decode(),
    }


@pytest.mark.integration
def test_a_reader_schema_with_fewer_fields_gets_only_these(client: SchemaRegistryClient) -> None:
    envelope = cellfeed.schemas.load_avro("cell_envelope")
    envelope["fields"] = [
        field for field in envelope["fields"] if field["name"] in ("added_id", "body")
    ]
    deserializer = AvroDeserializer(client, json.dumps(envelope))
    assert deserializer(value(), SerializationContext(TOPIC, MessageField.VALUE)) == {
        "added_id": 4711,
        "body": BODY.decode(),
    }


@pytest.mark.integration
def test_a_program_that_registers_the_envelope_gets_its_id_and_writes_our_bytes(
    client: SchemaRegistryClient,
) -> None:
    text = cellfeed.schemas.avro_text("cell_envelope")
    assert client.register_schema(f"{TOPIC}-value", Schema(text, "AVRO")) == envelope_schema_id()
    serializer = AvroSerializer(client, text)
    event = AvroDeserializer(client)(value(), SerializationContext(TOPIC, MessageField.VALUE))
    assert serializer(event, SerializationContext(TOPIC, MessageField.VALUE)) == value()


@pytest.mark.integration
def test_the_client_finds_its_way_around(client: SchemaRegistryClient) -> None:
    subject = f"{TOPIC}-value"
    assert client.get_subjects() == ["trips-value", subject]
    assert client.get_schema_types() == ["AVRO"]
    assert client.get_versions(subject) == [1]
    assert client.get_subjects_by_schema_id(envelope_schema_id()) == ["trips-value", subject]
    assert [
        (found.subject, found.version) for found in client.get_schema_versions(envelope_schema_id())
    ] == [("trips-value", 1), (subject, 1)]
    latest = client.get_latest_version(subject)
    assert (latest.schema_id, latest.version, latest.subject) == (envelope_schema_id(), 1, subject)
    assert client.get_version(subject, 1).schema_id == envelope_schema_id()
    assert (
        client.lookup_schema(
            subject, Schema(cellfeed.schemas.avro_text("cell_envelope"), "AVRO")
        ).schema_id
        == envelope_schema_id()
    )
    assert client.get_compatibility() == client.get_compatibility(subject) == "FULL_TRANSITIVE"
    assert client.get_mode(subject) == "READONLY"


@pytest.mark.integration
def test_the_registry_client_gets_the_errors_for_unknown_and_refused_requests(
    client: SchemaRegistryClient,
) -> None:
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(f"{TOPIC}-value", Schema('"string"', "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (422, 42205)
    with pytest.raises(SchemaRegistryError) as unknown:
        client.get_schema(1)
    assert (unknown.value.http_status_code, unknown.value.error_code) == (404, 40403)
    with pytest.raises(SchemaRegistryError) as nowhere:
        client.get_latest_version("nowhere-value")
    assert (nowhere.value.http_status_code, nowhere.value.error_code) == (404, 40401)


@pytest.mark.integration
def test_a_deserializing_consumer_reads_cells_from_the_gateway(datastore: Datastore) -> None:
    """Gateway, registry and Confluent's consumer together; a topic that carries JSON and a column
    no topic can be named after have no subject."""
    bodies: dict[uuid.UUID, dict[str, Any]] = {
        uuid.UUID(int=n): {"n": n, "zone": "Théâtre"} for n in range(20)
    }
    for column in ("BASE", "NOTES", "not a topic"):
        for put in datastore.put_cells(
            [(row_key, column, 1, body) for row_key, body in bodies.items()]
        ):
            put.or_raise()
    views = (
        VirtualTopic("even", filter=[Condition("n", "in", values=list(range(0, 20, 2)))]),
        VirtualTopic("as-json", format="json"),
    )
    config = GatewayConfig(
        port=0, registry_port=0, formats={"*": "avro", "trips.NOTES": "json"}, topics=views
    )
    ports: list[int] = []
    started, stop = threading.Event(), threading.Event()

    def on_started(*bound: int) -> None:
        ports.extend(bound)
        started.set()

    offsets = StoreCoordinator(datastore.state)
    gateway = threading.Thread(
        target=run_gateway,
        args=(datastore, offsets, config, stop, on_started),
        name="gateway-under-test",
    )
    gateway.start()
    try:
        assert started.wait(START_TIMEOUT_S), "the gateway did not start"
        with SchemaRegistryClient({"url": f"http://127.0.0.1:{ports[1]}"}) as client:
            assert client.get_subjects() == ["even-value", "trips-value", "trips.BASE-value"]
            for subject in ("even-value", "trips@latest-value", "trips.BASE@latest-value"):
                assert client.get_latest_version(subject).schema_id == envelope_schema_id(), (
                    "as the exporter writes"
                )
            even = _consumed(ports[0], "even", len(bodies) * 3 // 2, AvroDeserializer(client))
            events = _consumed(ports[0], TOPIC, len(bodies), AvroDeserializer(client))
    finally:
        stop.set()
        gateway.join(START_TIMEOUT_S)
    assert not gateway.is_alive(), "the gateway did not end"
    assert {event["row_key"]: json.loads(event["body"]) for event in events} == bodies
    assert {event["row_key"]: json.loads(event["body"]) for event in even} == {
        key: body for key, body in bodies.items() if body["n"] % 2 == 0
    }
    cells = [datastore.get_cell(event["row_key"], "BASE", 1) for event in events]
    assert [(event["shard"], event["added_id"], event["created_at"]) for event in events] == [
        (c.shard, c.added_id, c.created_at) for c in cells if c
    ]


def _consumed(
    port: int, topic: str, count: int, deserializer: AvroDeserializer
) -> list[dict[str, Any]]:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, START_TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        events: list[dict[str, Any]] = []
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(events) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            assert message.error() is None
            event = deserializer(message.value(), SerializationContext(topic, MessageField.VALUE))
            assert isinstance(event, dict)
            assert (message.partition(), message.offset(), message.key()) == (
                event["shard"],
                event["added_id"],
                str(event["row_key"]).encode(),
            )
            events.append(event)
        return events
    finally:
        consumer.close()
