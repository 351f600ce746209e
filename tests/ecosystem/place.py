"""Where a recipe of ``docs/recipes.md`` runs: a gateway with the page's views, a directory, and the
cells that its result is compared with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import pytest

import cellfeed.schemas
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.stored_columns import Settings
from cellfeed.bridge.typed.versions import register
from cellfeed.loading.records import FileFormat, read_records
from cellfeed.loading.taxi import cells_of_trip, shipped_csv
from cellfeed.store.datastore import Datastore
from tests.support.cli_instance import ROOT
from tests.support.free_ports import free_port
from tests.support.running_gateway import GatewayProcess
from tests.support.waiting import wait_until

RUNS: Final = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("CELLFEED_ECOSYSTEM"), reason="runs in `make ecosystem` only"
    ),
]
"""The marks of each test that runs a recipe."""

PAGE: Final = ROOT / "docs" / "recipes.md"
TRIPS: Final = 400
"""Put before the recipe starts, again as it is killed, and again while it is down."""
WAIT_S: Final = 180.0
Places = list[tuple[int, int]]
"""Shard and added_id of each record that a recipe has written, in its order."""


def fences(section: str) -> list[str]:
    """The fenced blocks of a section of the page."""
    flags = re.MULTILINE | re.DOTALL
    found = re.search(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", PAGE.read_text(), flags)
    assert found is not None, section
    return [str(text) for text in re.findall(r"^```\w+\n(.*?)^```$", found[1], flags)]


def milliseconds(moment: datetime) -> int:
    """Since 1970; a time without a zone is in UTC."""
    return (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1
    )


class Place:
    """A gateway with the page's views, and a directory for a recipe; ``words`` are the addresses
    that the page names, and those that take their place."""

    def __init__(self, directory: Path, store: Datastore, gateway: GatewayProcess) -> None:
        self.directory = directory
        self.words = {
            "127.0.0.1:9092": gateway.bootstrap,
            "127.0.0.1:8081": f"127.0.0.1:{gateway.registry_port}",
            "127.0.0.1:8083": f"127.0.0.1:{free_port()}",
        }
        self._store = store
        self._trips = read_records(shipped_csv(), FileFormat.CSV)

    def put(self, count: int, **more: object) -> None:
        """The next trips; each body has these members, too."""
        bodies: list[dict[str, Any]] = []
        while len(bodies) < count:
            record = next(self._trips)
            assert record.fields is not None
            bodies.append({**cells_of_trip(record.fields)[0].body, **more})
        for result in self._store.put_cells([(uuid4(), "BASE", 1, body) for body in bodies]):
            result.or_raise()

    def cells(self) -> dict[tuple[int, int], tuple[int, int]]:
        """When each cell was written, in milliseconds since 1970, and the cents of its trip; by its
        place. Erased cells are left out."""
        return {
            (shard, cell.added_id): (
                milliseconds(cell.created_at),
                cell.body["total_cents"],
            )
            for shard in range(self._store.shards)
            for cell in self._store.get_cells_for_shard(shard, 0, 10_000).cells
            if not cell.erased
        }

    def erase_one(self) -> None:
        """The row of the newest cell of shard 0."""
        newest = self._store.get_cells_for_shard(0, 0, 10_000).cells[-1]
        self._store.erase_row(newest.row_key)

    def new_version(self) -> None:
        """Of the column's schema: a trip may have a ``note``."""
        schema = msgspec.json.decode(cellfeed.schemas.avro_text("taxi_trip"))
        schema["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
        register(
            self._store.state,
            "BASE",
            body_schema(msgspec.json.encode(schema).decode()),
            Settings("park"),
        )

    def file(self, name: str, text: str) -> Path:
        """A file of the recipe; the addresses of the page are replaced by those here."""
        for word, other in self.words.items():
            text = text.replace(word, other)
        path = self.directory / name
        path.write_text(text)
        return path

    @contextmanager
    def running(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The recipe's process with its children; they are killed at the end."""
        with (
            (self.directory / "log").open("ab") as log,
            (self.directory / "output").open("ab") as output,
        ):
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**os.environ, **(environment or {})},
                stdout=output,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def killed_and_resumed(
        self,
        command: Sequence[str],
        seen: Callable[[], Places],
        *,
        environment: Mapping[str, str] | None = None,
        started: Callable[[], object] = lambda: None,
        while_down: Callable[[], object] = lambda: None,
        exactly_once: bool = False,
    ) -> None:
        """Runs a recipe until it has written something, and kills it while cells come in. Puts
        more, and runs it again until it has written every cell."""
        self.put(TRIPS)
        with self.running(command, environment) as process:
            started()
            self.wait(lambda: len(set(seen())) >= TRIPS // 2, "half of the cells")
            self.put(TRIPS)
            assert process.poll() is None, "it ended by itself: " + self.log()
        self.put(TRIPS)
        while_down()
        wanted = self.cells().keys()
        with self.running(command, environment) as process:
            self.wait(lambda: wanted <= set(seen()), "every cell")
            assert process.poll() is None, "it ended by itself: " + self.log()
        assert set(seen()) == wanted, "a record of no cell"
        if exactly_once:
            assert len(seen()) == len(wanted), "a record comes twice"

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Until that holds; prints the recipe's log where it does not."""
        try:
            wait_until(holds, what, WAIT_S)
        except BaseException:
            print(self.log())
            raise

    def log(self) -> str:
        return (self.directory / "log").read_text()[-4_000:]

    def lines(self, name: str = "output") -> list[str]:
        """Whole ones of a file."""
        path = self.directory / name
        return path.read_text().split("\n")[:-1] if path.exists() else []
