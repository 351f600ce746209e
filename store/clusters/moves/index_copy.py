"""The index entries of a shard: made the same on the target as on the source, in rounds.

Entries change in place, so a copy cannot resume from a place in them. A round compares digests of
``BUCKETS`` parts of each table on both servers, and copies the parts that differ. The first round
copies all, each next one the changes since the one before; the last one, behind the fence, when
nothing changes any more, ends with both the same. It needs no note of changes, and so holds after
any promotion or kill in between. A digest reads the whole table: about a second for each million
entries of a shard.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.clusters.model.shard_notes import HIDDEN, tables
from cellfeed.store.clusters.moves.shard_side import ShardSide
from cellfeed.store.engines.mysql.cells import parts
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.statements import query

BUCKETS: Final = 256
"""Parts of a table that are compared, and copied, as a whole."""

_AT_ONCE: Final = 16
"""Buckets in one transaction."""

_NUMBERS: Final = frozenset({"bigint", "int", "tinyint"})


def copy_entries(source: MySqlServer, target: ShardSide, database: str) -> int:
    """One round; how many buckets differed. Raises StorageUnavailable."""
    with source.connection() as connection:
        names = {
            name.removeprefix(HIDDEN): name
            for name in tables(connection, database)
            if name.removeprefix(HIDDEN) != "cell"
        }
        made = {
            plain: _creation(connection, database, plain, name) for plain, name in names.items()
        }
    target.shape(made)
    return sum(_copy_table(source, target, database, plain, name) for plain, name in names.items())


def _creation(connection: Connection[Any], database: str, plain: str, name: str) -> str:
    [(_, create)] = query(connection, f"SHOW CREATE TABLE {database}.{name}")
    return str(create).replace(
        f"CREATE TABLE `{name}`", f"CREATE TABLE {database}.`{HIDDEN}{plain}`", 1
    )


def _copy_table(
    source: MySqlServer, target: ShardSide, database: str, plain: str, name: str
) -> int:
    with source.connection() as connection:
        of_table = (
            f"TABLE_SCHEMA = '{database}' AND TABLE_NAME = '{name}' ORDER BY ORDINAL_POSITION"
        )
        sql = f"SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS WHERE {of_table}"
        columns = {str(column): str(kind) for column, kind in query(connection, sql)}
    literals = [
        (
            f"COALESCE({column}, 'NULL')"
            if kind in _NUMBERS
            else f"IF({column} IS NULL, 'NULL', CONCAT('X''', HEX({column}), ''''))"
        )
        for column, kind in columns.items()
    ]
    row = "CONCAT('(', " + ", ',', ".join(literals) + ", ')')"
    with ThreadPoolExecutor(1, thread_name_prefix="copy-index") as other:
        there = other.submit(_digests, target.server, f"{database}.{HIDDEN}{plain}", row)
        here = _digests(source, f"{database}.{name}", row)
        found = there.result()
    differ = sorted(
        bucket for bucket in here.keys() | found.keys() if here.get(bucket) != found.get(bucket)
    )
    for start in range(0, len(differ), _AT_ONCE):
        condition = (
            f"CRC32(row_key) & {BUCKETS - 1} IN"
            f" ({','.join(map(str, differ[start : start + _AT_ONCE]))})"
        )
        with source.connection() as connection:
            rows = [
                str(text)
                for (text,) in query(
                    connection, f"SELECT {row} FROM {database}.{name} WHERE {condition}"
                )
            ]
        target.exchange(
            plain, condition, [",".join(part) for part in parts(rows) if part], ",".join(columns)
        )
    return len(differ)


def _digests(server: MySqlServer, table: str, row: str) -> dict[int, tuple[int, int]]:
    """By bucket how many entries it has, and a sum of 60 bits of each one's MD5."""
    digest = f"SUM(CAST(CONV(LEFT(MD5({row}), 15), 16, 10) AS UNSIGNED))"
    sql = f"SELECT CRC32(row_key) & {BUCKETS - 1}, COUNT(*), {digest} FROM {table} GROUP BY 1"
    with server.connection() as connection:
        return {
            int(bucket): (int(count), int(total)) for bucket, count, total in query(connection, sql)
        }
