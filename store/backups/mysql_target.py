"""Whether a MySQL master may be restored into: it never had a cell, or the restore of this very
backup is under way there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pymysql.connections import Connection

from cellfeed.store.clusters.model.restore_mark import RESTORE_KEY, Mark
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData


def check_target(
    connection: Connection[Any], server: MySqlServer, layout: Layout, mark: Mark
) -> Mark | None:
    """Begins a transaction and locks the counters. Returns the mark of a restore that is under
    way. Raises ProtectData when there is, or was, a cell, or another backup is
    being restored here."""
    query(connection, "BEGIN")
    counters = query(
        connection,
        f"SELECT shard, next_added_id FROM {layout.meta}.shard_counter ORDER BY shard FOR UPDATE",
    )
    rows = query(
        connection,
        f"SELECT value FROM {layout.meta}.state_entry WHERE entry_key = '{RESTORE_KEY}'",
    )
    under_way = msgspec.json.decode(rows[0][0], type=Mark) if rows else None
    if under_way is None:
        _check_empty(
            connection, server, layout, [int(shard) for shard, next_id in counters if int(next_id)]
        )
    elif (under_way.backup, under_way.sha256, under_way.done) != (
        mark.backup,
        mark.sha256,
        False,
    ):
        query(connection, "ROLLBACK")
        recorded_in = f"{server}: nothing restored: a restore of backup {under_way.backup}"
        if under_way.done:
            raise ProtectData(
                f"{recorded_in} was done here, and a backup goes into empty storage only"
            )
        raise ProtectData(
            f"{recorded_in} is under way here: run that one again, or drop the databases of"
            " this datastore on every node"
        )
    return under_way


def _check_empty(
    connection: Connection[Any], server: MySqlServer, layout: Layout, written: Sequence[int]
) -> None:
    moving = query(
        connection,
        f"SELECT shard FROM {layout.meta}.shard_arriving UNION SELECT shard FROM"
        f" {layout.meta}.shard_leaving",
    )
    if moving:
        query(connection, "ROLLBACK")
        shard = int(moving[0][0])
        raise ProtectData(
            f"{server}: nothing restored: a move of shard {shard} is under way, or has"
            " left its tables here. End it first: cellfeed shard resume, then cellfeed shard"
            " clean"
        )
    [(buffered,)] = query(connection, f"SELECT COUNT(*) FROM {layout.meta}.buffered_cell")
    if written or int(buffered):
        query(connection, "ROLLBACK")
        what = (
            f"shard {written[0]} has cells, or had"
            if written
            else f"it buffers {int(buffered)} cells"
        )
        raise ProtectData(
            f"{server}: nothing restored: {what}, and a backup goes into empty storage"
            " only. Name other servers in the configuration, or drop the databases"
            f" {layout.meta} and {layout.database(0)} … on every node, if their"
            " content may"
            " be lost"
        )
