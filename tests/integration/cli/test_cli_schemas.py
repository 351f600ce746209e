"""Schemas of columns on the command line: a process that is refused, cells that are parked, and how
they come off the list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from typer.testing import CliRunner

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.typed.rejected_cells import note_rejected
from cellfeed.bridge.typed.schema_files import load_schema
from cellfeed.bridge.typed.stored_columns import Settings, stored_columns
from cellfeed.bridge.typed.typed_column import TypedColumn
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import id_in, register, register_declared
from cellfeed.cli import schemas_unfit as verbs
from cellfeed.cli.main import command_line
from cellfeed.instance.config_file import load_config
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from tests.support.cli_instance import cellfeed, ended
from tests.support.running_gateway import GatewayProcess
from tests.support.schema_commands import FARE, TIP, invoke, write_schema

ROW = UUID(int=7)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of an instance whose store has a few cells: one of another column, and one that no schema
    with whole fares takes."""
    (tmp_path / "config.yaml").write_text(
        "datastore: {shards: 1, schemas: [{column: BASE, schema: trip.avsc, unfit:"
        " park}]}\ngateways: [{port: 0, registry_port: 0}]\n"
    )
    with Datastore.open_embedded(tmp_path / "store", shards=1) as datastore:
        bodies: list[dict[str, Any]] = [{"fare": 1}, {"fare": 2, "tip": 3}, {"fare": 4.5}]
        datastore.put_cells(
            [
                *((ROW, "BASE", number, body) for number, body in enumerate(bodies)),
                (ROW, "NOTES", 0, {"x": 1}),
            ]
        )
    return tmp_path


@pytest.mark.integration
def test_a_gateway_with_a_schema_that_breaks_the_rule_does_not_start_and_reports_the_reason(
    run_dir: Path,
) -> None:
    with Datastore.open_embedded(run_dir / "store", shards=1) as datastore:
        register(
            datastore.state,
            "BASE",
            load_schema(str(write_schema(run_dir, FARE)), run_dir),
            Settings(),
        )
    write_schema(run_dir, FARE, {"name": "city", "type": "string"})
    done = cellfeed("run", "--run-dir", str(run_dir), "gateway")
    assert done.returncode == 3
    assert "column BASE: body.city: the field has no default" in done.stderr
    assert "could not read records of version 1 (BACKWARD)" in done.stderr


def test_list_check_unfit_and_retry(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "HEARD_S", 0.0)
    file = str(write_schema(run_dir, FARE))
    assert invoke(run_dir, "list") == []
    assert invoke(run_dir, "unfit") == []
    [told] = invoke(run_dir, "check", file, "--column", "BASE", code=1)
    assert (told["registered"], told["tried"], told["unfit"]) == (False, 3, 2)
    assert told["examples"] == [
        "0/1: tip is a member that the schema does not have",
        "0/2: fare is a number with a fraction, not an integer",
    ]
    assert invoke(run_dir, "list") == [], "check changes nothing"

    config = load_config(run_dir / "config.yaml")
    with Datastore.open_embedded(run_dir / "store", shards=1) as datastore:
        register_declared(datastore.state, config.datastore.schemas, run_dir)
        read_all(datastore)
        coordinator = StoreCoordinator(datastore.state)
        for topic in ("trips", "trips.BASE", "trips.NOTES", "some-view"):
            coordinator.commit_offsets(f"reader of {topic}", {(topic, 0): CommittedOffset(4)})
        coordinator.commit_offsets("behind", {("trips.BASE", 0): CommittedOffset(1)})
    with Datastore.open_embedded(run_dir / "store", shards=1) as datastore:
        [version] = stored_columns(datastore.state)["BASE"].versions
        record = id_in(datastore.state, "BASE", version, Layout(body="record"))
        millis = id_in(datastore.state, "BASE", version, Layout("millis", "record"))
    [listed] = invoke(run_dir, "list")
    assert listed["id"] == version.schema_id
    assert listed["other_ids"] == [
        {"created_at": "micros", "body": "record", "id": record},
        {"created_at": "millis", "body": "record", "id": millis},
    ]
    shown = CliRunner().invoke(
        command_line("schemas"), ["schemas", "list", "--run-dir", str(run_dir)]
    )
    assert [line.split()[:5] for line in shown.stdout.splitlines()[1:]] == [
        ["BASE", "1", str(version.schema_id), "union", "micros"],
        ["BASE", "1", str(record), "record", "micros"],
        ["BASE", "1", str(millis), "record", "millis"],
    ]
    assert (listed["column"], listed["version"], listed["unfit"], listed["compatibility"]) == (
        "BASE",
        1,
        "park",
        "FULL",
    )
    assert [
        (cell["added_id"], cell["reason"]) for cell in invoke(run_dir, "unfit", "--column", "BASE")
    ] == [
        (1, "tip is a member that the schema does not have"),
        (2, "fare is a number with a fraction, not an integer"),
    ]

    write_schema(run_dir, FARE, {"name": "tip", "type": "long"})
    refused = CliRunner().invoke(
        command_line("schemas"),
        ["schemas", "check", file, "--column", "BASE", "--run-dir", str(run_dir)],
    )
    assert "body.tip: the field has no default" in str(refused.exception)
    write_schema(run_dir, FARE, TIP)
    [told] = invoke(run_dir, "check", file, "--column", "BASE", "--cells", "2")
    assert (told["registered"], told["tried"], told["unfit"]) == (False, 2, 0)
    with Datastore.open_embedded(run_dir / "store", shards=1) as datastore:
        register_declared(datastore.state, config.datastore.schemas, run_dir)
    [done] = invoke(run_dir, "unfit", "--retry")
    read_on = [
        {"group": f"reader of {topic}", "shard": 0, "added_id": 1}
        for topic in ("some-view", "trips.BASE")
    ]
    assert done == {"fit": 1, "trimmed": 0, "still_unfit": 1, "read_on": read_on}
    assert [cell["added_id"] for cell in invoke(run_dir, "unfit")] == [2]
    assert [version["version"] for version in invoke(run_dir, "list")] == [1, 2]


@pytest.mark.integration
def test_up_and_status_count_the_bodies_that_a_typed_topic_leaves_out(run_dir: Path) -> None:
    write_schema(run_dir, FARE)
    config = load_config(run_dir / "config.yaml")
    with Datastore.open_embedded(run_dir / "store", shards=1) as datastore:
        register_declared(datastore.state, config.datastore.schemas, run_dir)
        before = cellfeed("status", "--run-dir", str(run_dir))
        read_all(datastore)
    assert "typed topics" not in before.stdout
    line = (
        "2 cells of column BASE fit no version of its schema and have no record in its typed topics"
        " (unfit: park), such as 0/1: tip is a member that the schema does not have; list them:"
        " cellfeed schemas unfit --column BASE"
    )
    assert line in cellfeed("status", "--run-dir", str(run_dir)).stdout
    [told] = json.loads(cellfeed("status", "--json", "--run-dir", str(run_dir)).stdout)["left_out"]
    assert (told["column"], told["cells"], told["or_more"], told["added_id"]) == (
        "BASE",
        2,
        False,
        1,
    )
    with ended(run_dir):
        config_file = str(run_dir / "config.yaml")
        up = cellfeed("up", "--detach", "--config", config_file, "--run-dir", str(run_dir))
        assert line in up.stdout, up.stdout + up.stderr


@pytest.mark.integration
def test_status_reports_cells_that_a_running_gateway_leaves_out_after_a_change_of_settings(
    run_dir: Path,
) -> None:
    write_schema(run_dir, FARE)
    config = load_config(run_dir / "config.yaml")
    with Datastore.open_embedded(run_dir / "store", shards=1) as datastore:
        register_declared(datastore.state, config.datastore.schemas, run_dir)
        topic = {"name": "flat", "column": "BASE", "format": "typed", "body": "record"}
        gateway = GatewayProcess(
            run_dir / "store", run_dir / "gateway.log", shards=1, topics=[topic]
        )
        with gateway:
            schema = load_schema(str(run_dir / "trip.avsc"), run_dir)
            register(datastore.state, "BASE", schema, Settings("envelope"))
            assert len(read_to_end(gateway, "flat")) == 1, "two fit no version"
            line = (
                "2 cells of column BASE fit no version of its schema and have no record in declared"
                " typed topics of gateway, until a restart there (unfit was park at its start),"
                " such as 0/1: tip is a member that the schema does not have"
            )
            assert line in cellfeed("status", "--run-dir", str(run_dir)).stdout
            shown = cellfeed("status", "--json", "--run-dir", str(run_dir)).stdout
            [told] = json.loads(shown)["left_out"]
            assert (told["cells"], told["gateways"]) == (2, ["gateway"])
        ended_since = cellfeed("status", "--run-dir", str(run_dir)).stdout
        assert "typed topics" not in ended_since, "nothing that runs leaves them out"


def read_to_end(gateway: GatewayProcess, topic: str) -> list[int]:
    """The offsets of the records of partition 0."""
    settings = {
        "bootstrap.servers": gateway.bootstrap,
        "group.id": "g",
        "enable.partition.eof": True,
    }
    consumer, found = Consumer(settings), list[int]()
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(30)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(message.offset() or 0)
        pytest.fail("the end did not come")
    finally:
        consumer.close()


def read_all(datastore: Datastore) -> None:
    """As a gateway that is read."""
    cells = [cell for cell in datastore.engine.scan(0, 0, 10) if cell.column_name == "BASE"]
    typed = TypedFormat(
        TypedColumn(datastore.state, "BASE"),
        park=lambda shard, unfit: note_rejected(datastore.state, "BASE", shard, unfit),
    )
    typed.encode_many(
        0,
        cells,
        [row_key_text(cell.row_key) for cell in cells],
        [decode_body(cell.body) for cell in cells],
    )
