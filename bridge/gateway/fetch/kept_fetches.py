"""The fetches that a gateway keeps of its connections: for each a fetch session (KIP-227) or one
repeated full fetch; the partitions of all are limited.

A session belongs to its connection: another one that names it, or the same client after it came
again, is answered that there is none, and sends a full fetch. So nobody reads, ends or disturbs the
session of another one, and nothing of a connection outlives it.

Room is made as at a broker (Kafka's ``FetchSession.scala``): a fetch that was not used for a while
goes first. Otherwise a larger one takes the place of a smaller one that has been there for a while.
A connection that gets no room is answered in full each time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.fetch.partitions import Partitions
from cellfeed.bridge.gateway.fetch.repeated import RepeatedFetch
from cellfeed.bridge.gateway.limits import (
    FETCH_KEPT_S,
    FETCH_PARTITIONS_KEPT_MAX,
    FETCH_SESSION_PARTITIONS_MAX,
)
from cellfeed.bridge.gateway.wire.fetch_request import (
    FIRST_WITH_TOPIC_IDS,
    FetchRequest,
    row_format,
)
from cellfeed.store.following.heads import LogHeads

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
"""Of a request that names all partitions and asks for a session."""
NO_SESSION_EPOCH: Final = -1
"""Of a request that names all partitions and wants no session."""
_NUMBER_MAX: Final = (1 << 31) - 1


class FetchSession(Partitions):
    """Partitions and their positions; a client's request changes those that it names. ``epoch``: of
    the next request."""

    def __init__(self, heads: LogHeads, begun_s: float, session_id: int, *, by_id: bool) -> None:
        super().__init__(heads, begun_s)
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = 1

    def apply(self, request: FetchRequest) -> None:
        """Asks for the partitions that the request names, and no longer for those that it
        forgets."""
        rows = row_format(request.version)
        for topic, region in request.topics:
            for row in rows.rows(region):
                self.ask(topic, rows.read(row))
        for topic, partitions in request.forgotten:
            for partition in partitions:
                self.forget(topic, partition)

    def answered(self) -> None:
        """The next request is of the next epoch."""
        self.epoch = self.epoch + 1 if self.epoch < _NUMBER_MAX else 1


class KeptFetches:
    """By connection. Used on the event loop."""

    def __init__(
        self,
        heads: LogHeads,
        partitions_max: int = FETCH_PARTITIONS_KEPT_MAX,
        session_partitions_max: int = FETCH_SESSION_PARTITIONS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heads = heads
        self._partitions_max = partitions_max
        self._session_partitions_max = session_partitions_max
        self._clock = clock
        self._kept: dict[int, Partitions] = {}
        self._ids = itertools.cycle(range(1, _NUMBER_MAX))
        self.partitions = 0
        """That are kept."""
        self.evicted = 0

    @property
    def sessions(self) -> int:
        return sum(isinstance(each, FetchSession) for each in self._kept.values())

    def repeated(self, connection: int) -> RepeatedFetch:
        """For a full fetch without a session; ends the session of the connection."""
        kept = self._kept.get(connection)
        if isinstance(kept, RepeatedFetch):
            return kept
        self.left(connection)
        made = self._kept[connection] = RepeatedFetch(self._heads, self._clock())
        return made

    def open(self, connection: int, request: FetchRequest) -> FetchSession:
        """A session with the partitions of a full fetch, in the place of an earlier one; it is
        kept if there is room (:meth:`keep`)."""
        self.left(connection)
        made = FetchSession(
            self._heads,
            self._clock(),
            next(self._ids),
            by_id=request.version >= FIRST_WITH_TOPIC_IDS,
        )
        made.apply(request)
        self._kept[connection] = made
        return made

    def continued(self, connection: int, request: FetchRequest) -> FetchSession | ErrorCode:
        """The session that the request names and continues, or why it does not."""
        kept = self._kept.get(connection)
        if not isinstance(kept, FetchSession) or kept.session_id != request.session_id:
            return ErrorCode.fetch_session_id_not_found
        if kept.epoch != request.session_epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if kept.by_id != (request.version >= FIRST_WITH_TOPIC_IDS):
            return ErrorCode.fetch_session_topic_id_error
        kept.apply(request)
        if not self.keep(connection):
            kept.close()
            return ErrorCode.fetch_session_id_not_found
        kept.answered()
        return kept

    def keep(self, connection: int) -> bool:
        """Counts the partitions that the connection has asked for. False if there is no room: then
        nothing is kept of it."""
        kept = self._kept[connection]
        kept.used_s = self._clock()
        self.partitions += len(kept) - kept.counted
        kept.counted = len(kept)
        fits = not isinstance(kept, FetchSession) or len(kept) <= self._session_partitions_max
        while fits and self.partitions > self._partitions_max:
            other = self._to_evict(connection)
            fits = other is not None
            if other is not None:
                self.left(other)
                self.evicted += 1
        if not fits:
            self._forget(connection)
        return fits

    def left(self, connection: int) -> None:
        """Nothing is kept of the connection any more; its request that waits is answered."""
        kept = self._forget(connection)
        if kept is not None:
            kept.close()

    def wake(self) -> None:
        """Has all requests that wait look again: rights have changed."""
        for kept in self._kept.values():
            kept.wake()

    def _forget(self, connection: int) -> Partitions | None:
        kept = self._kept.pop(connection, None)
        if kept is not None:
            self.partitions -= kept.counted
        return kept

    def _to_evict(self, connection: int) -> int | None:
        """A connection whose partitions make room for those of ``connection``."""
        before_s = self._clock() - FETCH_KEPT_S
        others = [(number, each) for number, each in self._kept.items() if number != connection]
        if not others:
            return None
        number, oldest = min(others, key=lambda other: other[1].used_s)
        if oldest.used_s < before_s:
            return number
        settled = [other for other in others if other[1].begun_s < before_s]
        if not settled:
            return None
        number, smallest = min(settled, key=lambda other: len(other[1]))
        return number if len(smallest) < len(self._kept[connection]) else None
