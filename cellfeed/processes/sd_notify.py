"""The notification protocol of systemd (``sd_notify(3)``): one datagram to a Unix socket.

Each function does nothing where ``NOTIFY_SOCKET`` is not set, and no error of it ends the process:
systemd then acts by its own time-outs.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

_log: Final = logging.getLogger("cellfeed.systemd")

STATUS_CHARACTERS_MAX: Final = 400
"""Of a status line: `systemctl status` shows one line of a terminal."""


def notify(*lines: str) -> bool:
    """Sends ``KEY=value`` lines to the service manager. Returns whether they were sent."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return False
    if address.startswith("@"):  # Linux's abstract names begin with a zero byte
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        _log.warning("the service manager at %s could not be notified: %s", address, error)
        return False
    return True


def status_line(text: str) -> str:
    """A ``STATUS=`` line, on one line and of a bounded length."""
    return "STATUS=" + " ".join(text.split())[:STATUS_CHARACTERS_MAX]


def watchdog_s() -> float | None:
    """How often the service manager wants to hear of this process, in seconds; None where it does
    not watch it."""
    value, pid = os.environ.get("WATCHDOG_USEC"), os.environ.get("WATCHDOG_PID")
    if value is None or not value.isdecimal() or pid not in (None, str(os.getpid())):
        return None
    return int(value) / 1e6 or None
