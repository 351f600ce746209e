"""The units of ``deploy/systemd``: one for each kind, hardened alike, and a process that speaks
systemd's protocol."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from cellfeed.kinds.known import KINDS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[3]
UNITS: Final = ROOT / "deploy" / "systemd"
EXPOSURE_MAX: Final = 20
"""Of ``systemd-analyze security``, in tenths: the rest is the network and the files of the
host."""

ANALYZE: Final = shutil.which("systemd-analyze")
analyzed = pytest.mark.skipif(
    ANALYZE is None, reason="no systemd-analyze on this machine: Debian's package systemd has it"
)


def unit(kind: str) -> configparser.RawConfigParser:
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string((UNITS / f"cellfeed-{kind}@.service").read_text())
    return parsed


def test_each_kind_has_a_unit_and_no_other_kind_has_one() -> None:
    found = {path.name for path in UNITS.glob("*.service")}
    assert found == {f"cellfeed-{kind}@.service" for kind in KINDS}


def test_units_are_hardened_alike_and_take_the_words_of_the_process() -> None:
    services = {kind: dict(unit(kind)["Service"]) for kind in KINDS}
    reloads = {kind for kind, service in services.items() if service.pop("ExecReload", None)}
    assert reloads == {"gateway"}
    assert all(service == services["worker"] for service in services.values())
    worker = services["worker"]
    assert (worker["Type"], worker["User"], worker["NoNewPrivileges"]) == (
        "notify",
        "cellfeed",
        "yes",
    )
    assert float(worker["WatchdogSec"]) > 0
    # Longer than the longest drain, which the supervisor of `up` waits for too.
    assert float(worker["TimeoutStopSec"]) >= 40
    assert worker["RestartPreventExitStatus"] == "2 3"


@analyzed
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_systemd_accepts_the_unit(kind: str, tmp_path: Path) -> None:
    text = (UNITS / f"cellfeed-{kind}@.service").read_text()
    path = tmp_path / f"cellfeed-{kind}@.service"
    path.write_text(text.replace("/opt/cellfeed/bin/cellfeed", "/bin/true"))
    (tmp_path / "cellfeed.target").write_text((UNITS / "cellfeed.target").read_text())
    assert ANALYZE is not None
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    verified = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(tmp_path / f"cellfeed-{kind}@x.service")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
    complaints = [line for line in verified.stderr.splitlines() if "cellfeed" in line]
    assert (verified.returncode, complaints) == (0, [])
    # An unknown word is found: so an empty list of complaints means something.
    path.write_text(path.read_text().replace("ProtectHome=yes", "ProtectHouse=yes"))
    other = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(tmp_path / f"cellfeed-{kind}@x.service")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
    assert "ProtectHouse" in other.stderr


@analyzed
def test_the_units_expose_little() -> None:
    assert ANALYZE is not None
    rated = subprocess.run(
        [
            ANALYZE,
            "security",
            "--offline=true",
            f"--threshold={EXPOSURE_MAX}",
            str(UNITS / "cellfeed-worker@.service"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "SYSTEMD_COLORS": "0"},
    )
    level = re.search(r"exposure level for .*: (\d+\.\d)", rated.stdout)
    assert level is not None, rated.stderr
    assert float(level[1]) * 10 <= EXPOSURE_MAX
    assert rated.returncode == 0


def test_a_process_reports_its_start_its_life_and_its_end_to_systemd(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text("workers: [{port: 0}]\ndatastore: {shards: 2}\n")
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)

        def hears(line: str) -> bool:
            try:
                while True:
                    heard.extend(manager.recv(4096).decode().splitlines())
            except BlockingIOError:
                return line in heard

        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "cellfeed.cli.main",
                    "run",
                    "worker",
                    "--run-dir",
                    str(run_dir),
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "NOTIFY_SOCKET": str(tmp_path / "notify"),
                    "WATCHDOG_USEC": "200000",
                },
            )
        try:
            wait_until(lambda: hears("READY=1"), "the worker is ready")
            assert heard[0] == "READY=1" or heard[:1] == ["WATCHDOG=1"]
            heard.clear()
            wait_until(lambda: hears("WATCHDOG=1"), "the worker calls the watchdog")
            assert "STOPPING=1" not in heard
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: hears("STOPPING=1"), "the worker reports its end")
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
