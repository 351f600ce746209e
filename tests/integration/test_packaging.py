"""The wheel: built, installed into an environment of its own, imported and run from elsewhere; and the lock file that environments are made from."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import cellfeed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
pytestmark = pytest.mark.integration

_LOOK = """
import json, sys
import cellfeed, bridge.gateway.server, consumers.billing.app, schemas, store.datastore
from cellfeed.loading.taxi import expected_figures, shipped_csv
print(json.dumps({
    "files": [module.__file__ for module in (cellfeed, bridge.gateway.server, consumers.billing.app, schemas, store.datastore)],
    "names": cellfeed.__all__,
    "avro": schemas.load_avro("cell_envelope")["name"],
    "config": schemas.load_json_schema("config")["title"],
    "trips": expected_figures().trips,
    "csv": str(shipped_csv()),
}))
with store.datastore.Datastore.open_embedded(__import__("pathlib").Path("data")) as trips:
    assert trips.put_cell("5cb0f0a2-0000-4000-8000-000000000001", "BASE", 1, {"n": 1}).added_id == 0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what is in the tree, so that no build directory is left in it."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    for name in names or [str(path.relative_to(ROOT)) for path in _without_git()]:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), str(source)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(built.glob("cellfeed-*.whl"))


def _without_git() -> list[Path]:
    hidden = {".venv", ".git", "build", "dist"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not hidden & set(path.relative_to(ROOT).parts)]


@pytest.mark.xdist_group("packaging")
def test_the_wheel_carries_the_packages_their_data_and_the_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"store", "bridge", "consumers", "schemas", "cellfeed"}
    data = {
        "store/engines/sqlite/schema.sql",
        "schemas/avro/cell_envelope.avsc",
        "schemas/json/config.schema.json",
        "cellfeed/data/taxis.csv",
        "cellfeed/data/mariadb.cnf",
    }
    assert data <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(next(name for name in names if name.endswith(".dist-info/entry_points.txt"))).decode()
    assert "[pytest11]\ncellfeed = cellfeed.testing.plugin" in entry_points
    packages = {name.split("/")[0] for name in names if name.endswith("/py.typed")}
    assert packages == {"store", "bridge", "consumers", "schemas", "cellfeed"}


@pytest.mark.xdist_group("packaging")
def test_the_wheel_is_installed_imported_and_run_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    environment, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    # The dependencies are this environment's; its own editable install of the product is not seen, since .pth files are not followed from a path.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    looked = subprocess.run([python, "-I", "-c", _LOOK], cwd=elsewhere, capture_output=True, text=True, timeout=110, check=False)
    assert looked.returncode == 0, looked.stderr
    assert looked.stdout.count(str(environment)) == 6, looked.stdout
    assert str(ROOT) + "/" not in looked.stdout
    assert '"trips": 6433' in looked.stdout
    version = subprocess.run([environment / "bin" / "cellfeed", "--version"], cwd=elsewhere, capture_output=True, text=True, timeout=60, check=False)
    assert (version.returncode, version.stdout) == (0, f"cellfeed {cellfeed.__version__}\n"), version.stderr


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == cellfeed.__version__
    assert cellfeed.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_lock_file_has_every_dependency_with_hashes_and_names_no_host() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert "index-url" not in lock
    locked = {_normal(name) for name in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==", lock, re.MULTILINE)}
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"], *PROJECT["optional-dependencies"]["testing"]]
    assert {_normal(re.split(r"[\[<>=;~! ]", each)[0]) for each in wanted} <= locked
    assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=\S)", lock.strip()) if not entry.startswith("#"))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
