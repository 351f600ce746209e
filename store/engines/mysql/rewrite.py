"""Stored bodies in another encoding, on a MySQL master (E27): transactions that are fenced as a put
is.

    1. BEGIN; lock the shard's counter row behind the guard, as a put does: so no put, trim or
       erasure is under way in the shard. While a move copies the shard nothing is replaced
       (ShardMoving), for the copy may have the bodies already.
    2. read the bodies; one that is no longer as it was given is left as it is.
    3. overwrite the others, with new checksums, and COMMIT, in one packet. The commit waits for a
       minion where a put's does.

Crash points: before the COMMIT nothing was done, after it all of it. A commit whose fate is not
known is found out by the next look: replaced bodies no longer have the prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.cells.body_codec import dictionaries_named
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.checksum import cell_checksum
from cellfeed.store.engines.contract.dictionaries import replacement_retired
from cellfeed.store.engines.contract.values import NamedBodies, WriteTerms
from cellfeed.store.engines.mysql.cells import plain_cells
from cellfeed.store.engines.mysql.fenced import FencedStatements
from cellfeed.store.engines.mysql.locked_counters import DictionaryRetired
from cellfeed.store.engines.mysql.statements import commit_script, query
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.rewrite.before_commit", "mysql.rewrite.after_commit")

_COUNTED_CELLS: Final = 100_000
"""Cells that one statement of a search looks at: some tenths of a second where the disk is slow."""


class RewriteStatements(FencedStatements):
    """On one server."""

    def named(self, shard: int, prefix: bytes, location: int, limit: int) -> NamedBodies:
        """As the contract's. Raises DataDamaged; ShardMoving where the shard is not here."""
        table = self._cell_table(shard)
        with self._server.connection() as connection:
            last, count = _looked_at(connection, table, prefix, location, limit)
            if last is None:
                return NamedBodies([], None)
            rest = (
                f"WHERE added_id >= {location:d} AND added_id <= {last} AND {_begins(prefix)} ORDER"
                " BY added_id"
            )
            cells = plain_cells(connection, shard, table, rest) if count else []
        return NamedBodies(cells, last + 1)

    def settle(self, shard: int, terms: WriteTerms | None) -> int:
        """The next added_id, once no put is under way in the shard. Raises as :meth:`replace`."""
        with self._server.connection() as connection:
            counter = self._locked(connection, shard, terms)
            query(connection, "ROLLBACK")
        return counter

    def replace(
        self, shard: int, cells: Sequence[tuple[StoredCell, bytes]], terms: WriteTerms | None
    ) -> int:
        """How many were replaced. Raises StorageUnavailable (nothing replaced; ShardMoving while
        the shard is moved), OutcomeUnknown, StaleWriter (nothing replaced)."""
        replaced = self._tried_again(lambda: self._replace_once(shard, cells, terms))
        failpoint("mysql.rewrite.after_commit")
        return replaced

    def count(self, prefix: bytes) -> dict[int, int]:
        """By shard how many stored bodies begin so, in every table of bodies that the server has:
        also those of shards that have left it, and of half copies. Shards without any are left
        out."""
        found: dict[int, int] = {}
        with self._server.connection() as connection:
            for shard, table in self._tables(connection):
                if count := self._count(connection, table, prefix):
                    found[shard] = found.get(shard, 0) + count
        return found

    def _replace_once(
        self, shard: int, cells: Sequence[tuple[StoredCell, bytes]], terms: WriteTerms | None
    ) -> int:
        table = self._cell_table(shard)
        with self._server.connection() as connection:
            self._locked(connection, shard, terms, dictionaries_named(body for _, body in cells))
            ids = ",".join(str(cell.added_id) for cell, _ in cells)
            stored = {
                int(added_id): body
                for added_id, body in query(
                    connection, f"SELECT added_id, body FROM {table} WHERE added_id IN ({ids})"
                )
            }
            changed = [
                cell._replace(body=body)
                for cell, body in cells
                if stored.get(cell.added_id) == cell.body
            ]
            if not changed:
                query(connection, "ROLLBACK")
                return 0
            with self._committing():
                failpoint("mysql.rewrite.before_commit")
                updates = [_update(table, cell) for cell in changed]
                after = self._counters.guard.after_commit(terms)
                commit_script(connection, updates, after, silent=True)
        return len(changed)

    def _locked(
        self,
        connection: Connection[Any],
        shard: int,
        terms: WriteTerms | None,
        dictionary_ids: Collection[int] = (),
    ) -> int:
        """Begins the transaction; the shard's next added_id."""
        try:
            counter = self._counters.lock(connection, [shard], terms, dictionary_ids)[shard]
        except DictionaryRetired as error:
            raise replacement_retired(self._server, shard) from error
        self._refuse_while_moving(connection, shard, "no body replaced")
        return counter.next_added_id

    def _tables(self, connection: Connection[Any]) -> list[tuple[int, str]]:
        """Each table of bodies in a shard's database, also under the name that a move gave it."""
        start = self._shard_database(0).removesuffix("0000")
        rows = query(
            connection,
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.COLUMNS WHERE COLUMN_NAME ="
            " 'body' ORDER BY 1, 2",
        )
        found = []
        for row in rows:
            database, table = (each if isinstance(each, str) else each.decode() for each in row)
            number = database.removeprefix(start)
            if database.startswith(start) and number.isdecimal():
                found.append((int(number), f"{database}.{table}"))
        return found

    def _count(self, connection: Connection[Any], table: str, prefix: bytes) -> int:
        count, location = 0, 0
        while True:
            last, step = _looked_at(connection, table, prefix, location, _COUNTED_CELLS)
            if last is None:
                return count
            count, location = count + step, last + 1


def _looked_at(
    connection: Connection[Any], table: str, prefix: bytes, location: int, limit: int
) -> tuple[int | None, int]:
    """The last id of so many cells from a location on, None where there is none; and how many of
    them have bodies that begin so."""
    cells = (
        f"SELECT added_id, {_begins(prefix)} AS named FROM {table} WHERE added_id >= {location:d}"
        f" ORDER BY added_id LIMIT {limit:d}"
    )
    [(last, count)] = query(
        connection, f"SELECT MAX(added_id), SUM(named) FROM ({cells}) AS looked_at"
    )
    return (None, 0) if last is None else (int(last), int(count))


def _begins(prefix: bytes) -> str:
    return f"LEFT(body, {len(prefix)}) = X'{prefix.hex()}'"


def _update(table: str, cell: StoredCell) -> str:
    return (
        f"UPDATE {table} SET body = X'{cell.body.hex()}', crc = {cell_checksum(*cell)} WHERE"
        f" added_id = {cell.added_id}"
    )
