"""Workers as processes that begin at the end of the log: with a kill of the first one at any
moment, no cell that is put afterwards is left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.store.datastore import Datastore
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
NAMESPACE = UUID("5d2f3bde-94a7-5c0e-8d0a-7c4f1be2a933")
SHARDS = 4
GROUP = "recorder"
pytestmark = [pytest.mark.integration, pytest.mark.faults]

BEFORE_IT_BEGAN = "start.before_settled"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as opened:
        yield opened


def start(tmp_path: Path, coordination: str, failpoints: str = "") -> subprocess.Popen[bytes]:
    settings = {"path": str(tmp_path / "runs"), "coordination": coordination, "start": "latest"}
    arguments = [
        str(tmp_path / "store"),
        "w",
        "2.0",
        "tests.support.trigger_programs:recording",
        json.dumps(settings),
    ]
    with (tmp_path / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.trigger_process", *arguments],
            cwd=ROOT,
            env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def put(store: Datastore, numbers: range) -> set[tuple[int, int]]:
    results = store.put_cells(
        [(uuid5(NAMESPACE, str(number)), "BASE", 1, {}) for number in numbers]
    )
    return {(result.shard or 0, result.added_id or 0) for result in results}


def runs(tmp_path: Path) -> list[tuple[int, int]]:
    path = tmp_path / "runs"
    return (
        [
            (int(shard), int(added_id))
            for shard, added_id, _ in map(str.split, path.read_text().splitlines())
        ]
        if path.exists()
        else []
    )


@pytest.mark.parametrize(
    "failpoint",
    [
        BEFORE_IT_BEGAN,
        "start.after_settled",
        "start.before_first_offsets",
        "start.after_first_offsets",
        "trigger.before_run",
    ],
)
def test_latest_does_not_slide_when_the_first_worker_is_killed(
    store: Datastore, coordinator: Coordinator, coordination: str, tmp_path: Path, failpoint: str
) -> None:
    put(store, range(100))
    before = {shard: head.watermark for shard, head in store.heads().items()}
    first = start(tmp_path, coordination, f"{failpoint}=kill")
    later: set[tuple[int, int]] = set()
    if failpoint == "trigger.before_run":
        wait_until(
            lambda: len(coordinator.fetch_offsets(GROUP)) == SHARDS, "it has begun on all shards"
        )
        later |= put(store, range(100, 150))
    assert first.wait(30) == -signal.SIGKILL, "the fault did not happen"
    while_it_was_dead = put(store, range(150, 200))
    heir = start(tmp_path, coordination)
    try:
        wait_until(
            lambda: len(coordinator.fetch_offsets(GROUP)) == SHARDS, "it has begun on all shards"
        )
        later |= put(store, range(200, 250))
        expected = later if failpoint == BEFORE_IT_BEGAN else later | while_it_was_dead
        wait_until(
            lambda: expected <= set(runs(tmp_path)), "all that came after the group began are run"
        )
    finally:
        heir.terminate()
        assert heir.wait(30) == 0
    assert set(runs(tmp_path)) == expected
    assert all(added_id >= before[shard] for shard, added_id in runs(tmp_path))
