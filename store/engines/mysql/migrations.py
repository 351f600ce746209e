"""The tables of a datastore on a MySQL server, and how they get from one schema version to the
next.

``<datastore>_meta.datastore`` holds one row: the datastore's name, its shard count, and the version
of the last step that is done. A step is numbered, and is made of statements that may be run again.
After a kill the tables are in one of these states:

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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.schema_steps import STEPS, Step, schema_statements
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.migrate.after_row", "mysql.migrate.before_version")

LOCK_TIMEOUT_S: Final = 10
"""How long a migration waits for another runner's, in seconds. Only a schema of thousands of shards
takes longer; the error then names who holds the lock."""


def schema_version(connection: Connection[Any], server: MySqlServer, layout: Layout) -> int | None:
    """The version of the last step that is done; None when the datastore is not there. Raises
    ProtectData when another datastore, or something else, is there."""
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
            " change: open it with its own settings"
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
            # The stored layout names the shards that the datastore holds; the caller's counts only
            # until it is made.
            layout = replace(
                layout,
                owned=[
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
        [(owner,)] = query(connection, f"SELECT IS_USED_LOCK({lock})")
        raise StorageUnavailable(
            f"{server}: the schema of {layout.datastore!r} is being changed by connection"
            f" {owner and int(owner)}; try again when it is done"
        )
    yield
    # A runner that fails loses its connection, and the lock with it.
    query(connection, f"SELECT RELEASE_LOCK({lock})")
