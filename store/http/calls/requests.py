"""Requests about one datastore, until the client is closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec

from cellfeed.store.errors import (
    StorageUnavailable,
    WrongAnswer,
)
from cellfeed.store.http.calls.attempts import Attempts
from cellfeed.store.http.calls.fields import decoded
from cellfeed.store.http.messages import (
    JSON,
)

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
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._name = datastore
        self._base = f"/v1/{quote(datastore)}"
        self._attempts = Attempts(urls, timeout_s, history=history, on_wait=on_wait)
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._attempts.close()

    @property
    def history(self) -> str | None:
        """As :attr:`cellfeed.store.http.calls.attempts.Attempts.history`."""
        return self._attempts.history

    def deadline(self) -> float:
        """Of a call that begins now."""
        return self._attempts.deadline()

    def pause(self, round_no: int, deadline: float) -> bool:
        """As :meth:`cellfeed.store.http.calls.attempts.Attempts.pause`."""
        return self._attempts.pause(round_no, deadline)

    def call(
        self,
        method: str,
        route: str,
        content: bytes,
        deadline: float,
        *,
        writes: bool,
        opened: list[Exception] | None = None,
    ) -> bytes:
        """As :meth:`cellfeed.store.http.calls.attempts.Attempts.call`."""
        if self._closed:
            raise StorageUnavailable(f"the client of datastore {self._name} is closed")
        return self._attempts.call(
            method,
            self._base + route,
            content,
            JSON,
            deadline=deadline,
            writes=writes,
            opened=opened,
        )

    def get(self, route: str, kind: type[T], answer: Callable[[T], R]) -> R:
        return self._answered(
            decoded(self.call("GET", route, b"", self._attempts.deadline(), writes=False), kind),
            answer,
        )

    def post(self, route: str, message: object, kind: type[T], answer: Callable[[T], R]) -> R:
        return self._answered(
            decoded(
                self.call(
                    "POST",
                    route,
                    msgspec.json.encode(message),
                    self._attempts.deadline(),
                    writes=False,
                ),
                kind,
            ),
            answer,
        )

    def _answered(self, message: T, answer: Callable[[T], R]) -> R:
        try:
            return answer(message)
        except WrongAnswer:
            self._attempts.close()  # one of the connections kept is not in step with its worker
            raise
