"""Requests as real clients sent them, kept in ``captured_frames.txt``: a frame a line, behind the
name of its client.

``python -m tests.fuzz capture`` records them again: a forwarder stands between the clients and a
gateway that advertises the forwarder's address. Of requests of one client, API, version and length
one is kept.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.drivers import DRIVERS, Driver
from tests.support.free_ports import free_port
from tests.support.kafka_jars import JarsUnavailable, kafka_class_path
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, fill

FILE: Final = Path(__file__).parent / "captured_frames.txt"
_RECORDS: Final = 200
_TOPIC: Final = "trips"
_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "consumer.ConsoleConsumer": (
        "--topic",
        _TOPIC,
        "--from-beginning",
        "--max-messages",
        str(_RECORDS),
        "--group",
        "captured-java",
    ),
    "consumer.group.ConsumerGroupCommand": ("--describe", "--all-groups"),
    "TopicCommand": ("--describe", "--topic", _TOPIC),
    "GetOffsetShell": ("--topic", _TOPIC),
}
_TOOL_TIMEOUT_S: Final = 90.0


class Captured(NamedTuple):
    """A frame without its length, and the client that sent it."""

    client: str
    frame: bytes


@cache
def captured_frames() -> list[Captured]:
    """The contents of the file."""
    lines = [line.split("\t") for line in FILE.read_text().splitlines() if not line.startswith("#")]
    return [Captured(client, bytes.fromhex(frame)) for client, frame in lines]


class Forwarder:
    """Passes connections on to a gateway and keeps the clients' bytes. Use in a ``with``."""

    def __init__(self, port: int) -> None:
        self.target_port = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self._sent: list[bytearray] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def taken(self) -> list[bytes]:
        """The frames since the last call; an incomplete frame is left out."""
        sent, self._sent = self._sent, []
        return [frame for data in sent for frame in _frames(bytes(data))]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target_port))
                self._open += (near, far)
                data = bytearray()
                self._sent.append(data)
                threading.Thread(
                    target=_pass_on, args=(near, far, data.extend), daemon=True
                ).start()
                threading.Thread(
                    target=_pass_on, args=(far, near, lambda _: None), daemon=True
                ).start()


def capture() -> int:
    """Lets every client that is installed work through a forwarder and writes the file. How many
    frames it has."""
    found: dict[tuple[str, bytes, int], Captured] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fill(directory / "store")
        forwarder = stack.enter_context(Forwarder(port := free_port()))
        gateway = stack.enter_context(
            GatewayProcess(
                directory / "store",
                directory / "log",
                advertised_host="127.0.0.1",
                advertised_port=port,
            )
        )
        forwarder.target_port = gateway.port
        for client, use in _clients(f"127.0.0.1:{port}").items():
            use()
            for frame in forwarder.taken():
                found.setdefault((client, frame[:4], len(frame)), Captured(client, frame))
    lines = [f"{each.client}\t{each.frame.hex()}" for each in sorted(found.values())]
    FILE.write_text(
        "# Requests of real clients: `python -m tests.fuzz capture` records them again.\n"
        + "\n".join(lines)
        + "\n"
    )
    return len(lines)


def _clients(bootstrap: str) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {
        name: partial(_drive, bootstrap, name, driver) for name, driver in DRIVERS.items()
    }
    if shutil.which("kcat"):
        found["kcat"] = lambda: _run(
            "kcat", "-b", bootstrap, "-C", "-t", _TOPIC, "-o", "beginning", "-e", "-q"
        )
    with suppress(JarsUnavailable):
        class_path = kafka_class_path()
        found["java"] = partial(_run_tools, class_path, bootstrap)
    return found


def _run_tools(class_path: str, bootstrap: str) -> None:
    java = ("java", "-Xmx128m", "-cp", class_path)
    for tool, arguments in _TOOLS.items():
        name = f"org.apache.kafka.tools.{tool}"
        _run(*java, name, "--bootstrap-server", bootstrap, *arguments)


def _drive(bootstrap: str, name: str, driver: Driver) -> None:
    driver.read(bootstrap, _TOPIC, dict.fromkeys(range(SHARDS), 0), _RECORDS)
    driver.read_in_group(bootstrap, _TOPIC, f"captured-{name}", _RECORDS)
    driver.offsets_at(bootstrap, _TOPIC, 1, SHARDS)
    driver.produce(bootstrap, _TOPIC)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TOOL_TIMEOUT_S)


def _pass_on(source: socket.socket, target: socket.socket, keep: Callable[[bytes], object]) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            keep(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _frames(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 4 <= len(data) and at + 4 + (size := struct.unpack_from(">i", data, at)[0]) <= len(
        data
    ):
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found
