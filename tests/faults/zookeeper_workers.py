"""Trigger workers as processes, and the calls that they made, for the tests of coordination in a
real ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID, uuid5

from kazoo.client import KazooClient

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.zookeeper.paths import version_of
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from tests.faults.invariants import check_run_or_parked

ROOT: Final = Path(__file__).parents[2]
NAMESPACE: Final = UUID("6d4f7f0a-6a3c-5a8e-9a52-0d9f5a9b1c77")
SHARDS: Final = 4
GROUP: Final = "recorder"
LEASE_S: Final = 1.0


class Workers:
    """Processes that run the recording program."""

    def __init__(
        self,
        tmp_path: Path,
        store: Datastore,
        url: str,
        *,
        chroot: str = "here",
        lease_s: float = LEASE_S,
    ) -> None:
        self.tmp_path, self.store, self.url, self.chroot, self.lease_s = (
            tmp_path,
            store,
            url,
            chroot,
            lease_s,
        )
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(
        self, name: str, *, failpoints: str = "", **settings: object
    ) -> subprocess.Popen[str]:
        settings = {
            "path": str(self.tmp_path / "runs"),
            "coordination": f"{self.url}/{self.chroot}?timeout_s=1",
            **settings,
        }
        with (self.tmp_path / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.trigger_process",
                    str(self.tmp_path / "store"),
                    name,
                    str(self.lease_s),
                    "tests.support.trigger_programs:recording",
                    json.dumps(settings),
                ],
                cwd=ROOT,
                env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.processes[name] = process
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def end(self) -> None:
        """Those of them that are left."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate(timeout=10)

    def stays(self, url: str) -> dict[str, int]:
        """The znode of each session, and the number of the ZooKeeper session that it hangs on:
        others when a member has joined again."""
        with _by_hand(url) as client:
            births = client.get_children(f"/{self.chroot}/cellfeed/groups/{GROUP}")
            folders = [
                f"/{self.chroot}/cellfeed/groups/{GROUP}/{birth}/members" for birth in births
            ]
            members = [
                f"{folder}/{name}" for folder in folders for name in client.get_children(folder)
            ]
            return {member: client.exists(member).ephemeralOwner for member in members}

    def settled(self, url: str, members: int) -> bool:
        """Whether so many members are alive and all shards are theirs, by claims of their present
        sessions."""
        alive = {
            (name.rpartition("@")[0], int(name.rpartition("@")[2]))
            for name in (path.rpartition("/")[2] for path in self.stays(url))
        }
        holders = self._holders(url)
        return len(alive) == members and len(holders) == SHARDS and set(holders) == alive

    def _holders(self, url: str) -> list[tuple[str, int]]:
        """Whose each claim is: the member, and its epoch below the group's birth."""
        with _by_hand(url) as client:
            found = []
            for birth in client.get_children(f"/{self.chroot}/cellfeed/groups/{GROUP}"):
                folder = f"/{self.chroot}/cellfeed/groups/{GROUP}/{birth}/claims/trips"
                values = (
                    [client.get(f"{folder}/{shard}")[0] for shard in client.get_children(folder)]
                    if client.exists(folder)
                    else []
                )
                found += [
                    (holder["member"], version_of(holder["epoch"]))
                    for holder in map(json.loads, filter(None, values))
                ]
            return found

    def log(self, name: str) -> str:
        return (self.tmp_path / f"{name}.log").read_text()

    def runs(self) -> list[tuple[int, int, int]]:
        path = self.tmp_path / "runs"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(a), int(b), int(c)) for a, b, c in map(str.split, lines)]

    def cells_run(self) -> Counter[tuple[int, int]]:
        return Counter((shard, added_id) for shard, added_id, _ in self.runs())

    def assert_run_or_parked(self) -> None:
        names = [f"{shard}/{added_id}" for shard, added_id in base_cells(self.store)]
        done = [f"{shard}/{added_id}" for shard, added_id in self.cells_run()]
        parked = [cell.cell_id for cell in ParkedCells(self.store.state).all()]
        assert check_run_or_parked(names, done, parked) == {"I14": []}

    def assert_in_order(self) -> None:
        """Each process alone ran each shard's cells in the order of the log."""
        for shard in range(SHARDS):
            for pid in {pid for _, _, pid in self.runs()}:
                order = [added_id for s, added_id, p in self.runs() if (s, p) == (shard, pid)]
                assert order == sorted(order)


@contextmanager
def _by_hand(url: str) -> Iterator[KazooClient]:
    client = KazooClient(url.removeprefix("zookeeper://"))
    client.start(20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def put(store: Datastore, numbers: range, **extra: object) -> None:
    store.put_cells([(uuid5(NAMESPACE, str(n)), "BASE", 1, {"n": n, **extra}) for n in numbers])


def base_cells(store: Datastore) -> list[tuple[int, int]]:
    return [
        (cell.shard, cell.added_id)
        for shard in range(SHARDS)
        for cell in store.get_cells_for_shard(shard, 0, 10_000).cells
    ]


def saved(coordinator: Coordinator) -> dict[int, int]:
    return {shard: offset.offset for (_, shard), offset in coordinator.fetch_offsets(GROUP).items()}


def caught_up(store: Datastore, coordinator: Coordinator) -> bool:
    try:
        return saved(coordinator) == {
            shard: head.watermark for shard, head in store.heads().items() if head.watermark
        }
    except Unavailable:
        return False


def all_owned(coordinator: Coordinator, members: int = 1) -> bool:
    try:
        owners = coordinator.owners(GROUP, "trips")
    except Unavailable:
        return False
    return len(owners) == SHARDS and len(set(owners.values())) == members


def is_back(coordinator: Coordinator) -> bool:
    try:
        coordinator.groups()
    except Unavailable:
        return False
    return True


def all_begun(store: Datastore) -> bool:
    """Whether all shards are being worked on: the worker has said so in the store."""
    return len(KeptOffsets(store.state, GROUP, "trips").kept()) == SHARDS
