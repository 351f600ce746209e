"""The route that queries an index, as bare ASGI as the put routes are
(:mod:`cellfeed.store.http.server.puts`). Waiting for the index holds no read thread."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Final

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, StorageUnavailable
from cellfeed.store.http.index_messages import IndexQueryMessage, index_page_message
from cellfeed.store.http.messages import JSON
from cellfeed.store.http.server.asgi import Receive, Scope, Send
from cellfeed.store.http.server.bodies import read_body
from cellfeed.store.http.server.callers import caller_of
from cellfeed.store.http.server.direct import Handler, Respond
from cellfeed.store.http.server.documents import message_from
from cellfeed.store.http.server.query import check_query_string
from cellfeed.store.http.server.read_pool import ReadPool
from cellfeed.store.http.server.responses import encoded, media_type_of, send_message
from cellfeed.store.indexes.request import IndexPage, check_wait_for, check_wait_s
from cellfeed.store.limits import HTTP_BODY_BYTES_MAX
from cellfeed.store.security.callers import Caller

_INDEX: Final = re.compile(r".*/indexes/([^/]*)/query")
_log: Final = logging.getLogger("cellfeed.worker")


class IndexQueryRoute:
    """Handler of ``POST /v1/{datastore}/indexes/{index}/query``."""

    def __init__(self, datastore: Datastore, reads: ReadPool) -> None:
        self._datastore = datastore
        self._reads = reads

    async def query(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rows in the order asked for, and the cursor of the next page. 503 while the index is
        being built, or has not reached ``wait_for`` in time."""
        check_query_string(scope["query_string"], ())
        index = _index_of(scope["path"])
        media_type = media_type_of(scope)
        wanted = message_from(
            await read_body(scope, receive, HTTP_BODY_BYTES_MAX), media_type, IndexQueryMessage
        )
        caller = caller_of(scope)
        if not caller.may_all("read"):
            await self._reads.run(self._check, index, wanted, caller)
        await self._wait(index, wanted)
        call = self._call(index, wanted)
        await send_message(send, scope, index_page_message(await self._reads.run(call)))

    def directly(self, path: str) -> Handler:
        """As :meth:`query`, of JSON. Does not take a query that is refused, or waits for the
        index, or of a caller without the right to read every column."""
        index = _index_of(path)

        def query(content: bytes, respond: Respond, caller: Caller) -> bool:
            try:
                wanted = message_from(content, JSON, IndexQueryMessage)
            except CellfeedError:
                return False
            if wanted.wait_for:
                return False
            if not caller.may_all("read"):
                return False
            call = self._call(index, wanted)

            def read(answer: asyncio.Future[bytes]) -> None:
                error = answer.exception()
                if error is None:
                    respond(answer.result())
                elif isinstance(error, CellfeedError):
                    respond(error)
                else:
                    _log.error("a query_index request failed", exc_info=error)
                    respond(
                        CellfeedError(
                            f"{type(error).__name__} while the request was answered; the worker's"
                            " log has the trace"
                        )
                    )

            try:
                self._reads.run_then(
                    lambda: encoded(index_page_message(call()), msgpack=False), read
                )
            except CellfeedError:
                return False
            return True

        return query

    def _call(self, index: str, wanted: IndexQueryMessage) -> Callable[[], IndexPage]:
        return partial(
            self._datastore.query_index,
            index,
            wanted.shard_value,
            wanted.where,
            order_by=wanted.order_by,
            descending=wanted.descending,
            limit=wanted.limit,
            cursor=wanted.cursor,
            fields=wanted.fields,
            columns=wanted.columns,
            mode=wanted.mode,
            read_from=wanted.read_from,
        )

    def _check(self, index: str, wanted: IndexQueryMessage, caller: Caller) -> None:
        """Whether the caller may read all columns that the answer shows. Somebody without any right
        learns nothing of the index. Blocks for a read."""
        columns = None if wanted.columns == "*" else wanted.columns or ()
        try:
            indexed = self._datastore.indexes.current(index).definition.columns
        except CellfeedError:
            columns, indexed = None, []
        caller.check_read(None if columns is None else {*indexed, *columns})

    async def _wait(self, index: str, wanted: IndexQueryMessage) -> None:
        locations = check_wait_for(wanted.wait_for, self._datastore.shards)
        behind = partial(self._datastore.indexes.behind, index, locations)
        if not locations or not (lag := await self._reads.run(behind)):
            return
        for pause_s in self._datastore.indexes.pauses(check_wait_s(wanted.wait_s)):
            await asyncio.sleep(pause_s)
            if not (lag := await self._reads.run(behind)):
                return
        raise StorageUnavailable(f"{lag} within {wanted.wait_s} s")


def _index_of(path: str) -> str:
    found = _INDEX.fullmatch(path)
    return found[1] if found else ""
