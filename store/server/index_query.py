"""The route that queries an index. Waiting for the index holds no read thread."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from litestar import Request, post
from litestar.params import Parameter

from store.errors import StorageUnavailable
from store.http_messages import IndexPageMessage, IndexQueryMessage, index_page_message
from store.indexes.query import Indexes
from store.indexes.request import check_wait_for, check_wait_s
from store.server.reads import Name, ReadState, known_datastore, message_of

IndexName = Annotated[str, Parameter(description="The index, as its definition's `table` names it.")]


@post(
    "/v1/{datastore:str}/indexes/{index:str}/query",
    tags=["indexes"],
    summary="Rows by the fields of their cells",
    status_code=200,
    opt={"body": IndexQueryMessage},
)
async def query_index(state: ReadState, datastore: Name, index: IndexName, request: Request[Any, Any, Any]) -> IndexPageMessage:
    """Rows in the order asked for, and the cursor to go on with. 503 while the index is being built, or has not come to `wait_for` in time."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, IndexQueryMessage)
    await _wait(state, store.indexes, index, wanted)
    asked = {name: getattr(wanted, name) for name in wanted.__struct_fields__ if name not in ("shard_value", "where", "wait_for", "wait_s")}
    call = partial(store.query_index, **asked)
    return index_page_message(await state.reads.run(call, index, wanted.shard_value, wanted.where))


async def _wait(state: ReadState, indexes: Indexes, name: str, wanted: IndexQueryMessage) -> None:
    locations = check_wait_for(wanted.wait_for, state.datastore.shards)
    if not locations or not (told := await state.reads.run(indexes.behind, name, locations)):
        return
    for pause_s in indexes.waits(check_wait_s(wanted.wait_s)):
        await asyncio.sleep(pause_s)
        if not (told := await state.reads.run(indexes.behind, name, locations)):
            return
    raise StorageUnavailable(f"{told} within {wanted.wait_s} s")
