"""A follower over HTTP for the thread that iterates it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Self

from cellfeed.store import forks
from cellfeed.store.errors import Unavailable
from cellfeed.store.followed import SILENT_S, FollowedCell
from cellfeed.store.http.calls.blocking import Blocking
from cellfeed.store.http.calls.blocking_stream import BlockingStream
from cellfeed.store.http.calls.follower_parts import FollowerParts
from cellfeed.store.http.calls.follows import FollowCall
from cellfeed.store.http.calls.wire import AttemptFailed


class BlockingFollower(FollowerParts):
    """As :class:`cellfeed.store.followed.Follower`; made once a worker has said where it begins.
    ``on_bookmark`` is called in the iterating thread with the token, some seconds after places were
    passed without a cell to give. In a child of a ``fork()`` it continues by itself, from the same
    place."""

    def __init__(
        self,
        call: FollowCall,
        blocking: Blocking,
        on_bookmark: Callable[[str], object] | None,
        on_wait: Callable[[str], object] | None,
    ) -> None:
        super().__init__(call, on_bookmark, on_wait)
        self._blocking = blocking
        self._stream: BlockingStream | None = None
        self._generation = forks.generation
        while not call.has_begun:
            self._receive()
            self._call_back()

    @property
    def token(self) -> str:
        return str(self._call.token)

    def __iter__(self) -> Iterator[FollowedCell]:
        return self

    def __next__(self) -> FollowedCell:
        while not self._closed:
            if (cell := self._take()) is not None:
                return cell
            self._call_back()
            self._receive()
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_stream", None) is not None:
            self.close()

    def _receive(self) -> None:
        """Reads lines, of a new stream where there is none."""
        if self._generation != forks.generation:
            self._generation = forks.generation
            self._drop(is_parents=True)
        if self._stream is None:
            self._stream = self._blocking.run(self._call.open())
        stream = self._stream
        try:
            if self._closed or stream is None:
                self._drop()
                return
            self._call.feed(stream.receive(time.monotonic() + SILENT_S))
            if not self._call.has_begun:
                self._call.take_start()
        except (AttemptFailed, Unavailable) as failed:
            self._failed(failed)
        except BaseException:
            self._drop()
            raise

    def _drop(self, *, is_parents: bool = False) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            if is_parents:
                stream.leave()
            else:
                stream.close()
