"""Digests, SQL over the warehouse, and parked cells."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.run import run_gateway
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.consumers.warehouse.loader import run_warehouse_loader
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.run_dir import RunDir
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from tests.support.cli_said import KEY, NAMESPACE, Run, fill, park

pytestmark = pytest.mark.integration


@pytest.fixture
def gateway(run_dir: RunDir, opened: Datastore) -> Iterator[str]:
    """A gateway over the same store, in a thread."""
    ports: list[int] = []
    started, stop = threading.Event(), threading.Event()

    def on_started(kafka: int, _registry: int) -> None:
        ports.append(kafka)
        started.set()

    settings = GatewayConfig(port=0, registry_port=0, group_initial_delay_s=0)
    thread = threading.Thread(
        target=run_gateway,
        args=(opened, StoreCoordinator(opened.state), settings, stop, on_started),
        name="gateway-under-test",
    )
    thread.start()
    try:
        assert started.wait(30)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def test_verify_finds_one_digest_in_store_topic_and_table_and_a_difference_is_exit_code_1(
    run: Run, run_dir: RunDir, opened: Datastore, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(opened, 60)
    table = run_dir.inside("warehouse")
    ends = {shard: head.watermark for shard, head in opened.heads().items()}
    assert not run_warehouse_loader(
        gateway, "trips", "warehouse", table, threading.Event(), until_offsets=ends
    ).stopped
    said = run("verify", "--gateway", gateway, "--parquet", str(table), "--json")
    assert said.code == 0, said.err
    report = said.lines[0]
    assert (report["equal"], report["level"]) == (True, True)
    assert report["cells"] == {"store": 60, "gateway": 60, "warehouse": 60}
    assert all(len(set(shard["digests"].values())) == 1 for shard in report["shards"])
    assert "all equal" in run("verify", "--gateway", gateway).out

    opened.put_cell(uuid5(NAMESPACE, "later"), "BASE", 1, {})
    assert "warehouse is 1 behind" in run("verify", "--parquet", str(table)).out

    honest = WarehouseTable.digests

    def one_cell_too_many(self: WarehouseTable, *what: Any) -> Any:
        digests = honest(self, *what)
        digests[2].add(digests[2].next_added_id, UUID(KEY).bytes, "BASE", 1, b"{}")
        return digests

    monkeypatch.setattr(WarehouseTable, "digests", one_cell_too_many)
    said = run("verify", "--parquet", str(table))
    assert said.code == 1
    assert "shards [2] differ" in said.out

    query = run("warehouse", "query", "SELECT count(*) AS n, '[/x]' AS text FROM latest", "--json")
    assert query.lines == [{"n": 60, "text": "[/x]"}]
    assert "[/x]" in run("warehouse", "query", "SELECT '[/x]' AS text").out
    assert run("warehouse", "status", "--json").lines[0]["rows"] == 60


def test_wrong_sql_is_reported_in_one_line_with_the_fault(run: Run, run_dir: RunDir) -> None:
    make_table(run_dir.inside("warehouse"), "trips")
    for sql in ("SELEC 1", "SELECT nothing FROM cells"):
        said = run("warehouse", "query", sql)
        assert (said.code, len(said.err.splitlines())) == (2, 1), said.err
        assert f"SQL {sql!r}: " in said.err


def test_parked_cells_are_listed_shown_retried_and_skipped_with_a_reason(
    run: Run, opened: Datastore
) -> None:
    assert "nothing is parked" in run("parked", "list").out
    park(opened, 3)
    park(opened, 4)
    assert "CardDeclined: no [/money]" in run("parked", "list").out
    assert [cell["added_id"] for cell in run("parked", "list", "billing", "--json").lines] == [3, 4]
    assert "Traceback\nCardDeclined: no [/money]" in run("parked", "show", "billing", "1/3").out
    assert run("parked", "retry", "billing", "--json").lines == [{"to_be_tried_again": 2}]
    assert all(cell.retry_asked for cell in ParkedCells(opened.state).all("billing"))
    assert run("parked", "skip", "billing", "1/3", "--reason", " ").code == 2
    assert (
        run("parked", "skip", "billing", "1/3", "--reason", "paid by hand").out == "1/3 skipped\n"
    )
    assert run("parked", "skip", "billing", "1/3", "--reason", "again").code == 1
    assert [
        cell["skipped_because"] for cell in run("parked", "list", "--skipped", "--json").lines
    ] == ["paid by hand"]


def test_parked_cells_are_exported_with_error_and_body(
    run: Run, opened: Datastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.put_cell(KEY, "BASE", 1, {"text": 'a "quoted", line\nand ünïcode', "n": 1})
    park(opened, 3)
    park(opened, 4)
    said = run("parked", "export", "billing")
    assert [(cell["shard"], cell["added_id"], cell["attempts"]) for cell in said.lines] == [
        (1, 3, 5),
        (1, 4, 5),
    ]
    assert said.lines[0]["error"] == "Traceback\nCardDeclined: no [/money]"
    assert said.lines[0]["body"] == {"text": 'a "quoted", line\nand ünïcode', "n": 1}
    assert "2 parked cells of billing" in said.err

    table = tmp_path / "parked.csv"
    assert run("parked", "export", "billing", "--format", "csv", "--output", str(table)).code == 0
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [json.loads(row["body"]) for row in rows] == [cell["body"] for cell in said.lines]
    assert [row["error"] for row in rows] == [cell["error"] for cell in said.lines]
    assert run("parked", "export", "billing", "--output", str(table)).code == 2, (
        "another file was written over"
    )

    monkeypatch.setattr(Datastore, "get_cells", unavailable)
    assert run("parked", "export", "billing", "--output", str(tmp_path / "half")).code == 1
    assert not (tmp_path / "half").exists()


def unavailable(*_arguments: object) -> None:
    raise StorageUnavailable("away, says the test")


def test_export_covers_skipped_ids_and_cells_that_are_gone(run: Run, opened: Datastore) -> None:
    park(opened, 3)
    assert run("parked", "export", "billing").lines[0]["body"] is None
    run("parked", "skip", "billing", "1/3", "--reason", "paid by hand")
    assert run("parked", "export", "billing").lines == []
    assert [
        cell["skipped_because"] for cell in run("parked", "export", "billing", "--skipped").lines
    ] == ["paid by hand"]
