"""The arguments of a client: one list of them for threads and for event loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Unpack

from cellfeed.store.http.calls.access import Access, AccessOptions
from cellfeed.store.http.calls.datastore import CALL_TIMEOUT_S, DatastoreCalls


class ClientParts(ABC):
    """The base of :class:`cellfeed.store.http.client.Client` and
    :class:`cellfeed.store.http.async_client.AsyncClient`, which describe the
    arguments."""

    def __init__(
        self,
        urls: Sequence[str] | str,
        datastore: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        history: str | None = None,
        share_requests: bool = True,
        on_wait: Callable[[str], None] | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._calls = DatastoreCalls(urls, datastore, timeout_s, history, Access(access))
        self._make_runner(on_wait, share_requests)

    @abstractmethod
    def _make_runner(self, on_wait: Callable[[str], None] | None, share_requests: bool) -> None:
        """Makes the part that waits for answers."""

    @property
    def name(self) -> str:
        return self._calls.name
