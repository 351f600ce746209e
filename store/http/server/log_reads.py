"""The routes that read logs: heads, and pieces of them."""

from __future__ import annotations

from typing import Any

from litestar import Request, get, post

from cellfeed.store.api import Location
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.http.log_messages import (
    HeadMessage,
    HeadsMessage,
    ScanShardsMessage,
    ShardCellsMessage,
    ShardsCellsMessage,
    shard_cells_message,
)
from cellfeed.store.http.server.handlers import (
    From,
    Limit,
    Name,
    ReadState,
    Shard,
    known_datastore,
    message_of,
)
from cellfeed.store.http.server.query import location_from
from cellfeed.store.http.server.route_rights import describe, read_all
from cellfeed.store.limits import SCAN_SHARDS_BYTES_MAX


@get(
    "/v1/{datastore:str}/shards",
    tags=["logs"],
    summary="The head of every shard",
    opt={"right": describe, "query": ()},
)
async def get_heads(state: ReadState, datastore: Name) -> HeadsMessage:
    """``heads[n]`` is shard n."""
    store = known_datastore(state, datastore)
    heads = await state.reads.run(store.heads)
    return HeadsMessage(
        store.name, store.shards, [HeadMessage(*heads[shard]) for shard in range(store.shards)]
    )


@get(
    "/v1/{datastore:str}/shards/{shard:int}/cells",
    tags=["logs"],
    summary="A piece of a shard's log",
    opt={"right": read_all, "query": ("location", "limit")},
)
async def scan_shard(
    state: ReadState, datastore: Name, shard: Shard, location: From = "0", limit: Limit = 1000
) -> ShardCellsMessage:
    """Cells in added_id order from ``location`` on, and the location to continue from."""
    store = known_datastore(state, datastore)
    return shard_cells_message(
        await state.reads.run(store.get_cells_for_shard, shard, location_from(location), limit)
    )


@post(
    "/v1/{datastore:str}/shards/cells",
    tags=["logs"],
    summary="Pieces of many shards' logs",
    status_code=200,
    opt={"right": read_all, "body": ScanShardsMessage},
)
async def scan_shards(
    state: ReadState, datastore: Name, request: Request[Any, Any, Any]
) -> ShardsCellsMessage:
    """One piece per shard asked for, in order. 413 ``answer_too_large``: ask for fewer shards at
    once."""
    store = known_datastore(state, datastore)
    wanted = await message_of(request, ScanShardsMessage)
    locations: dict[int, Location] = {
        item.shard: location_from(item.location) for item in wanted.locations
    }
    if len(locations) != len(wanted.locations):
        raise InvalidRequest("request asks for the same shard twice")
    pieces = await state.reads.run(
        store.get_cells_for_shards, locations, wanted.limit, bytes_max=SCAN_SHARDS_BYTES_MAX
    )
    return ShardsCellsMessage([shard_cells_message(piece) for piece in pieces.values()])
