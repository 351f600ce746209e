"""A second ``cellfeed up``: on ports of its own, and over the files of another instance."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.cli_instance import cellfeed, ended, kill, processes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
FREE = ("--port", "0", "--kafka-port", "0", "--registry-port", "0")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cellfeed.yaml"
    path.write_text(
        f"datastore: {{shards: 2, directory: {tmp_path / 'data'}}}\nworkers: [{{port: 0}}]\n"
        "gateways: []\n"
    )
    return path


def up(run_dir: Path, file: Path, *more: str) -> tuple[int, str]:
    said = cellfeed("up", "--detach", "--config", str(file), "--run-dir", str(run_dir), *more)
    return said.returncode, said.stdout + said.stderr


def supervisor(run_dir: Path) -> int:
    return int((run_dir / "supervisor.lock").read_text())


def test_up_takes_name_and_ports_from_its_options(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with ended(run_dir):
        said = cellfeed("up", "--detach", "--run-dir", str(run_dir), "--datastore", "rides", *FREE)
        assert said.returncode == 0, said.stderr
        ports = processes(run_dir)["worker"]["ports"], processes(run_dir)["gateway"]["ports"]
        assert {7420, 9092, 8081}.isdisjoint([*ports[0].values(), *ports[1].values()])
        key = "5cb0f0a2-0000-4000-8000-000000000001"
        put = cellfeed("put", key, "BASE", "1", "{}", "--run-dir", str(run_dir))
        assert put.returncode == 0, put.stderr
        assert (run_dir / "store" / "rides").is_dir()
        assert cellfeed("down", "--run-dir", str(run_dir)).returncode == 0


@pytest.mark.parametrize(
    ("option", "config", "says"),
    [
        ("--port", "workers: [{name: a, port: 0}, {name: b, port: 0}]", "2 workers"),
        ("--kafka-port", "gateways: []", "0 gateways"),
        ("--registry-port", "gateways: [{name: a}, {name: b, port: 0}]", "2 gateways"),
        ("--kafka-port", "gateways: [{listeners: [{name: a}]}]", "has listeners"),
    ],
)
def test_a_port_that_is_not_for_one_entry_is_refused(
    file: Path, option: str, config: str, says: str
) -> None:
    file.write_text(config)
    code, said = up(file.parent / "run", file, option, "0")
    assert code == 2
    assert option in said
    assert says in said
    assert not (file.parent / "run").exists()


def test_files_of_an_instance_that_runs_are_refused_to_another_run_directory(
    tmp_path: Path, file: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with ended(first), ended(second):
        assert up(first, file)[0] == 0
        code, said = up(second, file)
        assert code == 2, said
        assert f"--run-dir {first}" in said
        assert "--share-files" in said
        assert not (second / "processes.json").exists()
        code, said = up(second, file, "--share-files")
        assert code == 0, said
        assert f"sharing the files of {tmp_path / 'data' / 'trips'}" in said
        assert str(first) in said
        for run_dir in (second, first):
            assert cellfeed("down", "--run-dir", str(run_dir)).returncode == 0
        assert (tmp_path / "data" / "trips.instances").read_text() == ""
        assert up(second, file)[0] == 0
        assert cellfeed("down", "--run-dir", str(second)).returncode == 0


def test_a_fresh_store_beside_another_one_is_made_only_by_its_name(
    tmp_path: Path, file: Path
) -> None:
    run_dir = tmp_path / "run"
    with ended(run_dir):
        assert up(run_dir, file, "--datastore", "rides")[0] == 0
        assert cellfeed("down", "--run-dir", str(run_dir)).returncode == 0
        code, said = up(run_dir, file)
        assert code == 3
        assert "has datastore rides, and none named trips" in said
        assert not (tmp_path / "data" / "trips").exists()
        code, said = up(run_dir, file, "--datastore", "trips")
        assert code == 0, said
        down = cellfeed("down", "--run-dir", str(run_dir))
        for words in (said, down.stdout):
            assert "on disk: store " in words
            assert "logs " in words
        assert up(run_dir, file)[0] == 0
        assert cellfeed("down", "--run-dir", str(run_dir)).returncode == 0


def test_the_files_are_in_use_after_a_killed_supervisor_until_its_processes_have_ended(
    tmp_path: Path, file: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with ended(first), ended(second):
        assert up(first, file)[0] == 0
        kill(supervisor(first))
        code, said = up(second, file)
        assert code == 2, said
        assert "whose supervisor is gone" in said
        worker = processes(first)["worker"]["pid"]
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: up(second, file)[0] == 0, "the files are free")
        assert cellfeed("down", "--run-dir", str(second)).returncode == 0


def test_a_run_directory_that_is_gone_uses_no_files(tmp_path: Path, file: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with ended(first), ended(second):
        assert up(first, file)[0] == 0
        pids = supervisor(first), processes(first)["worker"]["pid"]
        for pid in pids:
            kill(pid)
        shutil.rmtree(first)
        assert up(second, file)[0] == 0
        assert cellfeed("down", "--run-dir", str(second)).returncode == 0
