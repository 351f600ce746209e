"""Hosts for tests: network namespaces with addresses of their own, on one bridge.

A thread inside :meth:`Host.entered` is on that host: so are its sockets, the threads that it
starts, and the processes. A cut takes the host's cable out (``ip link set down``): packets are lost
in silence, and nothing is reset. Files, clocks and processors are shared by all hosts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

_CLONE_NEWNET: Final = 0x40000000
_libc: Final = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """Why there can be no hosts here; None when there can."""
    name = f"cf-{uuid4().hex[:6]}-try"
    try:
        _ip("netns", "add", name)
        try:
            _ip("-n", name, "link", "add", "br0", "type", "bridge")
        finally:
            _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        return f"no network namespaces: {said.strip()}"
    return None


class Host:
    """One host. ``address``: where the others reach it."""

    def __init__(self, name: str, address: str, namespace: str, hub: str) -> None:
        self.name, self.address, self.namespace = name, address, namespace
        self._hub, self._cable = hub, f"to-{name}"
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        peer = ("peer", "name", "eth0", "netns", namespace)
        _ip("-n", hub, "link", "add", self._cable, "type", "veth", *peer)
        _ip("-n", hub, "link", "set", self._cable, "master", "br0")
        _ip("-n", hub, "link", "set", self._cable, "up")
        _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is on this host inside."""
        before = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
        here = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        try:
            _enter(here)
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(here)
            os.close(before)

    def cut(self) -> None:
        """Takes the cable out."""
        _ip("-n", self._hub, "link", "set", self._cable, "down")

    def heal(self) -> None:
        """Puts the cable in."""
        _ip("-n", self._hub, "link", "set", self._cable, "up")

    def pids(self) -> list[int]:
        """Its processes, but for the tests' own one, whose threads may be there."""
        mine = Path(f"/run/netns/{self.namespace}").stat().st_ino
        found = []
        for path in Path("/proc").glob("[0-9]*/ns/net"):
            with suppress(OSError):  # it has ended, or is a zombie
                if path.stat().st_ino == mine and int(path.parts[2]) != os.getpid():
                    found.append(int(path.parts[2]))
        return found

    def lose_power(self) -> list[int]:
        """Every process is killed at once, and the cable is dead; the pids. The files are as the
        processes left them: no write that a process did is lost, as it may be with real power."""
        self.cut()
        killed: list[int] = []
        deadline_s = time.monotonic() + 20
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.name} still has {pids}")
            time.sleep(0.05)
        return sorted(set(killed))


class Hosts:
    """Named hosts, in the order of their addresses: 10.77.0.1 and so on. Use in a ``with``; at its
    end every process on them is killed, but for those on ``own``, where the test's threads are."""

    def __init__(self, names: Sequence[str], own: str) -> None:
        self._names, self._own = names, own
        self._prefix = f"cf-{uuid4().hex[:6]}"
        self._by_name: dict[str, Host] = {}

    def __enter__(self) -> Self:
        hub = f"{self._prefix}-hub"
        try:
            _ip("netns", "add", hub)
            _ip("-n", hub, "link", "add", "br0", "type", "bridge")
            _ip("-n", hub, "link", "set", "br0", "up")
            for number, name in enumerate(self._names, 1):
                address, namespace = f"10.77.0.{number}", f"{self._prefix}-{name}"
                self._by_name[name] = Host(name, address, namespace, hub)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self:
            if host.name != self._own:
                host.lose_power()
        for path in Path("/run/netns").glob(f"{self._prefix}-*"):
            _ip("netns", "del", path.name)

    def __getitem__(self, name: str) -> Host:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._by_name.values())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout
