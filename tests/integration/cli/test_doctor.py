"""``doctor`` and ``top`` name faults that are put into a running instance, each correctly."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cellfeed.run_dir import RunDir
from cellfeed.store.http.client import Client
from tests.support.cli_instance import cellfeed, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

PROGRAM = """
from cellfeed.bridge.triggers.program import RetryPolicy, trigger

@trigger(column="BASE", retry=RetryPolicy(2, 0.01, 0.01), pause_rows=None)
def bill(row_key, *, cell):
    if cell.body.get("poison"):
        raise ValueError("poison")
"""
CONFIG = """
datastore: {shards: 4}
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
triggers: [{app: PATH, name: billing, lease_s: 1}]
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("doctor")
    program = directory / "bill.py"
    program.write_text(PROGRAM)
    with running(directory, CONFIG.replace("PATH", str(program))) as made:
        yield made


def examined(run_dir: Path) -> list[dict[str, Any]]:
    """The findings that are not well, but for the disk: the suite's is in memory."""
    said = cellfeed("doctor", "--json", "--run-dir", str(run_dir))
    found = [json.loads(line) for line in said.stdout.splitlines()]
    bad = {"problem", "unknown"}
    assert said.returncode == int(any(each["level"] in bad for each in found)), said.stderr
    return [each for each in found if each["level"] != "well" and each["area"] != "disk"]


def problems(run_dir: Path) -> list[dict[str, Any]]:
    return [each for each in examined(run_dir) if each["level"] == "problem"]


def standing(run_dir: Path) -> list[dict[str, Any]]:
    said = cellfeed("top", "--json", "--run-dir", str(run_dir))
    found = [json.loads(line) for line in said.stdout.splitlines()]
    assert said.returncode == int(bool(found)), said.stderr
    return found


def worker_url(run_dir: Path) -> str:
    return f"http://127.0.0.1:{RunDir(run_dir).process('worker').ports['http']}"


def put(run_dir: Path, number: int, body: dict[str, Any]) -> None:
    with Client(worker_url(run_dir), "trips") as client:
        client.put_cell(UUID(int=number), "BASE", 1, body)


def test_an_instance_that_is_well_has_no_problem(run_dir: Path) -> None:
    assert problems(run_dir) == []
    assert standing(run_dir) == []
    said = cellfeed("top", "--run-dir", str(run_dir)).stdout
    assert "nothing stands still" in said
    assert "billing" in said
    assert (
        "well: answers: worker http"
        in cellfeed("doctor", "--all", "--run-dir", str(run_dir)).stdout
    )


def test_a_paused_trigger_is_named_with_the_command_that_resumes_it(run_dir: Path) -> None:
    at = ("--run-dir", str(run_dir))
    assert cellfeed("triggers", "pause", "billing", "--reason", "a test", *at).returncode == 0
    [found] = problems(run_dir)
    assert (found["area"], found["subject"]) == ("progress", "trigger billing")
    assert "a test" in found["found"]
    assert cellfeed(*found["remedy"].split()[1:], "--reason", "over", *at).returncode == 0
    assert problems(run_dir) == []


def test_a_poison_cell_is_named_until_it_is_skipped(run_dir: Path) -> None:
    put(run_dir, 1, {"poison": True})
    wait_until(lambda: bool(standing(run_dir)), "a parked cell", 30)
    [found] = standing(run_dir)
    assert (found["kind"], found["name"]) == ("trigger", "billing")
    assert "parked cells: 1" in found["reason"]
    assert found["remedy"] == "cellfeed parked list"
    with Client(worker_url(run_dir), "trips") as client:
        cell = client.get_row(UUID(int=1))["BASE"]
    place = f"{cell.shard}/{cell.added_id}"
    said = cellfeed(
        "parked", "skip", "billing", place, "--reason", "poison", "--run-dir", str(run_dir)
    )
    assert said.returncode == 0, said.stderr
    assert standing(run_dir) == []


def test_a_process_that_hangs_and_one_that_died_are_named(run_dir: Path) -> None:
    directory = RunDir(run_dir)
    worker, gateway = directory.process("worker").pid, directory.process("gateway").pid
    os.kill(worker, signal.SIGSTOP)
    try:
        [found] = problems(run_dir)
        assert found["area"] == "answers"
        assert found["subject"].startswith("worker http")
    finally:
        os.kill(worker, signal.SIGCONT)
    wait_until(lambda: problems(run_dir) == [], "the worker answers again", 30)
    os.kill(gateway, signal.SIGKILL)
    wait_until(lambda: not directory.alive("gateway"), "the gateway is gone", 10)
    [dead] = standing(run_dir)
    assert (dead["kind"], dead["name"]) == ("process", "gateway")
    assert cellfeed("start", "gateway", "--run-dir", str(run_dir)).returncode == 0
    assert standing(run_dir) == []


@pytest.mark.parametrize("verb", ["doctor", "top"])
def test_a_folder_that_is_no_run_directory_is_refused_in_one_line(
    tmp_path: Path, verb: str
) -> None:
    said = cellfeed(verb, "--run-dir", str(tmp_path))
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.count("\n") == 1
