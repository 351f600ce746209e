"""The image: its instructions, and its command as its user on a read-only file system. That is as
near to a container as a machine without an engine comes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cellfeed.processes import probe
from cellfeed.processes.health import ProcessHealth
from cellfeed.processes.health_listener import HealthListener
from tests.support.free_ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[3]
DOCKERFILE: Final = (ROOT / "docker" / "Dockerfile").read_text()
FINAL_STAGE: Final = DOCKERFILE.rpartition("\nFROM ")[2]


def instruction(name: str) -> str:
    [found] = re.findall(rf"^{name} (.+)$", FINAL_STAGE, re.MULTILINE)
    return str(found)


def environment() -> dict[str, str]:
    words = dict(each.split("=", 1) for each in shlex.split(instruction("ENV")))
    assert words.pop("PATH").startswith("/opt/cellfeed/bin:")
    return words


def locked(path: Path) -> set[tuple[str, str]]:
    """Name and version; of a package with markers several."""
    return set(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE))


def test_the_image_runs_as_a_numbered_user_that_is_not_root_on_a_pinned_base() -> None:
    uid, _, gid = instruction("USER").partition(":")
    assert (int(uid), int(gid)) == (10_001, 10_001)
    [base] = re.findall(r"^ARG BASE=(.+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base)
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert instruction("ENTRYPOINT") == '["cellfeed"]'
    assert "RUN python" not in FINAL_STAGE, "nothing is installed in the stage that is shipped"


def test_the_image_has_no_packages_of_tests_and_the_versions_that_were_tested() -> None:
    image, tested = (
        locked(ROOT / "docker" / "requirements.lock"),
        locked(ROOT / "requirements.lock"),
    )
    names = {name for name, _ in image}
    assert {"litestar", "kazoo", "confluent-kafka", "duckdb", "boto3"} <= names
    assert not {"pytest", "mypy", "sphinx", "hypothesis"} & names
    assert image - tested == set()
    for path in (ROOT / "docker").glob("*.lock"):
        assert path.read_text().count("--hash=sha256:") >= len(locked(path))
        assert "://" not in path.read_text()


def test_the_health_check_asks_the_address_that_the_image_listens_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    assert command == ["python", "-m", "cellfeed.processes.probe"]
    assert environment()["CELLFEED_HEALTH"] == "0.0.0.0:8090"
    health = ProcessHealth("worker")
    listener = HealthListener(health, "127.0.0.1", 0)
    monkeypatch.setenv("CELLFEED_HEALTH", f"0.0.0.0:{listener.port}")
    assert probe.main([]) == 1
    assert json.loads(capsys.readouterr().out)["reasons"][0]["code"] == "starting"
    assert probe.main(["/livez"]) == 0
    health.serves()
    assert probe.main([]) == 0
    listener.close()
    assert probe.main([]) == 1
    assert "no answer" in capsys.readouterr().out
    monkeypatch.setenv("CELLFEED_HEALTH", "nonsense")
    assert probe.main([]) == 1


def test_the_health_check_loads_no_package(tmp_path: Path) -> None:
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cellfeed.processes.probe"],
        cwd=ROOT,
        env={**os.environ, "CELLFEED_HEALTH": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert loaded.returncode == 1
    assert "http.client" in loaded.stderr
    assert not re.search(r"\| +(msgspec|litestar|typer|numpy)$", loaded.stderr, re.MULTILINE)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A folder of the image's user, on a file system in memory."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems and becomes another user")
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-image-", dir="/dev/shm"))
    directory.chmod(0o750)
    os.chown(directory, 10_001, 10_001)
    yield directory
    shutil.rmtree(directory)


def test_the_image_runs_its_command_as_its_user_on_a_read_only_disk(run_dir: Path) -> None:
    http, health = free_port(), free_port()
    (run_dir / "config.yaml").write_text(f"datastore: {{shards: 2}}\nworkers: [{{port: {http}}}]\n")
    variables = {
        **environment(),
        "CELLFEED_RUN_DIR": str(run_dir),
        "CELLFEED_HEALTH": f"0.0.0.0:{health}",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/",
    }
    inside = (
        "mount --make-rprivate / && mount -o remount,bind,ro / && mount -t tmpfs tmpfs /tmp"
        " && ! touch /read-only 2>/dev/null"
        f" && cd {shlex.quote(str(ROOT))}"
        " && exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs"
        " --bounding-set=-all cellfeed run worker"
    )
    entry = [*json.loads(instruction("ENTRYPOINT"))]
    assert entry == ["cellfeed"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", inside], env=variables, stdout=log, stderr=log
        )
        try:
            check = [sys.executable, "-m", "cellfeed.processes.probe"]

            def is_healthy() -> bool:
                if process.poll() is not None:
                    log.seek(0)
                    pytest.fail(log.read().decode())
                done = subprocess.run(
                    check, cwd=ROOT, env=variables, capture_output=True, check=False, timeout=60
                )
                return done.returncode == 0

            wait_until(is_healthy, "the health check passes")
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert re.search(r"^Uid:\s+10001\s+10001", status, re.MULTILINE)
            assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
            assert (run_dir / "store" / "trips").is_dir()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
