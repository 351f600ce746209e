"""Iceberg's own REST catalog, from Maven Central, and a proxy that answers commits wrongly."""

from __future__ import annotations

import http.client
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from cellfeed.servers.kafka_jars import class_path_of
from cellfeed.store.server_end import end_serving
from tests.support.free_ports import free_port
from tests.support.waiting import wait_until

ICEBERG_VERSION: Final = "1.9.1"
_JARS: Final = (
    f"org.apache.iceberg:iceberg-open-api:{ICEBERG_VERSION}:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}:tests",
    "org.eclipse.jetty:jetty-server:11.0.25",
    "org.eclipse.jetty:jetty-servlet:11.0.25",
    "org.xerial:sqlite-jdbc:3.49.1.0",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "org.slf4j:slf4j-simple:2.0.17",
)
_START_S: Final = 60.0


@contextmanager
def rest_catalog(folder: Path) -> Iterator[int]:
    """The port of a catalog server with its files in ``folder``. Raises JarsUnavailable."""
    class_path, port = class_path_of(f"iceberg-rest-{ICEBERG_VERSION}", _JARS), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            ["java", "-Xmx512m", "-cp", class_path, "org.apache.iceberg.rest.RESTCatalogServer"],
            env={
                **os.environ,
                "CATALOG_REST_PORT": str(port),
                "CATALOG_WAREHOUSE": folder.as_uri(),
                "CATALOG_URI": f"jdbc:sqlite:{folder}/rest.sqlite",
            },
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: _answers(port), "the REST catalog answers", _START_S)
        yield port
    finally:
        server.terminate()
        server.wait(30)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v1/config")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class LyingProxy:
    """Passes requests on. ``answers``: of the commits in turn, an HTTP status that the client gets
    after the commit happened, 0 for a lost connection, 200 for the truth; the truth follows."""

    def __init__(self, port: int, answers: list[int]) -> None:
        self.lies: list[int] = []
        self._answers = list(answers)
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                left_out = ("host", "accept-encoding")
                headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
                server.request(self.command, self.path, body, headers)
                answer = server.getresponse()
                content, status = answer.read(), answer.status
                server.close()
                is_commit = self.command == "POST" and "/tables/" in self.path and status == 200
                lie = proxy._next() if is_commit else 200
                if lie == 0:
                    self.close_connection = True
                    self.connection.close()
                    return
                if lie != 200:
                    error = b'{"error":{"message":"gateway","type":"Gateway","code":%d}}' % lie
                    status, content = lie, error
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.uri = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        end_serving(self._server)
        self._thread.join()

    def _next(self) -> int:
        with self._lock:
            lie = self._answers.pop(0) if self._answers else 200
            if lie != 200:
                self.lies.append(lie)
            return lie
