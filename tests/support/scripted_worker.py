"""A worker that answers puts as a test says, in as many connections as come."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Cells = list[dict[str, Any]]
Results = tuple[int, list[dict[str, Any]] | dict[str, Any]]
"""A status, and a result for each cell, or one error for all of them."""


def stored(cells: Cells) -> Results:
    """Every cell is stored, with its ref key as its added_id."""
    return 200, [
        {"outcome": "stored", "shard": 0, "added_id": cell["ref_key"], "error": None}
        for cell in cells
    ]


class ScriptedWorker:
    """``answer`` is called with the cells of each put, in the thread of its connection."""

    def __init__(self, answer: Callable[[Cells], Results]) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self.puts: list[Cells] = []
        """The cells of each request, in the order of arrival."""

    def answer(self, cells: Cells) -> Results:
        with self._lock:
            self.puts.append(cells)
        return self._answer(cells)


@contextlib.contextmanager
def scripted_worker(answer: Callable[[Cells], Results] = stored) -> Iterator[tuple[str, Any]]:
    """Its address, and the worker."""
    worker = ScriptedWorker(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, results = worker.answer(asked.get("cells", [asked]))
            if not isinstance(results, list):
                self._say(status, results)
            elif "cells" in asked:
                self._say(status, {"results": results})
            elif error := results[0]["error"]:
                self._say(503 if error["retriable"] else 400, error)
            else:
                self._say(status, results[0])

        def _say(self, status: int, message: dict[str, Any]) -> None:
            content = json.dumps(message).encode()
            head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n\r\n"
            with contextlib.suppress(ConnectionError):  # the client has given up
                self.wfile.write(head.encode() + content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", worker
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
