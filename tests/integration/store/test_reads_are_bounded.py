"""Reads of many large bodies that compress well: each answer has a bound in decoded bytes, the
whole comes in pages, and the worker's memory shows it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client
from cellfeed.store.limits import READ_BYTES_MAX, SCAN_DECODED_BYTES_MAX

pytestmark = pytest.mark.integration

BODIES = 400
TEXT = "x" * ((1 << 20) - 100)
ONE_ROW = UUID(int=0xA11)
GROWTH_MAX_BYTES = 160 << 20
"""An answer of ``READ_BYTES_MAX`` some times over; without bounds it was 1.2 GB."""

_WORKER = """
import sys
from pathlib import Path
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.worker import run_worker
with Datastore.open_embedded(Path(sys.argv[1]), "trips", 4) as opened:
    run_worker(opened, on_started=lambda port: print(port, flush=True))
"""


def rows() -> list[UUID]:
    return [UUID(int=(number << 64) + 7) for number in range(BODIES)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("large")
    with Datastore.open_embedded(made, "trips", 4) as store:
        for number, row in enumerate(rows()):
            cells = [new_cell(row, "BASE", 1, {"n": number, "text": TEXT})]
            if number < 40:
                cells.append(new_cell(ONE_ROW, f"C{number:02}", 1, {"n": number, "text": TEXT}))
            store.put_new_cells(cells)
    return made


class Worker:
    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-c", _WORKER, str(directory)]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"

    def peak_bytes(self) -> int:
        [line] = [
            line
            for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
            if line.startswith("VmHWM:")
        ]
        return int(line.split()[1]) * 1024

    def end(self) -> None:
        with self._process:
            self._process.kill()


@pytest.fixture
def worker(directory: Path) -> Iterator[Worker]:
    started = Worker(directory)
    yield started
    started.end()


def read_cells(client: Client) -> int:
    return sum(
        cell is not None and cell.body["n"] == number
        for number, cell in enumerate(client.get_cells([(row, "BASE", 1) for row in rows()]))
    )


def read_latest(client: Client) -> int:
    return sum(
        cell is not None and cell.body["n"] == number
        for number, cell in enumerate(client.get_cells_latest([(row, "BASE") for row in rows()]))
    )


def read_rows(client: Client) -> int:
    return sum(
        row["BASE"].body["n"] == number for number, row in enumerate(client.get_rows(rows()))
    )


def read_row(client: Client) -> int:
    row = client.get_row(ONE_ROW)
    assert [cell.body["n"] for cell in row.values()] == list(range(40))
    return len(row) * 10


def read_logs(client: Client) -> int:
    found, locations = 0, dict.fromkeys(range(4), 0)
    while True:
        pieces = client.get_cells_for_shards(locations, 1000)
        if not any(piece.cells for piece in pieces.values()):
            return found - 40
        found += sum(len(piece.cells) for piece in pieces.values())
        locations = {shard: piece.next_location for shard, piece in pieces.items()}


def read_log(client: Client) -> int:
    found = 0
    for shard in range(4):
        location = 0
        while (piece := client.get_cells_for_shard(shard, location, 1000)).cells:
            assert sum(len(cell.body_json) for cell in piece.cells) <= SCAN_DECODED_BYTES_MAX
            found, location = found + len(piece.cells), piece.next_location
    return found - 40


@pytest.mark.parametrize(
    "read", [read_cells, read_latest, read_rows, read_row, read_logs, read_log]
)
def test_many_large_bodies_are_read_whole_and_cost_the_worker_a_page(
    worker: Worker, read: object
) -> None:
    with Client(worker.url, "trips") as client:
        client.get_cell(rows()[0], "BASE", 1)
        before = worker.peak_bytes()
        assert callable(read)
        assert read(client) == BODIES
        assert worker.peak_bytes() - before < GROWTH_MAX_BYTES


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("/rows", {"row_keys": [str(row) for row in rows()]}),
        (
            "/cells/get",
            {
                "keys": [
                    {"row_key": str(row), "column_name": "BASE", "ref_key": 1} for row in rows()
                ]
            },
        ),
        (
            "/cells/latest",
            {"keys": [{"row_key": str(row), "column_name": "BASE"} for row in rows()]},
        ),
        (f"/row?row_key={ONE_ROW}", None),
    ],
)
def test_a_caller_that_reads_no_pages_gets_an_error_instead_of_a_part(
    worker: Worker, route: str, asked: dict[str, object] | None
) -> None:
    connection = http.client.HTTPConnection(urlsplit(worker.url).netloc, timeout=30)
    connection.request(
        "GET" if asked is None else "POST",
        f"/v1/trips{route}",
        json.dumps(asked),
        {"content-type": "application/json"},
    )
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    assert (answer.status, told["error"], told["definite"]) == (413, "answer_too_large", True)
    assert str(READ_BYTES_MAX) in told["message"]


def test_rows_and_columns_are_whole_in_process(directory: Path) -> None:
    with Datastore.open_embedded(directory, "trips", 4) as store:
        [small, one, last] = store.get_rows([rows()[0], ONE_ROW, rows()[1]])
        assert ([*small], [*one], [*last]) == (
            ["BASE"],
            [f"C{number:02}" for number in range(40)],
            ["BASE"],
        )
        page = store.get_rows_page([ONE_ROW])
        assert (len(page.rows[0]), page.next_row, page.after_column) == (17, 0, "C16")
