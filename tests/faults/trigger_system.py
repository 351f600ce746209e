"""A trigger group under test, from outside: three ``cellfeed triggers run`` of one worker each, as
on three hosts, and a real ZooKeeper behind a proxy each.

The store is embedded, so it is up whenever a process is: these runs look at the group and its
coordination.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psutil
import yaml

from cellfeed.bridge.coordination.open import IN_STORE, open_coordinator
from cellfeed.consumers.billing.charge_keys import GROUP
from cellfeed.run_dir import RunDir
from cellfeed.store.datastore import Datastore
from tests.support.fake_clock import FakeClock
from tests.support.local_zookeeper import ZooKeeper
from tests.support.tcp_proxy import TcpProxy

ROOT: Final = Path(__file__).parents[2]
SHARDS: Final = 8
HOSTS: Final = 3
PROGRAM: Final = "tests.faults.billing_program:billing"
START_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.05
"""Seldom enough that the looks take no time from the processes that are looked at."""

_CELLFEED: Final = (sys.executable, "-m", "cellfeed.cli.main")


class FaultDidNotHappen(RuntimeError):
    """The event that a run was to show has not come about: it has shown nothing."""


def until(done: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    """Raises FaultDidNotHappen when ``done()`` is not true within ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline_s:
            raise FaultDidNotHappen(f"not within {timeout_s:g} s: {what}")
        time.sleep(_LOOK_EVERY_S)


class Host:
    """One ``triggers run`` and its worker. ``proxy``: before its ZooKeeper, where there is one;
    ``clock``: its own, where it may be wrong."""

    def __init__(self, system: TriggerSystem, number: int, proxy: TcpProxy | None) -> None:
        self.number = number
        self._proxy = proxy
        self._clock = (
            FakeClock(system.directory / f"host-{number}.clock") if proxy is None else None
        )
        self.run: subprocess.Popen[bytes] | None = None
        self.log = system.directory / f"host-{number}.log"
        self._system = system
        self._config = system.directory / f"host-{number}.yaml"
        url = (
            f"zookeeper://127.0.0.1:{proxy.port}/{system.chroot}?timeout_s=1"
            if proxy is not None
            else IN_STORE
        )
        self._config.write_text(yaml.safe_dump({**system.config, "coordination": url}))

    @property
    def proxy(self) -> TcpProxy:
        assert self._proxy is not None
        return self._proxy

    @property
    def clock(self) -> FakeClock:
        assert self._clock is not None
        return self._clock

    @property
    def prefix(self) -> str:
        return f"host{self.number}"

    @property
    def is_up(self) -> bool:
        return self.run is not None and self.run.poll() is None

    def start(self) -> None:
        """Starts its run, and does not wait. An earlier one must have ended."""
        if self.run is not None:
            self.run.wait(START_S)
        sets = [
            word
            for name, value in self._system.settings.items()
            for word in ("--set", f"{name}={value}")
        ]
        options = [
            "--config",
            str(self._config),
            "--run-dir",
            str(self._system.run_dir.path),
            "--name-prefix",
            self.prefix,
        ]
        with self.log.open("ab") as log:
            self.run = subprocess.Popen(
                [
                    *_CELLFEED,
                    "triggers",
                    "run",
                    PROGRAM,
                    *options,
                    "--lease-s",
                    str(self._system.lease_s),
                    *sets,
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    **(self._clock.environment() if self._clock is not None else {}),
                },
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def worker(self) -> psutil.Process | None:
        """The worker process, when there is one."""
        if not self.is_up:
            return None
        assert self.run is not None
        with suppress(psutil.NoSuchProcess):
            return next(
                (
                    each
                    for each in psutil.Process(self.run.pid).children()
                    if each.status() != psutil.STATUS_ZOMBIE
                ),
                None,
            )
        return None

    def worker_pids(self) -> list[int]:
        worker = self.worker()
        return [worker.pid] if worker is not None else []

    def member(self) -> str | None:
        """The worker's name in the group, when it is there now."""
        assert self.run is not None
        return next(
            (
                name
                for name in self._system.members()
                if name.startswith(f"{self.prefix}-") and name.endswith(f"-{self.run.pid}-1")
            ),
            None,
        )

    def kill(self) -> list[int]:
        """kill -9 of the run and its worker, as when a host goes down: neither sees the other end.
        The pids that are gone."""
        assert self.run is not None
        self.run.send_signal(signal.SIGSTOP)
        worker = self.worker()
        killed = kill_pids([worker]) if worker is not None else []
        self.run.kill()
        self.run.wait(10)
        return [self.run.pid, *killed]

    def end(self) -> int:
        """SIGTERM, and its exit code."""
        assert self.run is not None
        self.run.terminate()
        return self.run.wait(START_S)

    def end_by_force(self) -> None:
        if self.run is None:
            return
        if self.is_up:
            self.kill()


class TriggerSystem:
    """Use in a ``with``. ``lease_s`` and ``settings`` are the workers'. ``zookeeper``: one that
    runs, and stays; one of its own without. ``in_store``: there is none, and every host has a clock
    of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        lease_s: float,
        settings: dict[str, object],
        zookeeper: ZooKeeper | None = None,
        in_store: bool = False,
    ) -> None:
        self.directory = directory
        self.chroot = f"faults-{uuid4()}"
        self.lease_s = lease_s
        self.billing = directory / "billing"
        self.settings = {"billing_dir": str(self.billing), **settings}
        self.config: dict[str, object] = {"datastore": {"shards": SHARDS}}
        self.run_dir = RunDir(directory / "run")
        for folder in (self.run_dir.path, self.billing):
            folder.mkdir(parents=True)
        self.zookeeper = zookeeper or ZooKeeper(directory / "zookeeper")
        self._in_store = in_store
        self._owns_zookeeper = zookeeper is None and not in_store
        self.hosts: list[Host] = []
        self._proxies: list[TcpProxy] = []

    def __enter__(self) -> TriggerSystem:
        try:
            if self._owns_zookeeper:
                self.zookeeper.start()
            self.run_dir.config.write_text(
                yaml.safe_dump({**self.config, "coordination": self.coordination})
            )
            self.datastore = Datastore.open_embedded(self.run_dir.inside("store"), shards=SHARDS)
            self.coordinator = open_coordinator(self.coordination, self.datastore.state)
            for _ in range(HOSTS):
                self.add_host()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def coordination(self) -> str:
        return IN_STORE if self._in_store else f"{self.zookeeper.url}/{self.chroot}?timeout_s=1"

    @property
    def session_s(self) -> float:
        """The length of a member's session without a sign of life, see
        ``bridge/coordination/zookeeper/sessions.py``."""
        return 1.5 * self.lease_s

    def add_host(self) -> Host:
        """Another host; not started."""
        proxy = None if self._in_store else TcpProxy(self.zookeeper.port)
        if proxy is not None:
            self._proxies.append(proxy)
        self.hosts.append(host := Host(self, len(self.hosts) + 1, proxy))
        return host

    def up(self) -> None:
        """Starts the hosts and waits until each has its share."""
        for host in self.hosts:
            host.start()
        until(lambda: self.is_settled(len(self.hosts)), "each host has its share")

    def members(self) -> list[str]:
        return self.coordinator.members(GROUP)

    def is_settled(self, members: int) -> bool:
        """Whether so many workers are there, and every shard belongs to one of them, as evenly as
        can be."""
        try:
            present, owners = self.members(), self.coordinator.owners(GROUP, "trips")
        except Exception:  # ZooKeeper is away
            return False
        shares = [list(owners.values()).count(member) for member in present]
        return (
            len(present) == members
            and sum(shares) == SHARDS == len(owners)
            and max(shares) - min(shares) <= 1
        )

    def caught_up(self) -> bool:
        """Whether every offset is at its shard's end."""
        try:
            offsets = self.coordinator.fetch_offsets(GROUP)
        except Exception:  # ZooKeeper is away
            return False
        ends = {
            ("trips", shard): head.watermark
            for shard, head in self.datastore.heads().items()
            if head.watermark
        }
        return all(place in offsets and offsets[place].offset >= end for place, end in ends.items())

    def ask(self, *words: str) -> Any:
        """Runs ``cellfeed … --json`` to its end; the last line that it says."""
        arguments = [*_CELLFEED, *words, "--run-dir", str(self.run_dir.path), "--json"]
        ended = subprocess.run(
            arguments, cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=False
        )
        if ended.returncode:
            raise RuntimeError(f"cellfeed {' '.join(words)}: {ended.stderr}")
        lines = ended.stdout.splitlines()
        return json.loads(lines[-1]) if lines else None

    def close(self) -> None:
        """Ends everything, also processes that do not want to end."""
        for host in self.hosts:
            host.end_by_force()
        for proxy in self._proxies:
            proxy.close()
        for each in ("coordinator", "datastore"):
            if hasattr(self, each):
                getattr(self, each).close()
        if self._owns_zookeeper:
            self.zookeeper.kill()


def kill_pids(processes: Sequence[psutil.Process]) -> list[int]:
    """kill -9 of all at once; the pids; none of them runs when this returns."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    until(lambda: not any(map(runs, processes)), "processes end after kill -9")
    return [process.pid for process in processes]


def runs(process: psutil.Process) -> bool:
    """Whether a process runs, or is stopped; one that only waits for its parent to look does
    not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
