"""Where a new group begins: at the earliest cell, at the latest, at a moment, or at given
locations.

That is settled **once for all shards of the group**, before any of them is begun: in one commit of
the state table that only succeeds while there is none (compare-and-set). From then on it is a list
of numbers. So ``latest`` does not slide: neither when a worker is killed before it has saved an
offset, nor for shards that are begun an hour later. A put that begins after that commit gives its
cell a higher location than every end that was looked at. So no such cell is left out.

A group that has offsets but no such entry comes from a version that always began at the earliest
cell; its shards without an offset still begin there, also where the program now has another start.
The entry says only where shards *begin*: it moves no offset that is there. When the offsets of a
group are lost it is not looked at: then the group stands still (``kept_offsets.py``). Every shard
that was ever begun has had an offset. It is saved under the shard's claim before the first cell is
run, and the datastore knows of it.

Key: ``starts/<group>/<topic>``. Crash points:

    before the commit           nothing was begun: the next worker looks at the ends again
    two workers at once         one commit succeeds; the other one reads it
    after it, before a shard's first offset is saved        the shard is begun at the settled place,
                                                            whenever that is
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote

import msgspec

from cellfeed.bridge.coordination.contract import Offsets
from cellfeed.store.cells.cell import microseconds
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import InvalidLocation
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import ADDED_ID_MAX

declare("start.before_settled", "start.after_settled")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Start = str | datetime | Mapping[int, int]
"""``earliest``, ``latest``, an aware datetime (the first cell at or after it), or locations by
shard; shards that are not named begin at the earliest cell."""


class _RecordedStart(msgspec.Struct, frozen=True):
    """``origin_id``: of the history that the group began in; empty where an older version began it.
    ``locations`` by shard; ``settled_at_us`` by the storage's clock, microseconds since 1970 UTC.
    MessagePack: up to 9 bytes for each of 65,536 shards."""

    start: str
    settled_at_us: int
    locations: list[int]
    origin_id: str = ""


def check_start(start: object) -> Start:
    """Raises InvalidLocation for a value that is no start."""
    if start in (EARLIEST, LATEST) or (isinstance(start, datetime) and start.tzinfo is not None):
        return start
    if isinstance(start, Mapping) and all(
        type(shard) is int
        and shard >= 0
        and type(location) is int
        and 0 <= location <= ADDED_ID_MAX
        for shard, location in start.items()
    ):
        return dict(start)
    raise InvalidLocation(
        f"start={ascii(start)[:80]} is not 'earliest', 'latest', a datetime with a time zone, or"
        " locations by shard {shard: added_id}"
    )


class StartOfGroup:
    """One group's. Raises UnknownShard when a location is given for a shard that the datastore has
    not."""

    def __init__(self, datastore: Datastore, offsets: Offsets, group: str, start: Start) -> None:
        self._datastore = datastore
        self._offsets = offsets
        self._group = group
        self._start = start
        self._key = _key(group, datastore.name)
        self._locations: list[int] | None = None
        for shard in start if isinstance(start, Mapping) else ():
            check_shard(shard, datastore.shards)

    def locations(self) -> list[int]:
        """By shard, where the group began or begins; settles it when nobody has. Raises
        Unavailable, InvalidLocation for given locations that a shard's log has not."""
        if self._locations is None:
            self._locations = self._settled() or self._settle()
        return self._locations

    def _settled(self) -> list[int] | None:
        return recorded_start(self._datastore.state, self._group, self._datastore.name)

    def _settle(self) -> list[int]:
        state = self._datastore.state
        while True:
            start, locations, is_new = self._looked_up()
            recorded = _RecordedStart(
                start, state.now_us(), locations, self._datastore.origin_id if is_new else ""
            )
            failpoint("start.before_settled")
            if (
                state.commit(
                    {self._key: msgspec.msgpack.encode(recorded)}, expect={self._key: None}
                )
                is not None
            ):
                failpoint("start.after_settled")
                return locations
            if (by_another := self._settled()) is not None:
                return by_another

    def _looked_up(self) -> tuple[str, list[int], bool]:
        """The start to settle, and whether no version has begun the group before."""
        # The entry was not there before the offsets are looked at, and the commit expects it still
        # not to be: offsets that another worker saves in between come with an entry, so they are
        # never taken for those of an earlier version.
        earlier = self._offsets.fetch_offsets(self._group)
        start = EARLIEST if earlier else self._start
        heads, is_new = self._datastore.heads(), not earlier
        shards = range(self._datastore.shards)
        if start == EARLIEST:
            return EARLIEST, [heads[shard].log_start for shard in shards], is_new
        if start == LATEST:
            return LATEST, [heads[shard].watermark for shard in shards], is_new
        if isinstance(start, datetime):
            return (
                start.isoformat(),
                [self._datastore.engine.locate(shard, microseconds(start)) for shard in shards],
                is_new,
            )
        given = dict(start)  # type: ignore[arg-type]
        for shard, location in given.items():
            if location > heads[shard].watermark:
                raise InvalidLocation(
                    f"group {self._group!r} is to begin at {shard}:{location}, but shard {shard}"
                    f" ends at {heads[shard].watermark}"
                )
            if location < heads[shard].log_start:
                raise InvalidLocation(
                    f"group {self._group!r} is to begin at {shard}:{location}, but shard {shard}"
                    f" was trimmed below {heads[shard].log_start}"
                )
        return "given", [given.get(shard, heads[shard].log_start) for shard in shards], is_new


def recorded_start(state: StateTable, group: str, topic: str) -> list[int] | None:
    """By shard, where the group began or begins; None while nobody has settled it."""
    found = _read(state, group, topic)
    return found.locations if found else None


def origin_of_start(state: StateTable, group: str, topic: str) -> str:
    """The origin of the history in which a group began; empty where it has not, or where an older
    version began it."""
    found = _read(state, group, topic)
    return found.origin_id if found else ""


def _read(state: StateTable, group: str, topic: str) -> _RecordedStart | None:
    entry = state.get(_key(group, topic))
    return msgspec.msgpack.decode(entry.value, type=_RecordedStart) if entry else None


def carried_start(
    datastore: Datastore, group: str, to: str
) -> tuple[list[int], dict[str, bytes | None]]:
    """Where a group begins, by shard, and the entry that settles the same for the group ``to``. One
    of an earlier version, without an entry, begins at the earliest cells."""
    found = _read(datastore.state, group, datastore.name)
    if found is None:
        heads = datastore.heads()
        starts = [heads[shard].log_start for shard in range(datastore.shards)]
        found = _RecordedStart(EARLIEST, datastore.state.now_us(), starts)
    return found.locations, {_key(to, datastore.name): msgspec.msgpack.encode(found)}


def forget_start(state: StateTable, group: str, topic: str) -> None:
    """For a group that is done away with."""
    state.commit({_key(group, topic): None})


def _key(group: str, topic: str) -> str:
    return f"starts/{quote(group, safe='')}/{quote(topic, safe='')}"
