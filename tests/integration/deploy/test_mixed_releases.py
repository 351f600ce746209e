"""A fleet of this release and an earlier one over the same storage: puts, triggers, and a group of
consumers at gateways of both, while processes change their release one by one."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Final
from uuid import UUID

import confluent_kafka
import pytest

from cellfeed.store.http.client import Client
from tests.support.free_ports import free_port
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT: Final = Path(__file__).parents[3]
EARLIER_BY: Final = 60
"""So many changes of the main line lie between the two releases: some days."""

CONFIG: Final = """
datastore: {{shards: 4}}
workers: [{{name: worker-1, port: {0}}}, {{name: worker-2, port: {1}}}]
gateways:
  - {{name: gateway-1, port: {2}, registry_port: 0, group_initial_delay_s: 0.5}}
  - {{name: gateway-2, port: {3}, registry_port: 0, group_initial_delay_s: 0.5}}
triggers: [{{name: noted, app: "{4}:program", processes: 2, lease_s: 2}}]
"""
PROGRAM: Final = """
import os
from cellfeed.bridge.triggers.program import trigger

@trigger(column="BASE", group="noted")
def note(row_key):
    with open({place!r}, "a") as file:
        file.write(f"{{row_key}} {{os.getpid()}}\\n")

program = [note]
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of an earlier release. Skips, with the reason, where git does not have it."""
    words = ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run(
            [*words, "rev-list", "--first-parent", f"--skip={EARLIER_BY}", "-n1", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no earlier release: {error}")
    if not found:
        pytest.skip(f"no earlier release: the history has fewer than {EARLIER_BY} changes")
    packed = subprocess.run(
        [*words, "archive", found, "cellfeed", "store", "bridge", "consumers", "schemas"],
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    place = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(place, filter="tar")
    return place


class Fleet:
    """Processes of one run directory, each of the tree that it was started from."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, tree: Path) -> None:
        (self.run_dir / "ready" / f"{name}.json").unlink(missing_ok=True)
        with (self.run_dir / f"{name}.log").open("ab") as log:
            process = self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "cellfeed.cli.main", "run", name, "--run-dir", self.run_dir],
                cwd=tree,
                stdout=log,
                stderr=log,
            )

        def is_ready() -> bool:
            log = (self.run_dir / f"{name}.log").read_text()
            assert process.poll() is None, log[-2000:]
            return (self.run_dir / "ready" / f"{name}.json").exists()

        wait_until(is_ready, f"{name} serves")
        imported = Path(f"/proc/{process.pid}/cwd").readlink()
        assert imported == tree, "the process runs the code of its own tree"

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.terminate()
        assert process.wait(60) == 0

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait(60)

    def end(self) -> None:
        for name in list(self.running):
            self.kill(name)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path / "run")
    (fleet.run_dir / "ready").mkdir(parents=True)
    yield fleet
    fleet.end()


def test_a_fleet_that_changes_its_release_process_by_process_loses_and_doubles_nothing(
    fleet: Fleet, earlier: Path, tmp_path: Path
) -> None:
    ports = [free_port() for _ in range(4)]
    noted = tmp_path / "noted"
    (tmp_path / "program.py").write_text(PROGRAM.format(place=str(noted)))
    (fleet.run_dir / "config.yaml").write_text(CONFIG.format(*ports, tmp_path / "program.py"))
    # The earlier release makes the store; of each pair one process is new.
    for name in ("worker-1", "gateway-1", "noted-1"):
        fleet.start(name, earlier)
    for name in ("worker-2", "gateway-2", "noted-2"):
        fleet.start(name, ROOT)
    put: set[str] = set()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(f"http://127.0.0.1:{port}", "trips")) for port in ports[:2]
        ]
        consumers = [stack.enter_context(_member(ports[2 + number])) for number in range(2)]
        read: dict[tuple[int, int], str] = {}

        def put_and_follow(first: int) -> None:
            for number, client in enumerate(clients):
                cells = rides(first + 100 * number, 100)
                client.put_cells(cells)
                put.update(str(UUID(bytes=cell.row_key)) for cell in cells)
            # The same again, at the other release: found, and not written again.
            clients[1].put_cells(rides(first, 100))
            wait_until(lambda: set(_noted(noted)) == put, "every cell has run", 120)

            def all_read() -> bool:
                for consumer in consumers:
                    for record in consumer.consume(500, 0.2):
                        assert record.error() is None, record.error()
                        place = (record.partition() or 0, record.offset() or 0)
                        value = (record.key() or b"").decode()
                        assert read.setdefault(place, value) == value
                return set(read.values()) == put

            wait_until(all_read, "the group has read every cell", 120)
            assert len(read) == len(put), "each cell has one place"

        put_and_follow(0)
        assert len(set(_noted(noted).values())) == 2, "triggers of both releases ran"
        fleet.kill("noted-1")
        fleet.start("noted-1", ROOT)
        fleet.stop("gateway-1")
        fleet.start("gateway-1", ROOT)
        put_and_follow(1_000)
        fleet.stop("worker-1")
        fleet.start("worker-1", ROOT)
        # And back: the storage is as the earlier release left it.
        fleet.stop("worker-2")
        fleet.start("worker-2", earlier)
        put_and_follow(2_000)
    assert len(put) == 600
    for name in list(fleet.running):
        fleet.stop(name)


def _noted(path: Path) -> dict[str, str]:
    with suppress(FileNotFoundError):
        return dict(line.split() for line in path.read_text().splitlines() if line.count(" ") == 1)
    return {}


@contextmanager
def _member(port: int) -> Iterator[confluent_kafka.Consumer]:
    """A consumer of the group, which enters at that gateway."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "mixed",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["trips"])
    yield consumer
    consumer.close()
