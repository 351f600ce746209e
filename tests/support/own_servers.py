"""Servers that an instance makes and starts itself: configurations, and the processes."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
import yaml

from cellfeed.servers.zookeeper import JARS
from tests.support import local_mariadb
from tests.support.cli_instance import ROOT, cellfeed

SETTINGS = ROOT / "cellfeed" / "data"


NAMESPACE = UUID("0b7b7f46-9d0f-4a55-8a5c-63e5a8e9b001")


def servers_in(directory: Path) -> list[psutil.Process]:
    """The live servers whose files lie in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.name() in ("mariadbd", "java")
                and any(f"{directory}/" in word for word in process.cmdline())
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def kill_started_here(pid: int) -> None:
    """``kill -9`` of a server that is a child of this process, which has to take its exit
    status."""
    process = psutil.Process(pid)
    process.kill()
    process.wait(10)


def needs_mariadb() -> None:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)


def needs_zookeeper() -> None:
    if shutil.which("java") is None or not all(jar.exists() for jar in JARS):
        pytest.skip("no ZooKeeper on this machine: `make services` installs it on Debian")


def one_node(port: int, password: str = "it's a secret") -> dict[str, Any]:
    return {
        "datastore": {
            "shards": 2,
            "clusters": [
                {
                    "name": "c1",
                    "nodes": [
                        {
                            "name": "c1-a",
                            "url": (
                                f"mysql://cellfeed:{password.replace(' ', '%20')}@127.0.0.1:{port}"
                            ),
                        }
                    ],
                }
            ],
        },
        "servers": [{"kind": "mariadb", "name": "c1-a", "port": port, "server_id": 1}],
        "workers": [{"port": 0}],
        "gateways": [],
    }


def written(directory: Path, config: dict[str, Any]) -> Path:
    path = directory / "cellfeed.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def up(place: Path, config: dict[str, Any], timeout_s: float = 100) -> Path:
    run_dir = place / "run"
    done = cellfeed(
        "up",
        "--detach",
        "--config",
        str(written(place, config)),
        "--run-dir",
        str(run_dir),
        timeout_s=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    return run_dir


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Somebody else listens on the port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        yield
