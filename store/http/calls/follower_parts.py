"""The part of a follower over HTTP that waits for nothing: the same for threads and event loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from cellfeed.store.errors import Unavailable
from cellfeed.store.followed import FollowedCell
from cellfeed.store.http.calls.follows import FollowCall


class FollowerParts(ABC):
    """Takes cells from a :class:`FollowCall`, and reports bookmarks and waits."""

    def __init__(
        self,
        call: FollowCall,
        on_bookmark: Callable[[str], object] | None,
        on_wait: Callable[[str], object] | None,
    ) -> None:
        self._call = call
        self._on_bookmark = on_bookmark
        self._on_wait = on_wait
        self._said = ""
        self._closed = False

    @abstractmethod
    def _drop(self) -> None:
        """Ends the stream, if there is one."""

    def _take(self) -> FollowedCell | None:
        try:
            return self._call.take()
        except Unavailable as failed:
            self._failed(failed)
            return None
        except BaseException:
            self._drop()
            raise

    def _failed(self, failed: Exception) -> None:
        self._drop()
        self._call.failed(failed)

    def _call_back(self) -> None:
        if self._call.because != self._said:
            self._said = self._call.because
            if self._said and self._on_wait is not None:
                self._on_wait(self._said)
        if self._call.bookmarked:
            self._call.bookmarked = False
            if self._on_bookmark is not None and self._call.has_begun:
                self._on_bookmark(str(self._call.token))
