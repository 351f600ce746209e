"""A TCP proxy in a thread that can cut connections at a chosen moment, and counts the cuts."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator


class CuttingProxy:
    """Forwards to ``port``. With ``cut_answers`` set, requests go through and connections are
    closed instead of the answer being passed on."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut_answers = threading.Event()
        self.answers_cut = 0
        self.request_bytes = 0
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    def _accept(self) -> None:
        self._listener.settimeout(0.05)
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=self._forward, args=(near,), name="proxied")
            self._threads.append(thread)
            thread.start()

    def _forward(self, near: socket.socket) -> None:
        with (
            near,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._target)) as far,
        ):
            while not self._closed.is_set():
                for ready in select.select([near, far], [], [], 0.05)[0]:
                    piece = ready.recv(1 << 16)
                    if not piece:
                        return
                    if ready is near:
                        self.request_bytes += len(piece)
                        far.sendall(piece)
                    elif self.cut_answers.is_set():
                        self.answers_cut += 1
                        return
                    else:
                        near.sendall(piece)

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()


@contextlib.contextmanager
def cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    """A proxy that is closed when the block is left."""
    proxy = CuttingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
