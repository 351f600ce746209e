"""The statements of one put on a MySQL master: two round trips, one transaction over all shards
that it touches.

    1. BEGIN; lock the shards' counter rows, in ascending order (no two writers can wait for each
       other), and read them: the first read of the transaction, so everything after it sees all
       that earlier holders of the locks committed.
    2. one INSERT per shard, one UPDATE of the counters, COMMIT, all in one packet; on MariaDB with
       one answer for all but the COMMIT. Of many cells the INSERTs are sent piece by piece without
       waiting, so that the server runs one piece while the bodies of the next are encoded; the
       COMMIT is sent when all of them have been answered well.

The unique key on the triple finds duplicates; only when it complains is the transaction rolled back
and run again with a look-up of each cell. Values are X'..' literals made here from bytes and
numbers (five times faster than escaping); no text from outside is ever part of a statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from random import uniform
from typing import Any

import pymysql
from crc32c import crc32c
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.checksum import pack_key
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.repeated_cells import without_erased
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.cells import INSERT_COLUMNS, parts
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.encoding import Encode, Encoding, PutEncoding
from cellfeed.store.engines.mysql.errors import commit_failed, error_code, worth_another_try
from cellfeed.store.engines.mysql.locked_counters import (
    ATTEMPTS_MAX,
    PAUSE_S,
    Counter,
    CounterLocks,
    DictionaryRetired,
    counters_update,
    sql_moments,
)
from cellfeed.store.engines.mysql.new_cells import NewRow, give_ids, pieces
from cellfeed.store.engines.mysql.put_lookups import erased_rows, stored_before
from cellfeed.store.engines.mysql.shard_statements import ShardStatements
from cellfeed.store.engines.mysql.statements import Pipeline, commit_script, query
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.put.before_insert", "mysql.put.before_commit", "mysql.put.after_commit")


class PutStatements(ShardStatements):
    """Puts to one server."""

    def __init__(
        self,
        server: MySqlServer,
        meta: str,
        shard_database: Callable[[int], str],
        counters: CounterLocks,
        encoding: PutEncoding,
    ) -> None:
        super().__init__(server, meta, shard_database, counters)
        self._encoding = encoding
        self._columns_seen: set[str] = set()
        self._columns_epoch = -1

    def run(
        self,
        cells: Sequence[NewCell],
        shards: Sequence[int],
        terms: WriteTerms | None = None,
    ) -> list[PutResult]:
        """Outcomes in the order of ``cells``. The encoding is chosen before each
        transaction, and may ask the server. Raises
        StorageUnavailable (nothing written), OutcomeUnknown, or StaleWriter (nothing written) when
        the shards have another leader epoch than that of the terms given."""
        if terms is not None and terms.leader_epoch != self._columns_epoch:
            # Between two turns as master the server may have been cloned: its stored columns may be
            # gone.
            self._columns_seen.clear()
            self._columns_epoch = terms.leader_epoch
        columns = {cell.column_name for cell in cells}
        new_columns = sorted(columns - self._columns_seen)
        retired = False
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                encoding = self._encoding.of(columns, terms, retired=retired)
                results = self._run_once(cells, shards, encoding, terms, new_columns)
                break
            except DictionaryRetired as error:
                retired = True
                if attempt == ATTEMPTS_MAX:
                    raise StorageUnavailable(
                        f"{self._server}: nothing written: its dictionaries are retired one after"
                        " the other; try again"
                    ) from error
            except StorageUnavailable as error:
                if attempt == ATTEMPTS_MAX or not worth_another_try(error):
                    raise
                time.sleep(uniform(0, PAUSE_S * attempt))
        self._columns_seen.update(new_columns)
        failpoint("mysql.put.after_commit")
        return results

    def _run_once(
        self,
        cells: Sequence[NewCell],
        shards: Sequence[int],
        encoding: Encoding,
        terms: WriteTerms | None,
        new_columns: Sequence[str],
    ) -> list[PutResult]:
        with self._server.connection() as connection:
            results = self._transaction(
                connection, cells, shards, encoding, terms, new_columns, look_up=False
            )
            if results is None:
                results = self._transaction(
                    connection, cells, shards, encoding, terms, new_columns, look_up=True
                )
        if results is None:
            raise StorageUnavailable(
                f"{self._server}: nothing written: a triple is stored in another shard than its row"
                " key's"
            )
        return results

    def _transaction(
        self,
        connection: Connection[Any],
        cells: Sequence[NewCell],
        shards: Sequence[int],
        encoding: Encoding,
        terms: WriteTerms | None,
        new_columns: Sequence[str],
        *,
        look_up: bool,
    ) -> list[PutResult] | None:
        """None when the unique key complained and everything was rolled back."""
        counters = self._counters.lock(
            connection, sorted(set(shards)), terms, encoding.dictionary_ids
        )
        known: Sequence[PutResult | int | None] = (
            stored_before(connection, self._shard_database, cells, shards)
            if look_up
            else [None] * len(cells)
        )
        if any(counter.erasures for counter in counters.values()):
            known = without_erased(
                cells,
                shards,
                known,
                erased_rows(connection, self._shard_database, cells, shards, counters),
            )
        failpoint("mysql.put.before_insert")
        results, new = give_ids(cells, shards, counters, known)
        if not new:
            query(connection, "ROLLBACK")
            return results
        last = [counters_update(self._meta, counters)]
        if new_columns:
            names = ",".join(f"(X'{name.encode().hex()}')" for name in new_columns)
            last.append(
                f"INSERT INTO {self._meta}.column_seen VALUES {names} ON DUPLICATE KEY UPDATE"
                " column_name = column_seen.column_name"
            )
        after = self._counters.guard.after_commit(terms)
        written = self._write(connection, new, counters, encoding.encode, last, after)
        return results if written else None

    def _write(
        self,
        connection: Connection[Any],
        new: Mapping[int, Sequence[NewRow]],
        counters: Mapping[int, Counter],
        encode: Encode,
        last: Sequence[str],
        after_commit: Sequence[str],
    ) -> bool:
        """Inserts the cells, runs the last statements and commits. False when the unique key
        complained and everything was rolled back."""
        sent = pieces(new)
        try:
            if len(sent) == 1:
                statements = [*self._inserts(new, counters, encode), *last]
                failpoint("mysql.put.before_commit")
                commit_script(connection, statements, after_commit, silent=True)
            else:
                pipeline = Pipeline(connection)
                for piece in sent:
                    pipeline.send(self._inserts(piece, counters, encode))
                pipeline.send(last)
                pipeline.finish()
                failpoint("mysql.put.before_commit")
                commit_script(connection, [], after_commit)
        except (pymysql.err.MySQLError, OSError) as error:
            if error_code(error) != ER.DUP_ENTRY:
                raise commit_failed(self._server, error) from error
            query(connection, "ROLLBACK")
            return False
        return True

    def _inserts(
        self, new: Mapping[int, Sequence[NewRow]], counters: Mapping[int, Counter], encode: Encode
    ) -> list[str]:
        bodies = iter(encode([each.cell for cells in new.values() for each in cells]))
        moments = sql_moments(counters)
        statements = []
        for shard, cells in new.items():
            at_us = counters[shard].created_at_us
            created_at = moments[at_us]
            values = []
            for (row_key, column, ref_key, _), added_id in cells:
                name, body = column.encode(), next(bodies)
                crc = crc32c(
                    pack_key(added_id, ref_key, at_us, row_key) + name + body
                )  # cell_checksum, written out
                values.append(
                    f"({added_id},X'{row_key.hex()}',X'{name.hex()}',{ref_key},"
                    f"X'{body.hex()}',{created_at},{crc})"
                )
            statements += [
                f"INSERT INTO {self._cell_table(shard)} {INSERT_COLUMNS} VALUES {','.join(part)}"
                for part in parts(values)
            ]
        return statements
