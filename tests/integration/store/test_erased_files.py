"""After an erasure and a scrub no file of an embedded store has a byte of the erased bodies: not
the cells, not the index, not the state, no log of SQLite."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.scrub import scrub_files
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from tests.support.cli_instance import CELLFEED, ROOT, cellfeed, ended, running
from tests.support.made_of_cells import indexed_and_parked
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SHARDS = 4
ROWS = 300


def secrets(row: UUID) -> list[str]:
    """Texts that are in the bodies of a row, which do not compress and stand nowhere else."""
    chance = random.Random(row.int)
    return [chance.randbytes(size).hex() for size in (12, 40, 700, 3_000)]


def filled(directory: Path) -> tuple[list[UUID], list[bytes]]:
    """A store of rows that were written in turns, so that pages were split; rows to be erased, and
    their bodies as they are stored."""
    chance = random.Random(20)
    rows = [UUID(int=chance.getrandbits(128)) for _ in range(ROWS)]
    with Datastore.open_embedded(directory, shards=SHARDS) as datastore:
        for ref_key in range(8):
            cells = [
                (
                    row,
                    "BASE",
                    ref_key,
                    {"secret": secrets(row)[0], "text": secrets(row)[ref_key % 4]},
                )
                for row in rows
            ]
            chance.shuffle(cells)
            datastore.put_cells(cells)
        erased = rows[:5]
        return erased, [
            cell.body for row in erased for cell in datastore.engine.row_cells(row.bytes)
        ]


def found_in(directory: Path, needles: Sequence[bytes]) -> dict[str, int]:
    """By file, how many of these bytes stand in it."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    counts = {
        path.name: sum(needle in content for needle in needles)
        for path in files
        for content in [path.read_bytes()]
    }
    return {name: count for name, count in counts.items() if count}


def test_no_file_of_an_embedded_store_has_a_byte_of_an_erased_body(tmp_path: Path) -> None:
    erased, bodies = filled(tmp_path)
    # The frame of a body behind its head, and the values that stand plainly in state and index.
    needles = [body[12:60] for body in bodies] + [secrets(row)[0].encode() for row in erased]
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore:
        datastore.when_erased(ParkedCells(datastore.state).forget_row)
        version, keeper = indexed_and_parked(datastore, {row: secrets(row)[0] for row in erased})
        others = [
            cell
            for shard in range(SHARDS)
            for cell in datastore.engine.scan(shard, 0, 10_000)
            if UUID(bytes=cell.row_key) not in erased
        ]
        ends = {shard: head.watermark for shard, head in datastore.heads().items()}
        assert found_in(tmp_path, needles), "they are there before"
        for row in erased:
            assert datastore.erase_row(row).cells == 8
        for shard, end in ends.items():
            if told := datastore.engine.scan(shard, end, 100):
                keeper.apply(shard, told)
        left = [
            cell
            for shard, end in ends.items()
            for cell in datastore.engine.scan(shard, 0, end)
            if UUID(bytes=cell.row_key) not in erased
        ]
        assert left == others, "every other cell is as before, at its place"
        with pytest.raises(ProtectData, match="cellfeed down"):
            scrub_files(tmp_path / "trips")
    set_failpoint("sqlite.scrub.between", "raise", 2)
    with pytest.raises(FailpointReached):
        scrub_files(tmp_path / "trips")
    assert [path.name for path in scrub_files(tmp_path / "trips")] == [
        "index.sqlite3",
        "node-0.sqlite3",
        "state.sqlite3",
    ]
    assert found_in(tmp_path, needles) == {}
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore:
        left = [
            cell
            for shard, end in ends.items()
            for cell in datastore.engine.scan(shard, 0, end)
            if UUID(bytes=cell.row_key) not in erased
        ]
        assert left == others
        assert not any(
            entry.row_key in {row.bytes for row in erased}
            for s in range(SHARDS)
            for entry in datastore.engine.indexes.walk(version.table, s, None, 9_999)
        )


def test_a_row_is_erased_after_a_question_and_files_are_scrubbed_when_the_instance_is_down(
    tmp_path: Path,
) -> None:
    row = str(UUID(int=7))
    with running(tmp_path) as run_dir:
        place = ("--run-dir", str(run_dir))
        assert cellfeed("put", row, "BASE", "1", '{"name": "somebody"}', *place).returncode == 0
        asked = subprocess.run(
            [*CELLFEED, "erase", row, *place],
            cwd=ROOT,
            input="n\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (
            asked.returncode,
            "has cells in BASE" in asked.stderr,
            "nothing erased" in asked.stderr,
        ) == (2, True, True)
        assert cellfeed("get", row, *place).returncode == 0
        confirmed = subprocess.run(
            [*CELLFEED, "erase", row, *place],
            cwd=ROOT,
            input="y\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "1 bodies erased" in confirmed.stdout, confirmed.stderr
        again = json.loads(cellfeed("erase", row, "--yes", "--json", *place).stdout)
        assert again["cells"] == 0
        assert cellfeed("get", row, *place).returncode == 1
        refused = cellfeed("put", row, "BASE", "2", "{}", *place)
        assert (refused.returncode, "was erased" in refused.stderr) == (1, True)
        scanned = [
            json.loads(line)
            for line in cellfeed("scan", str(again["shard"]), "--json", *place).stdout.splitlines()
        ]
        assert [(line["column_name"], line["body"]) for line in scanned if "body" in line] == [
            ("BASE", None),
            ("$erased", None),
        ]
        assert (scrubbed := cellfeed("scrub", *place)).returncode == 3
        assert "cellfeed down" in scrubbed.stderr
        assert cellfeed("down", *place).returncode == 0
        scrubbed = cellfeed("scrub", "--json", *place)
        assert [Path(path).name for path in json.loads(scrubbed.stdout)["scrubbed"]] == [
            "node-0.sqlite3",
            "state.sqlite3",
        ], scrubbed.stderr


def test_status_shows_an_erasure_whose_program_was_killed_and_a_worker_completes_it(
    tmp_path: Path,
) -> None:
    row, run_dir = UUID(int=9), tmp_path / "run"
    with Datastore.open_embedded(run_dir / "store", shards=SHARDS) as datastore:
        datastore.put_cell(row, "BASE", 1, {"name": "somebody"})
    opened = f"Datastore.open_embedded({str(run_dir / 'store')!r}, shards={SHARDS})"
    program = (
        "import uuid; from cellfeed.store.datastore import Datastore;"
        f" {opened}.erase_row(uuid.UUID(int=9))"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        timeout=60,
        check=False,
        env={**os.environ, "CELLFEED_FAILPOINTS": "datastore.erase.after_poke=kill"},
    )
    assert killed.returncode == -signal.SIGKILL
    (run_dir / "config.yaml").write_text(
        "datastore: {shards: 4}\nworkers: [{port: 0}]\ngateways: []\n"
    )
    place = ("--run-dir", str(run_dir))
    assert f"the erasure of row {row}" in cellfeed("status", *place).stdout
    assert [
        each["row_key"]
        for each in json.loads(cellfeed("status", "--json", *place).stdout)["erasures"]
    ] == [str(row)]
    with ended(run_dir):
        assert (
            up := cellfeed("up", "--detach", "--config", str(run_dir / "config.yaml"), *place)
        ).returncode == 0, up.stderr
        with Datastore.open_embedded(run_dir / "store", shards=SHARDS) as datastore:
            wait_until(lambda: datastore.unended_erasures.all() == [], "a worker has ended it")
            assert all(is_erased(cell.body) for cell in datastore.engine.row_cells(row.bytes))
        [log] = (run_dir / "logs").glob("worker*.log")
        wait_until(
            lambda: "which had been broken off, is done" in log.read_text(), "its log says so"
        )
