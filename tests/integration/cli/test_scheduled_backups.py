"""Backups on a schedule of a real instance: killed amid a backup, started again, its folder away,
with its status and metrics meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.marker import MANIFEST
from tests.support.cli_instance import CELLFEED, ROOT, cellfeed, ended, processes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CONFIG = """
datastore: {{shards: 4}}
workers: [{{port: 0}}]
gateways: []
backups: [{{directory: {backups}, every_s: 1, full_every_s: 1000}}]
"""
AMID = "backup.before_manifest=kill@3"


def up(run_dir: Path, config: Path, failpoints: str = "") -> None:
    """Starts the instance; ``failpoints`` are set in all of its processes."""
    done = subprocess.run(
        [*CELLFEED, "up", "--detach", "--config", str(config), "--run-dir", str(run_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
    )
    assert done.returncode == 0, done.stderr


def put(run_dir: Path, number: int) -> None:
    key = f"5cb0f0a2-0000-4000-8000-{number:012d}"
    done = cellfeed("put", key, "BASE", "1", f'{{"n":{number}}}', "--run-dir", str(run_dir))
    assert done.returncode == 0, done.stderr


def status(run_dir: Path) -> dict[str, Any]:
    """Its words about the schedule."""
    done = cellfeed("status", "--json", "--run-dir", str(run_dir))
    assert done.returncode == 0, done.stderr
    [told] = json.loads(done.stdout)["backups"]
    return dict(told)


def age_s(run_dir: Path) -> float:
    """Of the recovery point, as Prometheus gets it."""
    port = processes(run_dir)["worker"]["ports"]["http"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    wanted = 'cellfeed_backup_recovery_point_age_seconds{name="backups"} '
    [line] = [line for line in lines if line.startswith(wanted)]
    return float(line.removeprefix(wanted))


def cells(folder: BackupFolder) -> int:
    """Those of the newest backup and of the backups that it stands on."""
    chain = folder.chain(folder.get(None))
    return sum(each.manifest.cells for each in chain)


def test_a_schedule_that_is_killed_amid_a_backup_resumes_and_loses_nothing(tmp_path: Path) -> None:
    run_dir, folder, config = tmp_path / "run", BackupFolder(tmp_path / "b"), tmp_path / "c.yaml"
    config.write_text(CONFIG.format(backups=folder.path))
    with ended(run_dir):
        up(run_dir, config, AMID)
        first = processes(run_dir)["backups"]
        assert (first["kind"], set(first["ports"])) == ("backups", {"health"})
        put(run_dir, 1)
        wait_until(
            lambda: (
                not psutil.pid_exists(first["pid"])
                or psutil.Process(first["pid"]).status() == psutil.STATUS_ZOMBIE
            ),
            "the process is killed amid its third backup",
        )
        [rest] = [each for each in folder.path.glob("2*") if not (each / MANIFEST).exists()]
        assert len(folder.look()[0]) == 2
        put(run_dir, 2)  # the store does not notice
        before_s = age_s(run_dir)
        wait_until(lambda: age_s(run_dir) > before_s + 1, "the recovery point grows old")
        started = subprocess.run(
            [*CELLFEED, "start", "backups", "--run-dir", str(run_dir)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "CELLFEED_FAILPOINTS": ""},
        )
        assert started.returncode == 0, started.stderr
        wait_until(lambda: cells(folder) == 2, "both cells are backed up")
        found, unreadable = folder.look()
        assert [each.manifest.onto is None for each in found] == [True, *[False] * (len(found) - 1)]
        assert (unreadable, rest.exists()) == ([], False)
        wait_until(lambda: age_s(run_dir) < before_s, "the recovery point is young again")
        told = status(run_dir)
        assert (told["error"], told["damaged"], told["every_s"]) == (None, {}, 1.0)
        assert 0 <= told["age_s"] < 60
        down = cellfeed("down", "--run-dir", str(run_dir))
        assert (down.returncode, "killed" in down.stdout) == (0, False)
        assert all((each / MANIFEST).exists() for each in folder.path.glob("2*"))
    verified = cellfeed("backup", "verify", str(folder.path))
    assert verified.returncode == 0, verified.stdout


def test_an_unwritable_backup_folder_stops_no_put_and_is_reported_until_it_is_writable(
    tmp_path: Path,
) -> None:
    run_dir, backups, config = tmp_path / "run", tmp_path / "b", tmp_path / "c.yaml"
    config.write_text(CONFIG.format(backups=backups))
    backups.write_text("a file")  # as a disk that is not mounted
    with ended(run_dir):
        up(run_dir, config)
        wait_until(lambda: status(run_dir)["error"] is not None, "the failure is reported")
        assert age_s(run_dir) == float("inf")
        put(run_dir, 1)
        shown = cellfeed("status", "--run-dir", str(run_dir)).stdout
        assert "no whole backup yet" in shown
        assert "the last attempt failed: " in shown
        assert "tried again in 2 s" in (run_dir / "logs" / "backups.log").read_text()
        backups.unlink()
        wait_until(lambda: status(run_dir)["recovery_point"] is not None, "a backup is taken")
        assert status(run_dir)["error"] is None
        shutil.rmtree(backups)
        wait_until(
            lambda: backups.exists() and len(BackupFolder(backups).look()[0]) > 0,
            "a folder that was removed gets a full backup",
        )
        assert cells(BackupFolder(backups)) == 1
