"""The tables of a datastore on a MySQL server, and how they get from one schema version to the
next.

``<datastore>_meta.datastore`` holds one row: the datastore's name, its shard count, and the version
of the last step that is done. A step is numbered, and is made of statements that may be run again.
What a kill leaves:

    before the row is there      an empty meta database, or an empty table ``datastore``: making it
                                 again completes it
    inside a step                some of its tables; the row still has the version before: the
                                 step is run again, and finds them
    after a step                 the row has its version: the next step is run

Steps run on a master, one runner at a time (a user lock, which ends with its connection), and reach
the minions by replication. Every statement of a step to a datastore that is there is guarded
(:mod:`cellfeed.store.engines.mysql.guard`). Storage that holds something else, another shape or a
newer version is refused (ProtectData) before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Final, NamedTuple

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer, query
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.migrate.after_row", "mysql.migrate.inside_step", "mysql.migrate.before_version")

LOCK_TIMEOUT_S: Final = 10
"""How long a migration waits for another runner's, in seconds. Only a schema of thousands of shards
takes longer; it is then told who holds the lock."""

_INSERT_ROWS_MAX: Final = 5_000
"""Counter rows per INSERT: statements of some 100 kB."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a datastore's tables are. ``datastore`` is a checked name; ``held``: the shards that
    this server's cluster holds (all, when not given)."""

    datastore: str
    shards: int
    held: Sequence[int] | None = None

    @property
    def meta(self) -> str:
        """The database of the counters, the state and the buffer."""
        return f"{self.datastore}_meta"

    def database(self, shard: int) -> str:
        """The database of one shard's cells."""
        return f"{self.datastore}_{shard:04d}"

    @property
    def held_shards(self) -> Sequence[int]:
        return range(self.shards) if self.held is None else self.held


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
    for shard in layout.held_shards:
        for statement in shard_statements:
            run(statement.format(shard=layout.database(shard)))
        failpoint("mysql.migrate.inside_step")
    run(f"INSERT IGNORE INTO {layout.meta}.state_revision VALUES (1, 0)")
    for start in range(0, len(layout.held_shards), _INSERT_ROWS_MAX):
        numbers = layout.held_shards[start : start + _INSERT_ROWS_MAX]
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
"""Every step, ascending. One that has been released is never changed: a later one changes what it
made."""

SCHEMA_VERSION: Final = STEPS[-1].version


def schema_statements() -> tuple[list[str], list[str]]:
    """The statements of ``mysql_schema.sql``: for the meta database, and for each shard's."""
    text = resources.files("cellfeed.store.engines.mysql").joinpath("schema.sql").read_text()
    meta, shard = text.split("\n-- meta\n")[1].split("\n-- shard\n")
    return [part for part in meta.split(";") if part.strip()], [
        part for part in shard.split(";") if part.strip()
    ]


# --- looking --------------------------------------------------------------------------------------


def schema_version(connection: Connection[Any], server: MySqlServer, layout: Layout) -> int | None:
    """The version of the last step that is done; None when the datastore is not there. Raises
    ProtectData when what is there is not this datastore."""
    if not query(
        connection, f"SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = '{layout.meta}'"
    ):
        return None
    try:
        rows = query(
            connection, f"SELECT name, shards, schema_version FROM {layout.meta}.datastore"
        )
    except pymysql.err.MySQLError as error:
        if error.args[0] not in (ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR):
            raise
        tables = [str(name) for (name,) in query(connection, f"SHOW TABLES IN {layout.meta}")]
        if not tables:
            return None
        raise ProtectData(
            f"{server}: the database {layout.meta} is not cellfeed's: it holds"
            f" {', '.join(tables[:5])} and no table `datastore` of its form. Give the datastore"
            " another name, or move that database away"
        ) from None
    if not rows:
        return None
    name, shards, version = rows[0][0].decode(), int(rows[0][1]), int(rows[0][2])
    if (name, shards) != (layout.datastore, layout.shards):
        raise ProtectData(
            f"{server} holds datastore {name!r} with {shards} shards; opened as"
            f" {layout.datastore!r} with {layout.shards} shards. A row key's shard may never"
            " change: open it with what it was made with"
        )
    return version


def check_schema(server: MySqlServer, layout: Layout, steps: Sequence[Step] = STEPS) -> None:
    """Raises ProtectData unless the datastore is there, in the version that this program reads and
    writes."""
    with server.connection() as connection:
        found = schema_version(connection, server, layout)
    wanted = steps[-1].version
    if found is None:
        raise _bare(server, layout)
    _refuse_newer(server, layout, found, wanted)
    if found < wanted:
        raise ProtectData(
            f"{server}: datastore {layout.datastore!r} is in schema version {found}, this program"
            f" needs {wanted}: "
            + (
                "making it was not finished; run `cellfeed cluster init` again"
                if found == 0
                else "run `cellfeed cluster migrate`"
            )
        )


def _bare(server: MySqlServer, layout: Layout) -> ProtectData:
    made = (
        "`cellfeed cluster init` makes one of a cluster's bare servers, `cellfeed cluster rejoin"
        " CLUSTER NODE --copy` makes this one a copy of its master"
    )
    return ProtectData(f"{server} holds no datastore {layout.datastore!r}: {made}")


def _refuse_newer(server: MySqlServer, layout: Layout, found: int, wanted: int) -> None:
    if found > wanted:
        raise ProtectData(
            f"{server}: datastore {layout.datastore!r} is in schema version {found}, made by a"
            f" newer cellfeed; this one knows versions up to {wanted}. Run the newer one here"
        )


# --- moving on ------------------------------------------------------------------------------------


def migrate(
    server: MySqlServer,
    layout: Layout,
    *,
    create: bool = False,
    steps: Sequence[Step] = STEPS,
    terms: WriteTerms | None = None,
) -> list[Step]:
    """Runs the steps that are not done yet and returns them. ``create``: make the datastore when it
    is not there. ``terms``: of the cluster that the server is the master of; none for a bare
    server.

    Raises ProtectData (nothing written) for storage that is not this datastore's, or is newer;
    StorageUnavailable when the server fails: run it again.
    """
    with server.connection() as connection, _only_runner(connection, server, layout):
        found = schema_version(connection, server, layout)
        if found is None:
            if not create:
                raise _bare(server, layout)
            found = _begin(connection, server, layout)
        _refuse_newer(server, layout, found, steps[-1].version)
        if found:
            # What is there says which shards it holds; what is asked for counts only until it is
            # made.
            layout = replace(
                layout,
                held=[
                    int(shard)
                    for (shard,) in query(
                        connection, f"SELECT shard FROM {layout.meta}.shard_counter ORDER BY shard"
                    )
                ],
            )
        guard = Guard(server, layout.meta)

        def run(statement: str) -> None:
            if found:
                guard.alter(connection, statement, terms)
            else:
                query(connection, statement)  # the tables that a guard asks are being made

        left = [step for step in steps if step.version > found]
        for step in left:
            step.apply(connection, layout, run)
            failpoint("mysql.migrate.before_version")
            run(
                f"UPDATE {layout.meta}.datastore SET schema_version = {step.version} WHERE"
                f" schema_version = {step.version - 1}"
            )
    return left


def _begin(connection: Connection[Any], server: MySqlServer, layout: Layout) -> int:
    """Writes the datastore's row in version 0: from then on every database of its names is known to
    be its own."""
    if foreign := _shard_databases(connection, layout):
        raise ProtectData(
            f"{server}: the database {foreign[0]} is there already, and no datastore"
            f" {layout.datastore!r} that it would belong to. Give the datastore another name, or"
            " move that database away"
        )
    meta_statements, _ = schema_statements()
    for statement in meta_statements[:2]:  # the database and the table `datastore`
        query(connection, statement.format(meta=layout.meta))
    query(
        connection,
        f"INSERT IGNORE INTO {layout.meta}.datastore VALUES (1,"
        f" X'{layout.datastore.encode().hex()}', {layout.shards}, 0)",
    )
    failpoint("mysql.migrate.after_row")
    return schema_version(connection, server, layout) or 0


def _shard_databases(connection: Connection[Any], layout: Layout) -> list[str]:
    prefix = f"{layout.datastore}_"
    names = [str(name) for (name,) in query(connection, "SHOW DATABASES")]
    return [
        name for name in names if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
    ]


@contextmanager
def _only_runner(
    connection: Connection[Any], server: MySqlServer, layout: Layout
) -> Iterator[None]:
    lock = f"'cellfeed-migrate-{layout.datastore}'"
    [(got,)] = query(connection, f"SELECT GET_LOCK({lock}, {LOCK_TIMEOUT_S})")
    if got is None or int(got) != 1:
        [(holder,)] = query(connection, f"SELECT IS_USED_LOCK({lock})")
        raise StorageUnavailable(
            f"{server}: the schema of {layout.datastore!r} is being changed by connection"
            f" {holder and int(holder)}; try again when it is done"
        )
    yield
    # A runner that fails loses its connection, and the lock with it.
    query(connection, f"SELECT RELEASE_LOCK({lock})")


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
