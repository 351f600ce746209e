"""The lines that all drivers write, and how drivers end: ``../README.md``."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_MS = 1_000
LAST_COMMITS_S = 60.0
PAUSE_S = 0.2


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=event != "record")


def tell_record(partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
    tell(
        "record",
        partition=partition,
        offset=offset,
        key=None if key is None else key.decode(),
        value=None if value is None else value.decode(),
    )


def complain(what: str, error: BaseException | object) -> None:
    print(f"{what}: {error!r}", file=sys.stderr, flush=True)


def stdin_ends() -> threading.Event:
    """Set when standard input ends."""
    ended = threading.Event()

    def wait() -> None:
        while os.read(
            0, 1024
        ):  # not through the buffered file, which may not be waited for when Python ends
            pass
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def tell_write(write: Callable[[], object], refusals: type[Exception]) -> None:
    """The client's report of a write."""
    try:
        write()
    except refusals as error:
        tell("refused", error=f"{type(error).__name__} {error}")
    else:
        tell("written")


def run(modes: Mapping[str, Callable[..., None]]) -> None:
    """Calls the mode that the command line names, with its other words."""
    if len(sys.argv) < 4 or sys.argv[1] not in modes:
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(modes)} BOOTSTRAP TOPIC …")
    modes[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
