"""A worker is killed while it takes over the group of an earlier version: the next one ends that,
and no cell is left out or runs again for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.definition import definition_key
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
NAMESPACE = UUID("0b5f0c53-4c0f-5a0f-8a55-9e5f0c1d2e3f")
PROGRAM = """
from cellfeed import RetryPolicy, trigger


@trigger(column="BASE", retry=RetryPolicy(attempts=1), parked_retry_s=600{more})
def bill(row_key, *, cell):
    if cell.body["n"] == 3:
        raise ValueError("poison")
    with open({runs!r}, "a") as file:
        file.write(f"{{cell.body['n']}}\\n")
"""


def put(store: Datastore, numbers: range) -> None:
    store.put_cells([(uuid5(NAMESPACE, str(n)), "BASE", 1, {"n": n}) for n in numbers])


@pytest.mark.parametrize(
    "failpoint", ["rename.after_claims", "rename.before_decision", "rename.after_decision"]
)
def test_killed_while_it_takes_over_an_earlier_group(tmp_path: Path, failpoint: str) -> None:
    app, runs = tmp_path / "app.py", tmp_path / "runs"

    def write(more: str) -> None:
        app.write_text(PROGRAM.format(runs=str(runs), more=more))

    def start(failpoints: str = "") -> subprocess.Popen[bytes]:
        arguments = [str(tmp_path / "store"), "w", "1.0", str(app), json.dumps({"entry": "rides"})]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.trigger_process", *arguments],
            cwd=ROOT,
            env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
            stdout=subprocess.DEVNULL,
        )

    with Datastore.open_embedded(tmp_path / "store", shards=4) as store:
        coordinator, parked = StoreCoordinator(store.state), ParkedCells(store.state)

        def run_to_the_end(group: str) -> None:
            def is_there() -> bool:
                offsets = coordinator.fetch_offsets(group)
                return coordinator.members(group) == ["w"] and (
                    {shard: each.offset for (_, shard), each in offsets.items()}
                    == {shard: head.watermark for shard, head in store.heads().items()}
                )

            process = start()
            try:
                wait_until(is_there, f"{group} comes to the end", 60)
                process.terminate()
                assert process.wait(30) == 0
            finally:
                process.kill()
                process.wait(30)

        put(store, range(20))
        write(', group="triggers.bill"')
        run_to_the_end("triggers.bill")
        store.state.commit({definition_key("triggers.bill"): None})  # earlier versions had none
        put(store, range(20, 30))
        write("")
        killed = start(f"{failpoint}=kill")
        assert killed.wait(60) == -signal.SIGKILL
        decided = failpoint == "rename.after_decision"
        assert [each.group for each in parked.all()] == ["rides" if decided else "triggers.bill"]
        for _ in range(2):
            run_to_the_end("rides")
        assert coordinator.groups() == ["rides"]
        assert [each.group for each in parked.all()] == ["rides"]
        ran = Counter(map(int, runs.read_text().split()))
        assert ran == Counter(number for number in range(30) if number != 3)
