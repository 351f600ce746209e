"""Builds the drivers of other languages, once for each state of their sources, outside of the tree: ``~/.cache/cellfeed/client-grid/<language>-<digest>``
(``CELLFEED_CACHE`` names another folder). A folder appears under its name only when it is complete."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.services.kafka_jars import JarsUnavailable, kafka_class_path

DRIVERS: Final = Path(__file__).parent / "drivers"
BUILD_TIMEOUT_S: Final = 230.0
"""Go compiles three clients from nothing in half a minute of two cores."""


class Unavailable(Exception):
    """What is missing on this machine, and where it comes from."""


@cache
def go_clients() -> Path:
    """The program of all Go drivers."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (DRIVERS / "go" / "go.mod").read_text(), re.MULTILINE)
    assert wanted is not None
    needed = f"Go {wanted[1]}.{wanted[2]} or newer (the package golang of a current Debian)"
    _needs("go", needed)
    found = re.search(r"go(\d+)\.(\d+)", _run(["go", "env", "GOVERSION"], DRIVERS / "go"))
    if found is None or tuple(map(int, found.groups())) < tuple(map(int, wanted.groups())):
        raise Unavailable(f"needs {needed}, here is {found[0] if found else 'none'}")

    def build(directory: Path) -> None:
        _fetch(["go", "mod", "download"], directory)
        _run(["go", "build", "-mod=readonly", "-trimpath", "-o", "clients", "."], directory)

    return _built("go", build) / "clients"


@cache
def node_clients() -> Path:
    """The folder of the Node drivers, with what they import."""
    _needs("npm", "Node.js 20 or newer with npm (the packages nodejs and npm of a current Debian)")
    return _built("node", lambda directory: _fetch(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], directory))


@cache
def java_class_path() -> str:
    """Of the Java driver, and of Kafka's clients and tools."""
    jars = kafka_jars()
    _needs("javac", "a Java compiler (the package default-jdk-headless of Debian)")

    def build(directory: Path) -> None:
        _run(["javac", "-cp", jars, "JavaClient.java"], directory)

    return f"{_built('java', build)}:{jars}"


@cache
def kafka_jars() -> str:
    """The class path of Kafka's clients and tools."""
    try:
        return kafka_class_path()
    except JarsUnavailable as reason:
        raise Unavailable(str(reason)) from reason


def kcat() -> str:
    _needs("kcat", "kcat (`make services` installs it on Debian)")
    return "kcat"


def _needs(program: str, what: str) -> None:
    if shutil.which(program) is None:
        raise Unavailable(f"needs {what}")


def _built(language: str, build: Callable[[Path], None]) -> Path:
    sources = sorted(each for each in (DRIVERS / language).iterdir() if each.is_file())
    digest = sha256(b"\0".join(part for each in sources for part in (each.name.encode(), each.read_bytes()))).hexdigest()[:16]
    root = Path(os.environ.get("CELLFEED_CACHE") or Path.home() / ".cache" / "cellfeed") / "client-grid"
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"{language}-{digest}"
    # Test processes that run side by side build it once.
    with (root / f"{language}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=root) as temporary:
                directory = Path(temporary) / language
                directory.mkdir()
                for each in sources:
                    shutil.copy(each, directory)
                build(directory)
                directory.rename(target)
    return target


def _fetch(command: Sequence[str], directory: Path) -> None:
    """What comes from a registry: without one there is no driver; a lock file that does not fit is an error of ours."""
    try:
        _run(command, directory)
    except AssertionError as error:
        if "EUSAGE" in str(error) or "go mod tidy" in str(error) or "checksum mismatch" in str(error):
            raise
        raise Unavailable(f"needs the packages of its lock file, which cannot be fetched: {str(error)[-300:]}") from error


def _run(command: Sequence[str], directory: Path) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    return done.stdout
