"""The numbered steps that make a datastore's tables on a MySQL server, from each schema version to
the next."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any, Final, NamedTuple

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.migrate.inside_step")

_INSERT_ROWS_MAX: Final = 5_000
"""Counter rows per INSERT: statements of some 100 kB."""


class Step(NamedTuple):
    """From version ``version - 1`` to ``version``. ``apply`` writes by statements that may be run
    again after a kill, each of which it gives to the function; the connection is for its queries.
    """

    version: int
    title: str
    apply: Callable[[Connection[Any], Layout, RunStatement], None]


RunStatement = Callable[[str], None]
"""Runs a statement that changes tables or rows, as a transaction by itself."""


def _create_tables(connection: Connection[Any], layout: Layout, run: RunStatement) -> None:
    meta_statements, shard_statements = schema_statements()
    for statement in meta_statements:
        run(statement.format(meta=layout.meta))
    failpoint("mysql.migrate.inside_step")
    for shard in layout.owned_shards:
        for statement in shard_statements:
            run(statement.format(shard=layout.database(shard)))
        failpoint("mysql.migrate.inside_step")
    run(f"INSERT IGNORE INTO {layout.meta}.state_revision VALUES (1, 0)")
    for start in range(0, len(layout.owned_shards), _INSERT_ROWS_MAX):
        numbers = layout.owned_shards[start : start + _INSERT_ROWS_MAX]
        run(
            f"INSERT IGNORE INTO {layout.meta}.shard_counter (shard) VALUES"
            f" {','.join(f'({number})' for number in numbers)}"
        )
        run(
            f"INSERT IGNORE INTO {layout.meta}.leader_epoch VALUES"
            f" {','.join(f'({number},0,0)' for number in numbers)}"
        )


def _create_dictionaries(connection: Connection[Any], layout: Layout, run: RunStatement) -> None:
    for statement in _DICTIONARY_TABLES:
        run(statement.format(meta=layout.meta))
        failpoint("mysql.migrate.inside_step")


def _count_erasures(connection: Connection[Any], layout: Layout, run: RunStatement) -> None:
    add_column(
        connection,
        run,
        layout.meta,
        "shard_counter",
        "erasures",
        "BIGINT UNSIGNED NOT NULL DEFAULT 0",
    )
    failpoint("mysql.migrate.inside_step")


_DICTIONARY_TABLES: Final = (
    (
        "CREATE TABLE IF NOT EXISTS {meta}.dictionary (dictionary_id INT UNSIGNED NOT NULL PRIMARY"
        " KEY, column_name VARBINARY(128) NOT NULL, content MEDIUMBLOB NOT NULL, sha256 BINARY(32)"
        " NOT NULL, trained_at_us BIGINT NOT NULL, samples INT UNSIGNED NOT NULL) ENGINE=InnoDB"
    ),
    (
        "CREATE TABLE IF NOT EXISTS {meta}.dictionary_turn (column_name VARBINARY(128) NOT NULL,"
        " turn INT UNSIGNED NOT NULL, dictionary_id INT UNSIGNED NOT NULL, sha256 BINARY(32) NOT"
        " NULL, PRIMARY KEY (column_name, turn)) ENGINE=InnoDB"
    ),
)
"""Contents of dictionaries, and which one puts of a column take (the highest turn):
:mod:`cellfeed.store.engines.contract.dictionaries`."""


def _create_moves(connection: Connection[Any], layout: Layout, run: RunStatement) -> None:
    add_column(
        connection,
        run,
        layout.meta,
        "shard_counter",
        "epoch_base",
        "INT UNSIGNED NOT NULL DEFAULT 0",
    )
    add_column(
        connection,
        run,
        layout.meta,
        "shard_counter",
        "copied_to",
        "VARBINARY(64) NOT NULL DEFAULT ''",
    )
    for statement in _MOVE_TABLES:
        failpoint("mysql.migrate.inside_step")
        run(statement.format(meta=layout.meta))


_MOVE_TABLES: Final = (
    (
        "CREATE TABLE IF NOT EXISTS {meta}.shard_arriving (shard INT UNSIGNED NOT NULL PRIMARY KEY,"
        " source VARBINARY(64) NOT NULL, token BIGINT UNSIGNED NOT NULL, next_added_id BIGINT"
        " UNSIGNED NOT NULL, begun_at DATETIME(6) NOT NULL) ENGINE=InnoDB"
    ),
    (
        "CREATE TABLE IF NOT EXISTS {meta}.shard_leaving (shard INT UNSIGNED NOT NULL PRIMARY KEY,"
        " target VARBINARY(64) NOT NULL, token BIGINT UNSIGNED NOT NULL, log_start BIGINT UNSIGNED"
        " NOT NULL, next_added_id BIGINT UNSIGNED NOT NULL, leader_epoch INT UNSIGNED NOT NULL,"
        " epoch_base INT UNSIGNED NOT NULL, erasures BIGINT UNSIGNED NOT NULL, last_created_at"
        " DATETIME(6) NOT NULL, fenced_at DATETIME(6) NOT NULL) ENGINE=InnoDB"
    ),
)
"""Shards on their way: a counter that is kept back, and a copy that is made
(:mod:`cellfeed.store.clusters.moves.shard_side`). Readers see the epoch ``leader_epoch +
epoch_base``: so it rises with a move to a cluster whose own epoch is lower. ``copied_to`` names the
cluster that a copy is made for: meanwhile nothing is erased."""


def _add_checksums(connection: Connection[Any], layout: Layout, run: RunStatement) -> None:
    """Also to the tables of shards on their way, which no counter names. InnoDB adds a last column
    without a default to its catalogue only (ALGORITHM=INSTANT): no row is read or written, so
    thousands of shards take seconds, and puts wait for none of it."""
    ours = (
        f"TABLE_SCHEMA REGEXP '^{layout.datastore}_[0-9]+$' AND TABLE_NAME IN ('cell',"
        " 'moved_cell')"
    )
    done = (
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.COLUMNS WHERE {ours} AND"
        " COLUMN_NAME = 'crc'"
    )
    tables = query(
        connection,
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE {ours} AND"
        f" (TABLE_SCHEMA, TABLE_NAME) NOT IN ({done})",
    )
    for database, table in tables:
        run(ADD_CHECKSUMS.format(table=f"{database}.{table}"))
        failpoint("mysql.migrate.inside_step")


ADD_CHECKSUMS: Final = "ALTER TABLE {table} ADD COLUMN crc INT UNSIGNED NULL, ALGORITHM=INSTANT"
"""The CRC32C of each cell (:mod:`cellfeed.store.cells.checksum`); NULL for one from before."""


STEPS: Final = (
    Step(1, "counters, leader epochs, state, buffer, and the cells of each shard", _create_tables),
    Step(2, "dictionaries of bodies, and which one each column's puts take", _create_dictionaries),
    Step(3, "how many erasures each shard has seen", _count_erasures),
    Step(4, "moves of shards between clusters", _create_moves),
    Step(5, "a checksum of each cell", _add_checksums),
)
"""Every step, ascending. One that has been released is never changed: a later one changes the
tables that it made."""


SCHEMA_VERSION: Final = STEPS[-1].version


def schema_statements() -> tuple[list[str], list[str]]:
    """The statements of ``mysql_schema.sql``: for the meta database, and for each shard's."""
    text = resources.files("cellfeed.store.engines.mysql").joinpath("schema.sql").read_text()
    meta, shard = text.split("\n-- meta\n")[1].split("\n-- shard\n")
    return [part for part in meta.split(";") if part.strip()], [
        part for part in shard.split(";") if part.strip()
    ]


def add_column(
    connection: Connection[Any],
    run: RunStatement,
    database: str,
    table: str,
    column: str,
    definition: str,
) -> None:
    """``ALTER TABLE … ADD COLUMN`` unless the column is there: MySQL has no IF NOT EXISTS for it.
    For steps; all are names and text of the program's own."""
    there = (
        f"SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = '{database}' AND TABLE_NAME"
        f" = '{table}' AND COLUMN_NAME = '{column}'"
    )
    if not query(connection, there):
        run(f"ALTER TABLE {database}.{table} ADD COLUMN {column} {definition}")
