"""The put routes, as bare ASGI: a single put costs a third of a put through the framework's
routing, and most requests are puts.

A put waits for the group commit of its datastore without a thread of its own. The possible failures
on the way:

- The caller goes away: the cells are still written; asking again says ``exists``.
- The worker dies before the commit: nothing was written. After it, before the answer: written. The
  caller cannot know which, and puts again.
- No commit within ``PUT_TIMEOUT_S``: a put still in the queue is taken back
  (``storage_unavailable``, definite), one under way is ``outcome_unknown``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from typing import Final

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.commit.put_answers import PutAnswer
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, Overloaded
from cellfeed.store.http.messages import JSON, MSGPACK, NDJSON
from cellfeed.store.http.server.asgi import Receive, Scope, Send
from cellfeed.store.http.server.audited import CELLS
from cellfeed.store.http.server.bodies import read_body
from cellfeed.store.http.server.callers import Callers, caller_of
from cellfeed.store.http.server.commits import LoopCommits
from cellfeed.store.http.server.direct import Respond
from cellfeed.store.http.server.metrics import WorkerMetrics
from cellfeed.store.http.server.put_rights import allowed, columns_of
from cellfeed.store.http.server.put_stream import PutStream, Results
from cellfeed.store.http.server.requests import PutItem, put_from, puts_from
from cellfeed.store.http.server.responses import (
    as_put_error,
    encoded,
    media_type_of,
    send_message,
)
from cellfeed.store.limits import HTTP_BODY_BYTES_MAX, PUT_TIMEOUT_S
from cellfeed.store.security.callers import Caller

_QUEUE_FULL_PAUSE_S: Final = 0.02
"""Between two tries of a stream to get a chunk into a full queue: about one commit."""

_log: Final = logging.getLogger("cellfeed.worker")


class PutRoutes:
    """Handlers of ``POST /v1/{datastore}/cell`` and ``POST /v1/{datastore}/cells``."""

    def __init__(
        self,
        datastore: Datastore,
        metrics: WorkerMetrics,
        closing: asyncio.Event,
        callers: Callers,
    ) -> None:
        self._callers = callers
        self._datastore = datastore
        self._metrics = metrics
        self._closing = closing
        self._commits: LoopCommits | None = None

    async def put_one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One cell. 200 with its result when acknowledged, else the error's own status."""
        started = time.perf_counter()
        media_type = media_type_of(scope)
        cell = put_from(await read_body(scope, receive, HTTP_BODY_BYTES_MAX), media_type)
        caller_of(scope).check_columns("put", (cell.column_name,))
        scope[CELLS] = 1
        [result] = await self._written([cell])
        self._metrics.put((result,), time.perf_counter() - started)
        await send_message(send, scope, result.or_raise())

    def put_directly(self, content: bytes, respond: Respond, caller: Caller) -> bool:
        """As :meth:`put_one`, of JSON. Does not take a cell that is refused, or cannot be
        queued."""
        started = time.perf_counter()

        def committed(answer: PutAnswer | CellfeedError) -> None:
            try:
                if isinstance(answer, CellfeedError):
                    raise answer
                [result] = answer.result(0)
                self._metrics.put((result,), time.perf_counter() - started)
                answered: bytes | CellfeedError = encoded(result.or_raise(), msgpack=False)
            except Exception as problem:
                if not isinstance(problem, CellfeedError):
                    _log.exception("a put_one request failed")
                answered = as_put_error(problem)
            respond(answered)

        try:
            cell = put_from(content, JSON)
            caller.check_columns("put", (cell.column_name,))
            self.commits().put_then([cell], committed)
        except Exception:
            return False  # the other way meets the same, and says it
        return True

    async def put_many(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A batch, or a stream when the request is NDJSON. 200 with a result per cell once the call
        was carried out."""
        media_type = media_type_of(scope, (JSON, MSGPACK, NDJSON))
        if media_type == NDJSON:
            return await self._put_stream(caller_of(scope), receive, send)
        started = time.perf_counter()
        content = await read_body(scope, receive, HTTP_BODY_BYTES_MAX)
        items = puts_from(content, media_type, self._datastore.shards)
        del content  # the bodies stay; the text they came in need not
        caller_of(scope).check_columns("put", columns_of(items))
        scope[CELLS] = len(items)
        written = iter(await self._written([item for item in items if isinstance(item, NewCell)]))
        results = [next(written) if isinstance(item, NewCell) else item for item in items]
        self._metrics.put(results, time.perf_counter() - started)
        await send_message(send, scope, {"results": results})
        return None

    async def _put_stream(self, caller: Caller, receive: Receive, send: Send) -> None:
        """Ends when the worker does, or the caller's credentials."""
        with self._callers.watched(caller, lambda _: None) as watched:

            def submit(items: Sequence[PutItem]) -> Awaitable[Results]:
                return self._submit_chunk(items, watched.caller)

            stream = PutStream(self._datastore.shards, submit, self._closing, watched)
            await stream.answer(receive, send)

    async def _submit_chunk(self, items: Sequence[PutItem], caller: Caller) -> Results:
        """A stream's chunk: waits for room in the queue, where a batch is refused, so that a stream
        slows down instead of failing. Cells of columns that the caller may not put fail."""
        items = [allowed(item, caller, self._datastore.shards) for item in items]
        cells = [item for item in items if isinstance(item, NewCell)]
        started = time.perf_counter()
        while True:
            try:
                answer = self._submit(cells)
            except Overloaded as error:
                if time.perf_counter() - started > PUT_TIMEOUT_S:
                    return self._chunk_results(items, _failed(error), started)
                await asyncio.sleep(_QUEUE_FULL_PAUSE_S)
            except CellfeedError as error:
                return self._chunk_results(items, _failed(error), started)
            else:
                return self._chunk_results(items, answer, started)

    async def _chunk_results(
        self, items: Sequence[PutItem], written: Awaitable[list[PutResult]], started: float
    ) -> list[PutResult]:
        try:
            stored = iter(await written)
            results = [next(stored) if isinstance(item, NewCell) else item for item in items]
        except Exception as problem:  # every line gets its result, after any error
            error = as_put_error(problem)
            shards = self._datastore.shards
            results = [
                PutResult.of_error(error, shard_of(item.row_key, shards))
                if isinstance(item, NewCell)
                else item
                for item in items
            ]
        self._metrics.put(results, time.perf_counter() - started)
        return results

    def commits(self) -> LoopCommits:
        """Those of the running loop."""
        if self._commits is None:
            self._commits = LoopCommits(self._datastore)
        return self._commits

    def _submit(self, cells: Sequence[NewCell]) -> Results:
        return self.commits().put(cells)

    async def _written(self, cells: Sequence[NewCell]) -> list[PutResult]:
        try:
            return await self._submit(cells)
        except CellfeedError:
            raise
        except Exception as error:
            raise as_put_error(error) from error


async def _failed(error: CellfeedError) -> list[PutResult]:
    raise error
