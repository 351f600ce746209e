"""``pip install cellfeed`` is the client alone: small, and as good as with everything; other
commands name the extra that they need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest

from cellfeed import cli
from cellfeed.store.datastore import Datastore
from tests.support import only_clients
from tests.support.environments import (
    install_wheel,
    installed_in,
    link_packages,
    needed_by,
)
from tests.support.only_clients import WORKER_URL
from tests.support.worker_thread import worker_thread

TESTS = Path(__file__).parents[2]
PACKAGES_MAX = 5
BYTES_MAX = 15 << 20
"""Of a service's environment: cellfeed and the packages that it brings."""

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("packaging")]

_FILES = {
    "__init__.py": "__init__.py",
    "contract/__init__.py": "contract/__init__.py",
    **{
        f"contract/cell_store/{path.name}": f"contract/cell_store/{path.name}"
        for path in (TESTS / "contract" / "cell_store").glob("*.py")
    },
    "contract/test_following.py": "contract/test_following.py",
    "contract/conftest.py": f"support/{Path(only_clients.__file__).name}",
    "support/__init__.py": "support/__init__.py",
    "support/only_clients.py": f"support/{Path(only_clients.__file__).name}",
    "support/client_in_loop.py": "support/client_in_loop.py",
    "support/odd_bodies.py": "support/odd_bodies.py",
}
"""Of the contract suite, where only the client is installed."""


@pytest.fixture(scope="module")
def client_alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = tmp_path_factory.mktemp("client-alone") / "venv"
    site = install_wheel(wheel, environment)
    link_packages(needed_by(installed_in(site)), site)
    return environment


def _run(
    *command: str | Path, cwd: Path, timeout_s: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "PYTHON"))
    }
    return subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_a_service_installs_few_packages_and_few_bytes(client_alone: Path, tmp_path: Path) -> None:
    [site] = client_alone.glob("lib/python*/site-packages")
    needed = needed_by(installed_in(site))
    assert 0 < len(needed) <= PACKAGES_MAX
    own = sum(path.stat().st_size for path in site.rglob("*.*") if path.suffix != ".pyc")
    assert 1 << 20 < own + link_packages(needed, tmp_path) < BYTES_MAX


def test_the_contract_suite_passes_where_only_the_client_is_installed(
    client_alone: Path, tmp_path: Path
) -> None:
    for target, source in _FILES.items():
        (tmp_path / "tests" / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TESTS / source, tmp_path / "tests" / target)
    beside = tmp_path / "pytest"
    beside.mkdir()
    link_packages({"pytest", *needed_by(distribution("pytest"))}, beside)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    with (
        Datastore.open_embedded(tmp_path / "store", "trips", 16) as datastore,
        worker_thread(datastore) as url,
    ):
        done = _run(
            client_alone / "bin" / "python",
            "-m",
            "pytest",
            "tests/contract",
            cwd=tmp_path,
            timeout_s=110,
            PYTHONPATH=str(beside),
            **{WORKER_URL: url},
        )
    counted = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])
    }
    assert done.returncode == 0, done.stdout + done.stderr
    assert counted["passed"] > 150
    assert counted["skipped"] * 10 < counted["passed"]


@pytest.mark.parametrize("command", [["up"], ["--help"], ["get", "1", "BASE"]])
def test_a_command_without_its_extra_names_it(
    client_alone: Path, tmp_path: Path, command: list[str]
) -> None:
    done = _run(client_alone / "bin" / "cellfeed", *command, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'cellfeed[server]'" in done.stderr


def test_a_trigger_program_without_the_extra_names_it(client_alone: Path, tmp_path: Path) -> None:
    done = _run(client_alone / "bin" / "python", "-c", "from cellfeed import trigger", cwd=tmp_path)
    assert "ImportError: cellfeed.trigger: this needs the package" in done.stderr
    assert "pip install 'cellfeed[server]'" in done.stderr


@pytest.fixture(scope="module")
def with_server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = tmp_path_factory.mktemp("server") / "venv"
    site = install_wheel(wheel, environment)
    link_packages(needed_by(installed_in(site), ["server"]), site)
    return environment


def test_an_instance_runs_with_the_server_extra_alone(with_server: Path, tmp_path: Path) -> None:
    (tmp_path / "cellfeed.yaml").write_text(
        "datastore: {shards: 4}\nworkers: [{port: 0}]\ngateways: [{port: 0, registry_port: 0}]\n"
    )
    command, row = with_server / "bin" / "cellfeed", "5cb0f0a2-0000-4000-8000-000000000001"
    try:
        up = _run(command, "up", "--detach", "--config", "cellfeed.yaml", cwd=tmp_path)
        assert up.returncode == 0, up.stdout + up.stderr
        put = _run(command, "put", row, "BASE", "1", '{"n": 1}', cwd=tmp_path)
        assert put.returncode == 0, put.stdout + put.stderr
        got = _run(command, "get", row, "BASE", cwd=tmp_path)
        assert '"n":1' in got.stdout.replace(" ", ""), got.stdout + got.stderr
    finally:
        down = _run(command, "down", cwd=tmp_path)
    assert down.returncode == 0, down.stdout + down.stderr


def test_commands_without_an_extra_load_no_module_of_one(with_server: Path, tmp_path: Path) -> None:
    of_exports = {"export_control", "offsets_translate"}
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    names = sorted(modules - of_exports - {"demo"})
    assert "restore" in names
    program = "\n".join(f"import cellfeed.cli.{name}" for name in names)
    done = _run(with_server / "bin" / "python", "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("configuration", "extra"),
    [
        ("datastore: {shards: 4}\ncoordination: zookeeper://127.0.0.1:1/trips", "zookeeper"),
        ("datastore: {shards: 4}\ngateways: [{port: 0, compression: {'*': lz4}}]", "warehouse"),
    ],
)
def test_an_instance_that_needs_another_extra_names_it(
    with_server: Path, tmp_path: Path, configuration: str, extra: str
) -> None:
    (tmp_path / "cellfeed.yaml").write_text(f"workers: [{{port: 0}}]\n{configuration}\n")
    command = with_server / "bin" / "cellfeed"
    up = _run(command, "up", "--detach", "--config", "cellfeed.yaml", cwd=tmp_path)
    assert up.returncode != 0
    assert f"pip install 'cellfeed[{extra}]'" in up.stderr, up.stdout + up.stderr
    assert "Traceback" not in up.stderr


def test_a_demo_without_the_extras_that_it_shows_makes_nothing(
    with_server: Path, tmp_path: Path
) -> None:
    demo = _run(with_server / "bin" / "cellfeed", "demo", cwd=tmp_path)
    assert demo.returncode != 0
    assert "pip install 'cellfeed[export]'" in demo.stderr, demo.stdout + demo.stderr
    assert list(tmp_path.iterdir()) == []
