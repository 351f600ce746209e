"""One HTTP request to a worker, as a program without our client sends it."""

from __future__ import annotations

import http.client


def call(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named.setdefault("content-type", "application/json")
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()
    finally:
        connection.close()
