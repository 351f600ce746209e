"""The health of one process, for probes and for the service manager.

``/livez``: 200 unless only a restart helps. It depends on no other process. ``/readyz``: 200 while
the process serves and each of its parts advances; else 503 with the reasons. Both have an HTTP
listener of their own, on threads: it answers also while the event loop of the process stands.

Anybody may ask a listener beyond loopback, as kubelets do. So a peer of another host gets the
verdict alone; the reasons are for this host, and in the log when the verdict changes.

Under systemd the process reports that it is ready and that it stops. While it is alive it calls the
watchdog twice in each period.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from cellfeed.processes.sd_notify import notify, status_line, watchdog_s
from cellfeed.store.background import SupervisedThread
from cellfeed.store.progress import Reason, unalive, unready

_log: Final = logging.getLogger("cellfeed.health")

LOOK_EVERY_S: Final = 5.0
"""How often the verdict is looked at for the log and for systemd, in seconds, where no watchdog
asks for more."""


class HealthReport(msgspec.Struct, frozen=True):
    """The answer of ``/livez`` and ``/readyz``. ``is_ok``: the verdict of the route."""

    name: str
    is_ok: bool = msgspec.field(name="ok")
    reasons: list[Reason] = []


class ProcessHealth:
    """See the module. ``close`` ends its thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._phase = "starting"
        self._stopped: Sequence[str] = ()
        self._reported = ""
        self._watchdog_s = watchdog_s()
        self._closing = threading.Event()
        self._thread = SupervisedThread("health", self._look)

    def start(self) -> None:
        """Begins to call the watchdog and to log changes of the verdict."""
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def serves(self) -> None:
        """The process serves from now on."""
        self._phase = ""
        notify("READY=1", status_line("serves"))

    def stops(self) -> None:
        """The process drains and ends. Safe in a signal handler."""
        self._phase = "stopping"
        notify("STOPPING=1", status_line("drains"))

    def stopped_work(self, reasons: Sequence[str]) -> None:
        """Work that the process has stopped, in words; none: all of it runs."""
        self._stopped = tuple(reasons)

    def live(self) -> HealthReport:
        """The report of ``/livez``."""
        return self._report(unalive())

    def ready(self) -> HealthReport:
        """The report of ``/readyz``."""
        found = unready()
        if self._phase:
            found.insert(0, Reason(self._phase, self.name, f"{self.name} is {self._phase}"))
        found += [Reason("work-stopped", self.name, each) for each in self._stopped]
        return self._report(found)

    def _report(self, reasons: list[Reason]) -> HealthReport:
        return HealthReport(self.name, not reasons, reasons)

    def _look(self) -> None:
        every_s = min(LOOK_EVERY_S, (self._watchdog_s or LOOK_EVERY_S * 2) / 2)
        while not self._closing.wait(every_s):
            self.look()

    def look(self) -> None:
        """Calls the watchdog of a process that is alive, and logs a changed verdict."""
        if self._watchdog_s is not None and self.live().is_ok:
            notify("WATCHDOG=1")
        if self._phase:
            return
        reasons = self.ready().reasons
        # Without the seconds, which change at each look.
        known = ", ".join(f"{each.code} {each.part}" for each in reasons)
        if known == self._reported:
            return
        self._reported = known
        if reasons:
            _log.warning("not ready: %s", "; ".join(map(str, reasons)))
        else:
            _log.info("ready again")
        notify(status_line(f"not ready: {'; '.join(map(str, reasons))}" if reasons else "serves"))
