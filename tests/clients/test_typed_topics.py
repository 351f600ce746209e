"""Typed topics by real clients: Confluent's AvroDeserializer against two gateways and their
registries, also while a new version comes."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import cellfeed.schemas
from cellfeed.bridge.events.registry import envelope_schema_id
from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.stored_columns import Settings, stored_columns
from cellfeed.bridge.typed.versions import register
from cellfeed.loading.records import FileFormat, read_records
from cellfeed.loading.taxi import cells_of_trip, shipped_csv
from cellfeed.store.datastore import Datastore
from tests.support.drivers import DRIVERS, Driver
from tests.support.running_gateway import GatewayProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SHARDS = 16
TRIPS = 400
TOPIC = "trips.BASE"
AVRO = {"*": "avro"}
SURGE = {"name": "surge", "type": ["null", "double"], "default": None}
ONE_ROW = uuid.UUID(int=1)
UNFIT = {"pickup": "some day", "passengers": 1}


def with_surge() -> str:
    schema = cellfeed.schemas.load_avro("taxi_trip")
    schema["fields"].append(SURGE)
    return json.dumps(schema)


def put(datastore: Datastore, bodies: list[dict[str, Any]]) -> None:
    for result in datastore.put_cells(
        [(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(body)), "BASE", 1, body) for body in bodies]
    ):
        result.or_raise()


def trips() -> Iterator[dict[str, Any]]:
    for record in read_records(shipped_csv(), FileFormat.CSV):
        assert record.fields is not None
        yield dict(cells_of_trip(record.fields)[0].body)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("typed-store")
    with Datastore.open_embedded(directory) as datastore:
        register(
            datastore.state,
            "BASE",
            body_schema(cellfeed.schemas.avro_text("taxi_trip")),
            Settings(),
        )
        put(datastore, [*islice(trips(), TRIPS), UNFIT])
    return directory


@pytest.fixture(scope="module")
def gateways(
    store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[GatewayProcess]]:
    """Two of one datastore."""
    logs = tmp_path_factory.mktemp("gateways")
    with ExitStack() as running:
        views = [
            {
                "name": "long-trips",
                "column": "BASE",
                "filter": [{"field": "passengers", "op": "=", "value": 1}],
                "format": "typed",
            }
        ]
        made = [
            GatewayProcess(
                store, logs / f"{number}", name=f"gateway-{number}", formats=AVRO, topics=views
            )
            for number in (1, 2)
        ]
        yield [running.enter_context(each) for each in made]


def bodies_in_store(store: Path) -> dict[tuple[int, int], dict[str, Any]]:
    with Datastore.open_embedded(store) as datastore:
        return {
            (shard, cell.added_id): cell.body
            for shard in range(SHARDS)
            for cell in datastore.get_cells_for_shard(shard, 0, 10_000).cells
        }


def deserialised(
    gateway: GatewayProcess, values: list[bytes | None], **settings: Any
) -> list[dict[str, Any]]:
    schema = settings.pop("schema", None)
    with SchemaRegistryClient({"url": f"http://127.0.0.1:{gateway.registry_port}"}) as client:
        read = AvroDeserializer(client, schema, conf=settings)
        return [read(value, SerializationContext(TOPIC, MessageField.VALUE)) for value in values]


def as_put(body: Any) -> Any:
    """A typed body as the JSON that was put: an optional member that is None was not there."""
    if isinstance(body, str):
        return json.loads(body)
    said = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in body.items()
    }
    return {name: value for name, value in said.items() if value is not None}


@pytest.mark.parametrize("name", list(DRIVERS))
def test_every_client_gets_the_same_bytes_from_both_gateways_and_decodes_the_put_bodies(
    gateways: list[GatewayProcess], store: Path, name: str
) -> None:
    driver: Driver = DRIVERS[name]
    bodies = bodies_in_store(store)
    found = [
        sorted(driver.read(each.bootstrap, TOPIC, dict.fromkeys(range(SHARDS), 0), TRIPS + 1))
        for each in gateways
    ]
    assert found[0] == found[1]
    assert {(record.partition, record.offset) for record in found[0]} == set(bodies)
    read = deserialised(gateways[1], [record.value for record in found[0]])
    for record, value in zip(found[0], read, strict=True):
        assert as_put(value["body"]) == bodies[record.partition, record.offset]
        assert (value["added_id"], value["shard"], str(value["row_key"])) == (
            record.offset,
            record.partition,
            (record.key or b"").decode(),
        )
    assert sum(isinstance(value["body"], str) for value in read) == 1, (
        "the one that fits no version"
    )


def test_readers_with_the_latest_version_or_fewer_fields_get_theirs(
    gateways: list[GatewayProcess], store: Path
) -> None:
    gateway = gateways[0]
    records = DRIVERS["confluent-kafka"].read(
        gateway.bootstrap, TOPIC, dict.fromkeys(range(SHARDS), 0), TRIPS + 1
    )
    values = [record.value for record in records]
    assert deserialised(gateway, values, **{"use.latest.version": True}) == deserialised(
        gateway, values
    )
    with SchemaRegistryClient({"url": f"http://127.0.0.1:{gateway.registry_port}"}) as client:
        latest = client.get_latest_version(f"{TOPIC}-value")
        assert client.get_compatibility(f"{TOPIC}-value") == "FULL_TRANSITIVE"
        assert client.get_latest_version("trips-value").schema_id == envelope_schema_id(), (
            "the topic of all cells has JSON"
        )
        assert sorted(client.get_subjects_by_schema_id(latest.schema_id or 0)) == [
            "long-trips-value",
            f"{TOPIC}-value",
        ]
        assert latest.schema is not None
        fewer = json.loads(str(latest.schema.schema_str))
    fewer["fields"] = [field for field in fewer["fields"] if field["name"] in ("added_id", "body")]
    fewer["fields"][1]["type"][0]["fields"] = [
        field for field in fewer["fields"][1]["type"][0]["fields"] if field["name"] == "total_cents"
    ]
    bodies = bodies_in_store(store)
    for record, value in zip(
        records, deserialised(gateway, values, schema=json.dumps(fewer)), strict=True
    ):
        whole = bodies[record.partition, record.offset]
        assert value["added_id"] == record.offset
        assert (
            value["body"] == {"total_cents": whole["total_cents"]}
            if whole != UNFIT
            else isinstance(value["body"], str)
        )


def test_a_declared_view_is_typed(gateways: list[GatewayProcess], store: Path) -> None:
    wanted = {place for place, body in bodies_in_store(store).items() if body["passengers"] == 1}
    records = DRIVERS["confluent-kafka"].read(
        gateways[0].bootstrap, "long-trips", dict.fromkeys(range(SHARDS), 0), len(wanted)
    )
    assert {(record.partition, record.offset) for record in records} == wanted
    assert all(
        isinstance(value["body"], dict) or value["body"]
        for value in deserialised(gateways[0], [record.value for record in records])
    )


def test_each_layout_of_a_topic_is_read_by_its_own_schema_and_shares_no_kept_block(
    tmp_path: Path,
) -> None:
    bodies = list(islice(trips(), BLOCK_CELLS))
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        register(
            datastore.state,
            "BASE",
            body_schema(cellfeed.schemas.avro_text("taxi_trip")),
            Settings("park"),
        )
        for result in datastore.put_cells(
            [(ONE_ROW, "BASE", number, body) for number, body in enumerate([*bodies, UNFIT])]
        ):
            result.or_raise()

    def read(**layout: str) -> list[dict[str, Any]]:
        """The topic of a gateway that is started with it."""
        view = {"name": "trips-view", "column": "BASE", **layout}
        running = GatewayProcess(
            tmp_path / "store",
            tmp_path / "log",
            formats=AVRO,
            topics=[view],
            blocks_directory=str(tmp_path / "blocks"),
            block_files_bytes_max=1 << 30,
        )
        with running as gateway:
            count = BLOCK_CELLS + (layout["format"] != "typed")
            records = DRIVERS["confluent-kafka"].read(
                gateway.bootstrap, "trips-view", dict.fromkeys(range(SHARDS), 0), count
            )
            values = deserialised(gateway, [record.value for record in records])
            for record, value in zip(records, values, strict=True):
                assert value["created_at"].timestamp() * 1_000 // 1 == record.timestamp_ms
            wait_until(lambda: any((tmp_path / "blocks").rglob("*.block")), "a block is in a file")
        return values

    exact = read(format="typed")
    for body in ("union", "record"):
        alone = read(format="typed", body=body, created_at="millis")
        assert [each["body"] for each in alone] == [each["body"] for each in exact]
        assert all(each["created_at"].microsecond % 1_000 == 0 for each in alone)
    assert any(each["created_at"].microsecond % 1_000 for each in exact)
    as_text = read(format="avro", created_at="millis")
    assert [as_put(each["body"]) for each in as_text] == [*bodies, UNFIT]


def test_a_new_version_while_a_consumer_reads(tmp_path: Path) -> None:
    """It continues without a pause, gets every cell once, typed by the version that it fits; the
    records that it had got are those that every later client gets, at any gateway."""
    many = list(islice(trips(), 600))
    with Datastore.open_embedded(tmp_path / "store") as datastore, ExitStack() as running:
        register(
            datastore.state,
            "BASE",
            body_schema(cellfeed.schemas.avro_text("taxi_trip")),
            Settings(),
        )
        put(datastore, many[:200])
        made = [
            GatewayProcess(
                tmp_path / "store", tmp_path / f"{number}", name=f"gateway-{number}", formats=AVRO
            )
            for number in (1, 2)
        ]
        gateways = [running.enter_context(each) for each in made]
        reader = Reader(gateways[0])
        running.callback(reader.stop)
        wait_until(lambda: len(reader.values) >= 200, "the first 200 cells")
        put(datastore, [{**body, "surge": 1.5} for body in many[200:300]])  # nothing takes them yet
        wait_until(lambda: len(reader.values) >= 300, "cells that fit no version")
        register(datastore.state, "BASE", body_schema(with_surge()), Settings())
        put(datastore, [*({**body, "surge": 2.5} for body in many[300:400]), *many[400:]])
        wait_until(lambda: len(reader.values) >= 600, "cells by the second version")
        versions = [
            version.schema_id for version in stored_columns(datastore.state)["BASE"].versions
        ]
        assert len(versions) == 2
        live = dict(reader.values)
        bodies = bodies_in_store(tmp_path / "store")
        assert live.keys() == bodies.keys()
        read = dict(zip(live, deserialised(gateways[0], list(live.values())), strict=True))
        assert all(as_put(read[place]["body"]) == bodies[place] for place in bodies)
        as_json = {place for place, value in read.items() if isinstance(value["body"], str)}
        assert as_json == {place for place, body in bodies.items() if body.get("surge") == 1.5}
        ids = {place: int.from_bytes(value[1:5], "big") for place, value in live.items()}
        assert {ids[place] for place, body in bodies.items() if body.get("surge") == 2.5} == {
            versions[1]
        }
        assert {ids[place] for place, body in bodies.items() if "surge" not in body} == {
            versions[0]
        }

        def later(gateway: GatewayProcess) -> dict[tuple[int, int], bytes]:
            records = DRIVERS["confluent-kafka"].read(
                gateway.bootstrap, TOPIC, dict.fromkeys(range(SHARDS), 0), 600
            )
            return {(record.partition, record.offset): record.value or b"" for record in records}

        def typed_now() -> bool:
            return all(
                all(
                    value[1:5] == versions[1].to_bytes(4, "big")
                    for place, value in later(each).items()
                    if place in as_json
                )
                for each in gateways
            )

        wait_until(typed_now, "both gateways type what the second version takes")
        first, second = later(gateways[0]), later(gateways[1])
        assert first == second
        assert {place: value for place, value in first.items() if place not in as_json} == {
            place: live[place] for place in live if place not in as_json
        }


class Reader:
    """Reads the topic from its beginning, on and on, and fails for a record that comes twice."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.values: dict[tuple[int, int], bytes] = {}
        self.error: str | None = None
        self._stop = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": gateway.bootstrap, "group.id": "reader", "check.crcs": True}
        )
        self._consumer.assign([TopicPartition(TOPIC, shard, 0) for shard in range(SHARDS)])
        self._thread = threading.Thread(target=self._run, name="reader")
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._consumer.close()
        assert self.error is None, self.error

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, timeout=0.1):
                place = message.partition(), message.offset()
                if message.error() is not None or place in self.values:
                    self.error = f"{place}: {message.error()}"
                self.values[place] = message.value() or b""  # type: ignore[index]
