"""Builds the drivers of other languages, once for each state of their sources, outside of the tree:
``~/.cache/cellfeed/client-grid/<name>-<digest>`` (``CELLFEED_CACHE`` names another folder). A
folder appears under its name only when it is complete."""

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

from tests.support.kafka_jars import JarsUnavailable, kafka_class_path

DRIVERS: Final = Path(__file__).parent / "drivers"
BUILD_TIMEOUT_S: Final = 230.0
"""Go compiles three clients from nothing in half a minute of two cores."""


class Unavailable(Exception):
    """The parts that this machine lacks, and where they come from."""


@cache
def go_clients() -> Path:
    """The program of all Go drivers."""
    needs_go(DRIVERS / "go")

    def build(directory: Path) -> None:
        fetch(["go", "mod", "download"], directory)
        run(["go", "build", "-mod=readonly", "-trimpath", "-o", "clients", "."], directory)

    return built("go", DRIVERS / "go", build) / "clients"


def needs_go(module: Path) -> None:
    """Raises Unavailable without a Go as new as the module says."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (module / "go.mod").read_text(), re.MULTILINE)
    assert wanted is not None
    needed = f"Go {wanted[1]}.{wanted[2]} or newer (the package golang of a current Debian)"
    needs("go", needed)
    found = re.search(r"go(\d+)\.(\d+)", run(["go", "env", "GOVERSION"], module))
    if found is None or tuple(map(int, found.groups())) < tuple(map(int, wanted.groups())):
        raise Unavailable(f"needs {needed}, here is {found[0] if found else 'none'}")


@cache
def node_clients() -> Path:
    """The folder of the Node drivers, with the packages that they import."""
    needs("npm", "Node.js 20 or newer with npm (the packages nodejs and npm of a current Debian)")
    return built("node", DRIVERS / "node", npm_ci)


@cache
def java_class_path() -> str:
    """Of the Java driver, and of Kafka's clients and tools."""
    jars = kafka_jars()
    needs("javac", "a Java compiler (the package default-jdk-headless of Debian)")

    def build(directory: Path) -> None:
        run(["javac", "-cp", jars, "JavaClient.java"], directory)

    return f"{built('java', DRIVERS / 'java', build)}:{jars}"


@cache
def kafka_jars() -> str:
    """The class path of Kafka's clients and tools."""
    try:
        return kafka_class_path()
    except JarsUnavailable as reason:
        raise Unavailable(str(reason)) from reason


def npm_ci(directory: Path) -> None:
    """The packages that the lock file there names."""
    fetch(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], directory)


def kcat() -> str:
    needs("kcat", "kcat (`make services` installs it on Debian)")
    return "kcat"


def needs(program: str, what: str) -> None:
    if shutil.which(program) is None:
        raise Unavailable(f"needs {what}")


def built(name: str, folder: Path, build: Callable[[Path], None]) -> Path:
    """The result of ``build`` in a copy of a folder's files; made once for each state of
    them."""
    sources = sorted(each for each in folder.iterdir() if each.is_file())
    digest = sha256(
        b"\0".join(part for each in sources for part in (each.name.encode(), each.read_bytes()))
    ).hexdigest()[:16]
    root = (
        Path(os.environ.get("CELLFEED_CACHE") or Path.home() / ".cache" / "cellfeed")
        / "client-grid"
    )
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"{name}-{digest}"
    # Test processes that run side by side build it once.
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=root) as temporary:
                directory = Path(temporary) / name
                directory.mkdir()
                for each in sources:
                    shutil.copy(each, directory)
                build(directory)
                directory.rename(target)
    return target


def fetch(command: Sequence[str], directory: Path, timeout_s: float = BUILD_TIMEOUT_S) -> None:
    """Packages of a registry: without one there is no driver; a lock file that does not fit is an
    error of ours."""
    try:
        run(command, directory, timeout_s)
    except AssertionError as error:
        if any(
            sign in str(error)
            for sign in ("EUSAGE", "go mod tidy", "checksum mismatch", "DO NOT MATCH THE HASHES")
        ):
            raise
        raise Unavailable(
            f"needs the packages of its lock file, which cannot be fetched: {str(error)[-300:]}"
        ) from error


def run(command: Sequence[str], directory: Path, timeout_s: float = BUILD_TIMEOUT_S) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, (
        f"{' '.join(command)}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    )
    return done.stdout
