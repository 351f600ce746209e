"""The health check of the image: ``python -m cellfeed.processes.probe [/readyz | /livez]`` asks the
process of its container, prints the answer, and exits with 1 where that is not 200.

It imports the standard library alone, because an engine starts it every few seconds.
``CELLFEED_HEALTH`` has the address, as ``cellfeed run --health`` takes it.
"""

from __future__ import annotations

import http.client
import os
import sys
from typing import Final

TIMEOUT_S: Final = 5.0
"""Longest wait for the answer, in seconds: the listener asks nobody else."""

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104 (asked, not bound)


def main(arguments: list[str]) -> int:
    """The exit code. ``arguments``: the route, ``/readyz`` by default."""
    route = arguments[0] if arguments else "/readyz"
    host, _, port = os.environ.get("CELLFEED_HEALTH", "127.0.0.1:8090").rpartition(":")
    host = _EVERYWHERE.get(host, host.removeprefix("[").removesuffix("]"))
    try:
        connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
        connection.request("GET", route)
        answer = connection.getresponse()
        sys.stdout.write(answer.read().decode(errors="replace") + "\n")
        return 0 if answer.status == 200 else 1
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stdout.write(f"no answer from {host}:{port}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
