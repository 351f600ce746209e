"""A run directory with a store, and commands on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.cli.main import main
from cellfeed.instance.config_file import write_config
from cellfeed.processes.reports import ProcessEntry
from cellfeed.run_dir import RunDir
from cellfeed.store.datastore import Datastore
from tests.support.cli_said import CONFIG, SHARDS, Run, Said
from tests.support.worker_thread import worker_thread


@pytest.fixture
def run_dir(tmp_path: Path, datastore: Datastore) -> Iterator[RunDir]:
    """An instance's run directory, its worker in a thread of this process."""
    del datastore
    directory = RunDir(tmp_path / "run")
    directory.make()
    write_config(CONFIG, directory.config)
    with (
        Datastore.open_embedded(directory.inside("store"), shards=SHARDS) as opened,
        worker_thread(opened) as url,
    ):
        directory.say_ready("worker", {"http": int(url.rpartition(":")[2])})
        directory.record(
            ProcessEntry(
                "worker", "worker", os.getpid(), {"http": int(url.rpartition(":")[2])}, "-"
            )
        )
        yield directory


@pytest.fixture
def opened(run_dir: RunDir) -> Iterator[Datastore]:
    """The same store from below."""
    with Datastore.open_embedded(run_dir.inside("store"), shards=SHARDS) as store:
        yield store


@pytest.fixture
def run(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a command on the instance as its entry point does."""
    monkeypatch.setenv("CELLFEED_RUN_DIR", str(run_dir.path))
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["cellfeed", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Said(int(ended.value.code or 0), captured.out, captured.err)

    return command
