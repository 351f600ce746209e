"""kill -9 of ``cellfeed load`` in the middle of a file: acknowledged cells stay, and the same
command again finishes the load without a double or a gap."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
import uuid
from functools import partial
from pathlib import Path

import pytest

from cellfeed.store.http.client import Client
from tests.faults.invariants import check_gapless
from tests.faults.workload import read_log
from tests.support.cli_instance import CELLFEED, ROOT, cellfeed, processes, running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.slow]

LINES = 20_000
NAMESPACE = uuid.UUID("c6f7d0a4-6d6b-5a4e-9b35-0f2a1c7d9e10")


def test_a_load_killed_in_the_middle_is_finished_by_the_same_command(tmp_path: Path) -> None:
    chance = random.Random(5)
    file = tmp_path / "trips.ndjson"
    file.write_text(
        "".join(
            json.dumps({"id": str(uuid.uuid5(NAMESPACE, str(number))), "n": number}) + "\n"
            for number in range(LINES)
        )
    )
    with (
        running(tmp_path) as run_dir,
        Client(
            [f"http://127.0.0.1:{processes(run_dir)['worker']['ports']['http']}"], "trips"
        ) as client,
    ):
        arguments = (
            "load",
            str(file),
            "--column",
            "BASE",
            "--row-key",
            "id",
            "--run-dir",
            str(run_dir),
            "--json",
        )

        def stored() -> int:
            return sum(head.watermark for head in client.heads().values())

        def under_way(load: subprocess.Popen[bytes], before: int) -> bool:
            return stored() > before or load.poll() is not None

        for _ in range(3):
            before = stored()
            load = subprocess.Popen(
                [*CELLFEED, *arguments],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            wait_until(
                partial(under_way, load, before),
                "the load puts cells",
            )
            time.sleep(chance.uniform(0.0, 0.05))
            load.kill()
            assert load.wait(10) == -signal.SIGKILL, "it was killed before its end"
            assert 0 < stored() < LINES, "in the middle of the file"
        killed_at = stored()
        report = json.loads(cellfeed(*arguments).stdout)
        # A put on its way when the load was killed may have been stored after the look.
        assert (report["stored"] + report["exists"], report["complete"]) == (LINES, True)
        assert killed_at <= report["exists"] < LINES
        log = read_log(client)
        assert check_gapless(log) == {"I7": []}
        assert sorted(
            json.loads(cell.body_json)["n"] for cells in log.values() for cell in cells
        ) == list(range(LINES))
