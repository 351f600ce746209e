"""The follower's end of wake-ups across machines: a connection to each worker elsewhere.

The workers' addresses come from the state table. The peer must show a worker's certificate, serve
this store's history, and have the identity that its address names. Its lines are hints even so: a
line makes this process look at the store, at most.

A connection that ends, or is silent for ``SILENT_S``, is made again after a random pause that
doubles up to ``PAUSE_MAX_S``. Without any the followers poll.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from typing import Final, Self
from urllib.parse import quote

import msgspec

from cellfeed.store.background import SupervisedThread
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import CellfeedError, InvalidRequest, OtherHistory, WrongAnswer
from cellfeed.store.http.calls.access import Access
from cellfeed.store.http.calls.attempts import error_of
from cellfeed.store.http.calls.blocking_stream import BlockingStream, stream_answer
from cellfeed.store.http.calls.steps import Send
from cellfeed.store.http.calls.wire import AttemptFailed, Request
from cellfeed.store.http.calls.workers import Worker
from cellfeed.store.http.messages import JSON
from cellfeed.store.http.received_wakeups import RECEIVED
from cellfeed.store.http.wakeup_messages import WakeupLine, WakeupsMessage
from cellfeed.store.repeated_warnings import RepeatedWarning
from cellfeed.store.security.loopback import is_loopback
from cellfeed.store.wakeups.addresses import WorkerAddress, worker_addresses
from cellfeed.store.wakeups.datagrams import hand_over

CONNECT_S: Final = 5.0
SILENT_S: Final = 6.0
"""Three heartbeats of a worker, in seconds: the peer of a connection that is cut is gone."""

PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 15.0

LOOK_S: Final = 2.0
"""How often the workers' addresses are read, in seconds: a new worker's followers poll as long."""

WORKERS_MAX: Final = 64
"""Connections of one process, a thread each; the commits of further workers are found by
polling."""

LINE_BYTES_MAX: Final = 64 << 10

_decode_line: Final = msgspec.json.Decoder(WakeupLine).decode
_log: Final = logging.getLogger("cellfeed.wakeups")


class WakeupLinks:
    """Wakes the listeners of this process that follow ``state``'s store, ``history``, until it is
    closed. Raises InvalidRequest for files of ``access`` that cannot be used."""

    def __init__(self, state: StateTable, datastore: str, history: str, access: Access) -> None:
        access.context()
        self._state, self._datastore = state, datastore
        self._history, self._access = history, access
        self._links: dict[str, _Link] = {}
        self._closing = threading.Event()
        self._warning = RepeatedWarning(_log)
        self._thread = SupervisedThread("wakeup-links", self._run)
        self._thread.start()

    def close(self) -> None:
        """Ends every connection."""
        self._closing.set()
        self._thread.join()
        for link in self._links.values():
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._look()
            except CellfeedError as error:  # those known before stay
                self._warning.warn("the workers' addresses cannot be read just now: %s", error)
            self._closing.wait(LOOK_S * random.uniform(0.75, 1.25))

    def _look(self) -> None:
        found = {each.worker: each for each in worker_addresses(self._state)}
        for worker in self._links.keys() - found.keys():
            self._links.pop(worker).close()
        for worker in sorted(found.keys() - self._links.keys()):
            if len(self._links) < WORKERS_MAX:
                self._links[worker] = self._link(found[worker])

    def _link(self, address: WorkerAddress) -> _Link:
        request = _request(self._datastore, self._history, address.worker)
        return _Link(address, request, self._access, self._state)


def try_worker(datastore: str, history: str, address: WorkerAddress, access: Access) -> None:
    """Connects to a worker, and leaves it. Raises AttemptFailed, CellfeedError."""
    _opened(address, _request(datastore, history, address.worker), access).close()


def _request(datastore: str, history: str, worker: str) -> Request:
    asked = msgspec.json.encode(WakeupsMessage(worker=worker))
    return Request("POST", f"/v1/{quote(datastore)}/wakeups", asked, JSON, history or None)


def _opened(address: WorkerAddress, request: Request, access: Access) -> BlockingStream:
    """The stream of a worker that serves the history of the request."""
    worker = Worker(address.url, access)
    if not worker.has_tls and not is_loopback(worker.host):
        raise InvalidRequest("wake-ups come from other hosts over https only")
    answer = stream_answer(Send(worker, request, time.monotonic() + CONNECT_S, "", streams=True))
    if answer.stream is None:
        raise error_of(answer, worker.name)
    stream: BlockingStream = answer.stream
    if request.history not in (None, answer.history):
        stream.close()
        raise OtherHistory(f"{worker.name} serves another store")
    return stream


class _Link:
    """The connection to one worker."""

    def __init__(
        self, address: WorkerAddress, request: Request, access: Access, state: StateTable
    ) -> None:
        self._address, self._request = address, request
        self._access, self._state = access, state
        self._warning = RepeatedWarning(_log)
        self._closing = threading.Event()
        self._stream: BlockingStream | None = None
        self._pause_s = PAUSE_FIRST_S
        self._thread = SupervisedThread(f"wakeups of {address.url}", self._run)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        stream = self._stream
        if stream is not None:
            stream.close()
        self._thread.join(CONNECT_S)

    def _run(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            while not self._closing.is_set():
                try:
                    self._follow(sock)
                except (AttemptFailed, CellfeedError, OSError) as error:
                    if self._closing.is_set():
                        return
                    RECEIVED.failed()
                    self._warning.warn(
                        "not woken by the worker at %s just now, and polling: %s",
                        self._address.url,
                        error,
                    )
                self._closing.wait(random.uniform(0, self._pause_s))
                self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def _follow(self, sock: socket.socket) -> None:
        stream = self._stream = _opened(self._address, self._request, self._access)
        RECEIVED.connected(1)
        try:
            self._read(stream, sock)
        finally:
            self._stream = None
            RECEIVED.connected(-1)
            stream.close()

    def _read(self, stream: BlockingStream, sock: socket.socket) -> None:
        """Until the worker ends the answer."""
        rest, is_first = b"", True
        while piece := stream.receive(time.monotonic() + SILENT_S):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise WrongAnswer(f"a line has more than {LINE_BYTES_MAX} bytes")
            for content in lines:
                line = _line(content)
                if is_first and line.worker != self._address.worker:
                    raise WrongAnswer("another worker answers at this address")
                is_first, self._pause_s = False, PAUSE_FIRST_S
                self._take(line, sock)

    def _take(self, line: WakeupLine, sock: socket.socket) -> None:
        try:
            hint = line.hint()
        except ValueError:
            raise WrongAnswer("a subject is not hexadecimal") from None
        if hint:
            RECEIVED.hint(is_new=hand_over(self._state, sock, hint))


def _line(content: bytes) -> WakeupLine:
    try:
        return _decode_line(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WrongAnswer(f"a line is not as the API says: {error}") from None
