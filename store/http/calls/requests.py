"""Requests about one datastore, until the client is closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.http.calls.access import Access
from cellfeed.store.http.calls.attempts import Attempts
from cellfeed.store.http.calls.fields import decoded
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.messages import JSON

T = TypeVar("T")
R = TypeVar("R")


class Requests:
    """``urls``: workers of the datastore; ``timeout_s``: the deadline of each call, retries
    included."""

    def __init__(
        self,
        urls: Sequence[str],
        datastore: str,
        timeout_s: float,
        history: str | None = None,
        access: Access | None = None,
    ) -> None:
        self._name = datastore
        self._base = f"/v1/{quote(datastore)}"
        self._attempts = Attempts(urls, timeout_s, history, access)
        self.timeout_s = timeout_s
        self._is_closed = False

    def close(self) -> None:
        """Later calls raise StorageUnavailable."""
        self._is_closed = True

    @property
    def history(self) -> str | None:
        """As :attr:`cellfeed.store.http.calls.attempts.Attempts.history`."""
        return self._attempts.history

    def deadline(self) -> float:
        """Of a call that begins now (monotonic)."""
        return self._attempts.deadline()

    def call(
        self,
        method: str,
        route: str,
        content: bytes,
        deadline: float,
        *,
        writes: bool,
        opened: list[Exception] | None = None,
    ) -> Steps[bytes]:
        """As :meth:`cellfeed.store.http.calls.attempts.Attempts.call`."""
        self._refuse_closed()
        return (
            yield from self._attempts.call(
                method,
                self._base + route,
                content,
                JSON,
                deadline=deadline,
                writes=writes,
                opened=opened,
            )
        )

    def stream(self, route: str, content: bytes, deadline: float, attempt_s: float) -> Steps[Any]:
        """The stream of an answer; the caller closes it. ``attempt_s``: for how long each worker is
        waited for, in seconds."""
        self._refuse_closed()
        answer = yield from self._attempts.answer(
            "POST",
            self._base + route,
            content,
            JSON,
            deadline=deadline,
            writes=False,
            streams=True,
            attempt_s=attempt_s,
        )
        return answer.stream

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise StorageUnavailable(f"the client of datastore {self._name} is closed")

    def get(self, route: str, kind: type[T], answer: Callable[[T], R]) -> Steps[R]:
        """Reads ``route``; ``answer`` compares the answer with the question."""
        content = yield from self.call("GET", route, b"", self.deadline(), writes=False)
        return answer(decoded(content, kind))

    def post(
        self, route: str, message: object, kind: type[T], answer: Callable[[T], R]
    ) -> Steps[R]:
        """As :meth:`get`, with a message that has the question."""
        asked = msgspec.json.encode(message)
        content = yield from self.call("POST", route, asked, self.deadline(), writes=False)
        return answer(decoded(content, kind))
