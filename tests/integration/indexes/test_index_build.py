"""``index build`` where no index worker runs: it keeps to its throttle, and the next run builds on
the leftovers of a kill."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.cli_instance import CELLFEED, ROOT, cellfeed, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

CELLS = 400
CELLS_PER_S = 40

DEFINITION = """
table: by_driver
datastore: trips
column_defs:
- {column_name: BASE, fields: [{field: driver, type: string}, {field: fare, type: int}]}
"""


def behind(run_dir: Path) -> int:
    """Cells that the newest version has not come to."""
    done = cellfeed("index", "status", "by_driver", "--run-dir", str(run_dir), "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[-1])["cells_behind"])


def on_a_terminal(*words: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Its result, and its output on a terminal as that of its errors."""
    ours, its = os.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the end, on Linux
            while some := os.read(ours, 65_536):
                shown.append(some)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
        done = subprocess.run(
            [*CELLFEED, *words],
            cwd=ROOT,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=its,
            env=environment,
            timeout=120,
        )
    finally:
        os.close(its)
        reader.join()
        os.close(ours)
    return done, b"".join(shown).decode(errors="replace")


def test_a_build_keeps_to_its_throttle_and_continues_after_a_kill(tmp_path: Path) -> None:
    definition, trips = tmp_path / "by_driver.yaml", tmp_path / "trips.ndjson"
    definition.write_text(DEFINITION)
    trips.write_text(
        "".join(
            json.dumps({"id": str(UUID(int=number)), "driver": "ann", "fare": number}) + "\n"
            for number in range(CELLS)
        )
    )
    with running(
        tmp_path / "instance", "datastore: {shards: 4}\nworkers: [{port: 0}]\ngateways: []\n"
    ) as run_dir:
        place = ("--run-dir", str(run_dir))
        assert (
            cellfeed("load", str(trips), "--column", "BASE", "--row-key", "id", *place).returncode
            == 0
        )
        assert cellfeed("index", "create", str(definition), *place).returncode == 0
        begun_s = time.monotonic()
        build = subprocess.Popen(
            [*CELLFEED, "index", "build", "by_driver", "--throttle", str(CELLS_PER_S), *place],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: behind(run_dir) < CELLS, "something is built", 60)
        finally:
            build.kill()
            build.wait()
        # At most so many a second, and a batch that had begun.
        left, passed_s = behind(run_dir), time.monotonic() - begun_s
        assert CELLS - left <= CELLS_PER_S * (passed_s + 2)
        assert left > 0, "killed before its end"
        done, shown = on_a_terminal(
            "index", "build", "by_driver", "--throttle", "100000", "--json", *place
        )
        assert done.returncode == 0, shown
        assert json.loads(done.stdout.splitlines()[-1])["state"] == "current"
        assert "index by_driver version 1" in shown
        counts = [int(count) for count in re.findall(rf"(\d+)/{CELLS}", shown)]
        assert counts == sorted(counts)
        assert CELLS - left <= counts[0] < counts[-1] == CELLS, (
            "the bar begins where the first build ended"
        )
        verified = cellfeed("index", "verify", "by_driver", "--json", *place)
        report = json.loads(verified.stdout.splitlines()[-1])
        assert (verified.returncode, report["entries"], report["differences"]) == (0, CELLS, 0)
