"""The check of one server of a cluster, on that server alone: MariaDB's own check of its tables,
keys, counters, and the cells as they lie there. Nothing is written.

Each shard is read in one transaction of one moment: its cells, its counter, its keys. So puts,
trims and erasures meanwhile make no findings, and a minion is held against its own counters,
however far behind it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.engines.contract.findings import Findings, OnCells
from cellfeed.store.engines.mysql.checked_log import (
    check_ids,
    check_outside,
    columns_of,
    head_of,
    moment,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import CellfeedError, DataDamaged, ShardMoving

ANSWER_TIMEOUT_S: Final = 3_600.0
"""Longest wait for one statement, in seconds: CHECK TABLE reads a table of any size as a whole."""

_META_TABLES: Final = (
    "datastore", "shard_counter", "leader_epoch", "state_entry", "state_revision", "column_seen",
    "buffered_cell", "dictionary", "dictionary_turn", "shard_arriving", "shard_leaving",
)  # fmt: skip

_LOOKS: Final = 2
"""A shard may be fenced, and given back, while its table is looked at."""

_KEY_SUM: Final = "SUM(CRC32(CONCAT(row_key, column_name, ref_key, ',', added_id)))"


def check_node(
    place: str,
    server: MySqlServer,
    layout: Layout,
    into: Findings,
    on_cells: OnCells = lambda _: None,
) -> None:
    """Looks at every shard that the node serves, and at the cluster's own tables. Raises
    StorageUnavailable when it does not answer."""
    patient = MySqlServer(server.address, ANSWER_TIMEOUT_S)
    try:
        _check_tables(place, patient, [f"{layout.meta}.{name}" for name in _META_TABLES], into)
        with patient.connection() as connection:
            counters = {
                int(shard): range(int(start), int(end))
                for shard, start, end in _counters(connection, layout)
            }
            columns = columns_of(connection, layout)
        own = Findings()
        with (
            known_dictionaries.source(MySqlDictionaries(patient, layout.meta).find),
            ThreadPoolExecutor(1, thread_name_prefix="integrity") as beside,
            ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as ahead,
        ):  # the server has more to do with a shard than this process has
            checked = [
                beside.submit(_check_table, place, patient, layout, shard, own)
                for shard in sorted(counters)
            ]
            for shard in sorted(counters):
                _each(
                    place,
                    shard,
                    into,
                    lambda shard=shard: _check_cells(  # type: ignore[misc]
                        place, patient, layout, shard, set(columns), into, on_cells, ahead
                    ),
                )
            for each in checked:
                each.result()
        into.take(own)
    finally:
        patient.close()


def _each(place: str, shard: int, into: Findings, check: Callable[[], None]) -> None:
    try:
        check()
    except ShardMoving:
        pass  # it has left meanwhile: the node that serves it now is asked for it
    except DataDamaged as error:
        into.add("unread", place, f"shard {shard}: {error}", shard)


def ids_of(server: MySqlServer, layout: Layout) -> int:
    """How many ids the counters have given, for a progress bar. Raises StorageUnavailable."""
    with server.connection() as connection:
        return sum(int(end) - int(start) for _, start, end in _counters(connection, layout))


def _counters(connection: Connection[Any], layout: Layout) -> Sequence[tuple[Any, ...]]:
    return query(
        connection, f"SELECT shard, log_start, next_added_id FROM {layout.meta}.shard_counter"
    )


def _check_cells(
    place: str,
    server: MySqlServer,
    layout: Layout,
    shard: int,
    columns: set[str],
    into: Findings,
    on_cells: OnCells,
    ahead: Executor,
) -> None:
    with moment(server) as connection:
        head = head_of(connection, layout, shard)
        if head is None:
            return  # as for one that has left
        columns |= columns_of(connection, layout)
        check_ids(place, connection, layout, shard, head, columns, into, on_cells, ahead)
        check_outside(place, connection, layout, shard, head, into)


def _check_table(
    place: str, server: MySqlServer, layout: Layout, shard: int, into: Findings
) -> None:
    """The server's own check of the shard's cells, and whether its keys name the same cells as its
    places do. A move takes the counter away before it gives the table another name. So a shard
    without a counter is none of this server's, and any other finding is there at the next look,
    too."""

    def check() -> None:
        table = f"{layout.database(shard)}.cell"
        for _ in range(_LOOKS):
            found = Findings()
            _check_tables(place, server, [table], found)
            if found.well:
                break
            with moment(server) as connection:
                if head_of(connection, layout, shard) is None:
                    return  # it has left meanwhile
        into.take(found)
        with moment(server) as connection:
            by_place, by_key = (
                query(
                    connection, f"SELECT COUNT(*), {_KEY_SUM} FROM {table} FORCE INDEX ({index})"
                )[0]
                for index in ("PRIMARY", "triple")
            )
        if by_place != by_key:
            text = (
                f"shard {shard}: its cells are not found by their keys: {by_place[0]} cells,"
                f" {by_key[0]} keys, and their sums differ"
            )
            into.add("key", place, text, shard)

    _each(place, shard, into, check)


def _check_tables(place: str, server: MySqlServer, tables: Sequence[str], into: Findings) -> None:
    """MariaDB's own check: pages, and as many entries in each index as rows."""
    for table in tables:
        try:
            with server.connection() as connection:
                answers = query(connection, f"CHECK TABLE {table}")
        except DataDamaged as error:
            into.add("integrity", place, str(error))
            continue
        except CellfeedError as error:
            into.add("unread", place, f"{table}: {error}")
            return
        for _, _, kind, text in answers:
            if kind.lower() in ("error", "warning") or (kind.lower() == "status" and text != "OK"):
                into.add("integrity", place, f"{table}: {text}")
