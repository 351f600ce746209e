"""Reads of logs: a piece of one, and pieces of many, in several requests where one answer would be
too large."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from cellfeed.store.api import Location, ShardCells
from cellfeed.store.arguments import check_scan_limit
from cellfeed.store.errors import AnswerTooLarge
from cellfeed.store.http.calls.answers import piece_asked, pieces_asked
from cellfeed.store.http.calls.fields import location_text
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.log_messages import ShardCellsMessage, ShardsCellsMessage


def read_piece(requests: Requests, shard: int, location: Location, limit: int) -> Steps[ShardCells]:
    """Of one shard, which is checked."""
    asked = urlencode({"location": location_text(location), "limit": check_scan_limit(limit)})
    return (
        yield from requests.get(
            f"/shards/{shard}/cells?{asked}",
            ShardCellsMessage,
            lambda message: piece_asked(message, shard, location, limit),
        )
    )


def read_pieces(
    requests: Requests, locations: Mapping[int, Location], limit: int
) -> Steps[dict[int, ShardCells]]:
    """Of several shards, which are checked."""
    wanted = [
        {"shard": shard, "location": location_text(location)}
        for shard, location in locations.items()
    ]
    asked = {"locations": wanted, "limit": check_scan_limit(limit)}
    try:
        return (
            yield from requests.post(
                "/shards/cells",
                asked,
                ShardsCellsMessage,
                lambda message: pieces_asked(message, locations, limit),
            )
        )
    except AnswerTooLarge:
        if len(locations) < 2:
            raise
        some = list(locations.items())
        half = len(some) // 2
        first = yield from read_pieces(requests, dict(some[:half]), limit)
        return first | (yield from read_pieces(requests, dict(some[half:]), limit))
