"""Where a follower begins in each of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.cells.token import Token
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import InvalidLocation, Trimmed
from cellfeed.store.followed import EARLIEST, Wanted
from cellfeed.store.limits import ADDED_ID_MAX


def followed_shards(wanted: Wanted, shards: int) -> Iterable[int]:
    """The shards to follow, of so many. Raises UnknownShard."""
    if wanted.shards is None:
        return range(shards)
    return [check_shard(each, shards) for each in wanted.shards]


def check_token(wanted: Wanted, history: str, shards: int) -> None:
    """Raises OtherHistory, with both ids, for a token of another store; UnknownShard."""
    if isinstance(wanted.start, Token):
        wanted.start.check_history(history)
        wanted.start.check_shards(shards)


def start_positions(
    wanted: Wanted, heads: Mapping[int, Head], locate: Callable[[int, datetime], int]
) -> dict[int, int]:
    """The added_id to begin with in each followed shard. ``heads``: theirs, looked at after the
    start was given; ``locate`` finds a moment in a shard. A shard that a token does not name begins
    at 0: nothing of it was passed.

    Raises Trimmed for a place below a log's start, InvalidLocation for one behind its end.
    """
    start = wanted.start
    if isinstance(start, datetime):
        return {shard: locate(shard, start) for shard in heads}
    if not isinstance(start, Token):
        return {
            shard: head.log_start if start == EARLIEST else head.watermark
            for shard, head in heads.items()
        }
    passed = {each.shard: each.last + 1 for each in start.places}
    positions = {shard: passed.get(shard, 0) for shard in heads}
    for shard, position in positions.items():
        head = heads[shard]
        refuse_trimmed(shard, position, head)
        # Nobody can say where the log ends while the master is away (ADDED_ID_MAX).
        if head.next_added_id < min(position, ADDED_ID_MAX):
            raise InvalidLocation(
                f"the token has passed added_id {position - 1} of shard {shard}, and its log ends"
                f" before {head.next_added_id}: it is no token of this log"
            )
    return positions


def refuse_trimmed(shard: int, position: int, head: Head) -> None:
    """Raises Trimmed for a position below the start of its log."""
    if position < head.log_start:
        raise Trimmed(
            f"location {position} of shard {shard} was trimmed: its log begins at"
            f" {head.log_start}; the cells between were not followed. To continue without them,"
            f" follow from 'earliest'"
        )
