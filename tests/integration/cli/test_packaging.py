"""The wheel: one name in site-packages, run from elsewhere beside modules that bear our folders'
names; and the lock file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import cellfeed
from tests.support.environments import install_wheel

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("store", "bridge", "consumers", "schemas")
"""Of the repository; ``cellfeed`` has a link to each, so that they are ``cellfeed.store`` and so
on."""
pytestmark = pytest.mark.integration

_LOOK = """
import json
import duckdb
import cellfeed, cellfeed.bridge.gateway, cellfeed.consumers.billing.app
import cellfeed.schemas, cellfeed.store.datastore
from cellfeed.loading.taxi import expected_figures, shipped_csv
places = (cellfeed, cellfeed.bridge.gateway, cellfeed.consumers.billing.app,
          cellfeed.schemas, cellfeed.store.datastore)
print(json.dumps({
    "files": [module.__file__ for module in places],
    "names": cellfeed.__all__,
    "avro": cellfeed.schemas.load_avro("cell_envelope")["name"],
    "config": cellfeed.schemas.load_json_schema("config")["title"],
    "trips": expected_figures().trips,
    "csv": str(shipped_csv()),
    "year": duckdb.sql("SELECT TIMESTAMPTZ '2016-03-01 12:00:00Z'").fetchall()[0][0].year,
}))
"""

_CONFIG = """
datastore: {shards: 4}
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
triggers: [{name: service, app: "bridge:program"}]
"""

_OWN_MODULES = {
    "store.py": 'NAME = "the shop"\n',
    "schemas.py": 'FIELDS = ["shop", "row"]\n',
    "bridge.py": (
        """
from cellfeed import trigger
from schemas import FIELDS
from store import NAME

@trigger(column="BASE")
def program(row_key):
    with open("called.txt", "a") as called:
        called.write(dict(zip(FIELDS, [NAME, str(row_key)]))["shop"] + " " + str(row_key) + "\\n")
"""
    ),
    "consumers.py": (
        """
from confluent_kafka import Consumer

def first_record(bootstrap):
    settings = {"bootstrap.servers": bootstrap, "group.id": "own"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["trips.BASE"])
    record = consumer.poll(30)
    consumer.close()
    return record.offset(), record.error()
"""
    ),
    "service.py": (
        """
import json, sys, time
from pathlib import Path
import consumers, schemas, store
from cellfeed import connect

ROW = "5cb0f0a2-0000-4000-8000-000000000001"
ports = {}
for each in json.loads(Path(sys.argv[1], "processes.json").read_text()):
    ports |= each["ports"]
with connect(f"http://127.0.0.1:{ports['http']}") as client:
    assert client.put_cell(ROW, "BASE", 1, {"n": 1}).added_id == 0
assert consumers.first_record(f"127.0.0.1:{ports['kafka']}") == (0, None)
for _ in range(300):
    if Path("called.txt").exists() and Path("called.txt").read_text() == f"{store.NAME} {ROW}\\n":
        sys.exit(0)
    time.sleep(0.1)
sys.exit("the trigger was not called within 30 s")
"""
    ),
}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel and nothing of the checkout; gives its directory."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    site = install_wheel(wheel, environment)
    # The dependencies are this environment's. Its own editable install is not seen: a path's .pth
    # files are not followed.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


@pytest.mark.xdist_group("packaging")
def test_wheel_and_sdist_install_one_name_with_data_and_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"cellfeed"}
    data = {
        "cellfeed/store/engines/sqlite/schema.sql",
        "cellfeed/schemas/avro/cell_envelope.avsc",
        "cellfeed/schemas/json/config.schema.json",
        "cellfeed/data/taxis.csv",
        "cellfeed/data/mariadb.cnf",
    }
    assert data <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name.split("/")[0] for name in names if ".dist-info" in name)
        entry_points = archive.read(f"{metadata}/entry_points.txt").decode()
        top_level = archive.read(f"{metadata}/top_level.txt").decode().split()
    assert "[pytest11]\ncellfeed = cellfeed.testing.plugin" in entry_points
    assert top_level == ["cellfeed"]
    typed = {name for name in names if name.endswith("/py.typed")}
    assert typed == {"cellfeed/py.typed", *(f"cellfeed/{folder}/py.typed" for folder in FOLDERS)}


@pytest.mark.xdist_group("packaging")
def test_wheel_and_sdist_are_of_published_quality(wheel: Path) -> None:
    [sdist] = wheel.parent.glob("cellfeed-*.tar.gz")
    for command in (
        ["twine", "check", "--strict", str(wheel), str(sdist)],
        ["check_wheel_contents", str(wheel)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=wheel.parent,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.xdist_group("packaging")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_verbs_and_their_arguments(installed: Path, shell: str) -> None:
    words = {
        "cellfeed par": "parked",
        "cellfeed parked re": "retry",
        "cellfeed up --det": "--detach",
    }
    for typed, completed in words.items():
        asked = {
            "_CELLFEED_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
            "_TYPER_COMPLETE_ARGS": typed,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        done = subprocess.run(
            [installed / "bin" / "cellfeed"],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert completed in done.stdout, f"{typed}: {done.stdout}{done.stderr}"


@pytest.mark.xdist_group("packaging")
def test_the_wheel_is_imported_and_run_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    looked = subprocess.run(
        [installed / "bin" / "python", "-I", "-c", _LOOK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert looked.returncode == 0, looked.stderr
    assert looked.stdout.count(str(installed)) == 6, looked.stdout
    assert str(ROOT) + "/" not in looked.stdout
    assert '"trips": 6433' in looked.stdout
    assert '"year": 2016' in looked.stdout
    version = subprocess.run(
        [installed / "bin" / "cellfeed", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert version.returncode == 0, version.stderr
    first, *formats = version.stdout.splitlines()
    assert first == f"cellfeed {cellfeed.__version__}"
    assert [line.partition(":")[0] for line in formats] == [
        "embedded store",
        "cluster",
        "backup",
        "warehouse table",
    ]


@pytest.mark.xdist_group("packaging")
def test_a_service_may_have_modules_that_bear_our_folders_names(
    installed: Path, tmp_path: Path
) -> None:
    for name, text in _OWN_MODULES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "cellfeed.yaml").write_text(_CONFIG)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*command: str | Path) -> None:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    command = installed / "bin" / "cellfeed"
    try:
        run(command, "up", "--detach", "--config", "cellfeed.yaml", "--run-dir", "run")
        run(installed / "bin" / "python", "service.py", "run")
    finally:
        run(command, "down", "--run-dir", "run")


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_is_a_part_of_the_one_package(folder: str) -> None:
    assert (ROOT / "cellfeed" / folder).readlink() == Path("..", folder)


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == cellfeed.__version__
    assert cellfeed.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_lock_file_has_every_dependency_with_hashes_and_names_no_host() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert "index-url" not in lock
    locked = {
        _normal(name)
        for name in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==", lock, re.MULTILINE)
    }
    wanted = [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["dev"],
        *PROJECT["optional-dependencies"]["testing"],
    ]
    assert {_normal(re.split(r"[\[<>=;~! ]", each)[0]) for each in wanted} <= locked
    assert all(
        "--hash=sha256:" in entry
        for entry in re.split(r"\n(?=\S)", lock.strip())
        if not entry.startswith("#")
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
