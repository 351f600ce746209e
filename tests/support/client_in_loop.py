"""An AsyncClient with the face of a Client, so that one suite runs over both: each call runs in an
event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any, Self

from cellfeed.store import forks
from cellfeed.store.followed import FollowedCell
from cellfeed.store.http.async_client import AsyncClient
from cellfeed.store.http.calls.asynchronous_follower import AsyncFollower

_PROPERTIES = ("history", "shards")


class FollowerInLoop:
    """An AsyncFollower with the face of a Follower."""

    def __init__(self, follower: AsyncFollower, await_: Callable[[Any], Any]) -> None:
        self._follower = follower
        self._await = await_
        await_(follower.__aenter__())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._follower, name)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FollowedCell:
        try:
            found: FollowedCell = self._await(anext(self._follower))
        except StopAsyncIteration:
            raise StopIteration from None
        return found

    def close(self) -> None:
        self._await(self._follower.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class ClientInLoop:
    """Arguments as those of :class:`cellfeed.store.http.async_client.AsyncClient`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = AsyncClient(*arguments, **options)
        self._start_loop()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not inspect.iscoroutinefunction(found):
            return found
        if name in _PROPERTIES:
            return self._await(found())
        return lambda *arguments, **options: self._await(found(*arguments, **options))

    def follow(self, **options: Any) -> FollowerInLoop:
        """A follower that has begun."""
        return FollowerInLoop(self._client.follow(**options), self._await)

    def close(self) -> None:
        """Closes the client; its loop still runs, as that of a service would."""
        self._await(self._client.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start_loop(self) -> None:
        self._generation = forks.generation
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _await(self, call: Any) -> Any:
        if self._generation != forks.generation:
            self._start_loop()  # the parent's thread did not come with the fork
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
