"""A server's notes on a shard that may be on its way: its counter, the note of a copy that is made,
the note of a fence. Read only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pymysql.connections import Connection

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query

Clusters = Mapping[str, ClusterServers]
"""The clusters of a datastore by name."""

HIDDEN: Final = "moved_"
"""Before the names of a shard's tables on a cluster that it leaves, or that has not got all of it
yet: a reader with an old map finds nothing there."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """A copy that is made: from ``source``, up to ``next_added_id``. ``token`` names the fence that
    may be followed by a switch."""

    source: str
    token: int
    next_added_id: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """A counter that is kept back, as it was when puts ended. ``leader_epoch``: as readers have
    seen it. ``created_at``: the last cell's, as SQL writes it."""

    target: str
    token: int
    log_start: int
    next_added_id: int
    leader_epoch: int
    epoch_base: int
    erasures: int
    created_at: str


@dataclass(frozen=True, slots=True)
class ShardNotes:
    """A server's notes on a shard. ``serves``: its log's start and next id where it has the
    counter. ``copied_to``: the cluster that a copy is made for, so that nothing is erased here;
    empty when none is. ``hidden``: its tables have their other names; ``has_tables``: there are
    any."""

    serves: tuple[int, int] | None
    copied_to: str
    arriving: Arriving | None
    leaving: Leaving | None
    hidden: bool
    has_tables: bool


def shard_notes(connection: Connection[Any], layout: Layout, shard: int) -> ShardNotes:
    """The notes on the shard of a connection's server, in one look."""
    meta, there = layout.meta, tables(connection, layout.database(shard))
    counter = query(
        connection,
        f"SELECT log_start, next_added_id, copied_to FROM {meta}.shard_counter WHERE shard ="
        f" {shard}",
    )
    arriving = query(
        connection,
        f"SELECT source, token, next_added_id FROM {meta}.shard_arriving WHERE shard = {shard}",
    )
    leaving = query(
        connection,
        "SELECT target, token, log_start, next_added_id, leader_epoch, epoch_base, erasures,"
        f" last_created_at FROM {meta}.shard_leaving WHERE shard = {shard}",
    )
    return ShardNotes(
        (int(counter[0][0]), int(counter[0][1])) if counter else None,
        counter[0][2].decode() if counter else "",
        (
            Arriving(arriving[0][0].decode(), int(arriving[0][1]), int(arriving[0][2]))
            if arriving
            else None
        ),
        _leaving(leaving[0]) if leaving else None,
        f"{HIDDEN}cell" in there,
        bool(there),
    )


def _leaving(row: Sequence[Any]) -> Leaving:
    target, *numbers, created_at = row
    token, log_start, next_added_id, leader_epoch, epoch_base, erasures = map(int, numbers)
    return Leaving(
        target.decode(),
        token,
        log_start,
        next_added_id,
        leader_epoch,
        epoch_base,
        erasures,
        str(created_at),
    )


def tables(connection: Connection[Any], database: str) -> list[str]:
    """The names of a shard's tables; none when the database is not there."""
    sql = (
        f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database}' ORDER"
        " BY TABLE_NAME"
    )
    return [str(name) for (name,) in query(connection, sql)]


class MasterNotes(NamedTuple):
    """The notes of a cluster's master on all its shards. ``served``: how many cells each has that
    it serves; ``copied``: for which cluster one is copied."""

    served: dict[int, int]
    arriving: dict[int, Arriving]
    leaving: dict[int, Leaving]
    copied: dict[int, str]


def notes_of_master(cluster: ClusterServers, role: Role) -> MasterNotes:
    """All of one moment: a shard that is fenced, given back or switched between two looks would
    seem to be nowhere. Raises StorageUnavailable."""
    meta = cluster.meta
    with cluster.server(role.master).connection() as connection:
        query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        served = query(
            connection,
            f"SELECT shard, next_added_id - log_start, copied_to FROM {meta}.shard_counter",
        )
        arriving = query(
            connection, f"SELECT shard, source, token, next_added_id FROM {meta}.shard_arriving"
        )
        fields = (
            "shard, target, token, log_start, next_added_id, leader_epoch, epoch_base, erasures,"
            " last_created_at"
        )
        leaving = query(connection, f"SELECT {fields} FROM {meta}.shard_leaving")
        query(connection, "COMMIT")
    return MasterNotes(
        {int(shard): int(cells) for shard, cells, _ in served},
        {
            int(shard): Arriving(source.decode(), int(token), int(after))
            for shard, source, token, after in arriving
        },
        {int(row[0]): _leaving(row[1:]) for row in leaving},
        {int(shard): to.decode() for shard, _, to in served if to},
    )
