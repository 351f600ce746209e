"""An engine over one MySQL or MariaDB master: a database per shard, one meta database with the
counters. Promises E1–E27.

Statements are in a module for each concern: puts, the log's scans, counters, trims, erasures,
indexes, state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import DEFAULT_CODEC, encode_cells
from cellfeed.store.cells.cell import NewCell, PutResult, StoredCell, Triple
from cellfeed.store.cells.sharding import check_shard, check_shard_count, shard_of, shards_of
from cellfeed.store.engines.contract.buffer import NodeBufferTable
from cellfeed.store.engines.contract.dictionaries import DictionariesOfPuts
from cellfeed.store.engines.contract.engine import NodeStateTable
from cellfeed.store.engines.contract.read_bounds import Page
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    LocatedCell,
    LogRange,
    Look,
    NamedBodies,
    Replica,
    WriteTerms,
)
from cellfeed.store.engines.mysql.buffer import MySqlBuffer
from cellfeed.store.engines.mysql.cells import KEY, plain_cells, sql_moment, stored_cell
from cellfeed.store.engines.mysql.checks import check_server, check_tables, refuse
from cellfeed.store.engines.mysql.connections import MySqlServer, query
from cellfeed.store.engines.mysql.counters import MySqlCounters
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.erase import EraseStatements
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.index import MySqlIndexes
from cellfeed.store.engines.mysql.log import MySqlLog
from cellfeed.store.engines.mysql.migrations import Layout, check_schema, migrate
from cellfeed.store.engines.mysql.promises import promised_database, read_promise
from cellfeed.store.engines.mysql.put import Encoding, PutStatements, sql_triple
from cellfeed.store.engines.mysql.rewrite import RewriteStatements
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.engines.mysql.trim import TrimStatements
from cellfeed.store.histories import NO_HISTORY, History
from cellfeed.store.limits import ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS

_LARGE_BODY_BYTES: Final = 4 << 10
"""Stored bodies up to which a read of many keys fetches all at once: 20 MB with ``READ_KEYS_MAX``
of them. Larger ones are fetched one by one."""

_COLUMNS_STEP: Final = 16
"""Columns of a row that are fetched at once: as many bodies at their limit as an answer holds. Rows
have fewer as a rule."""


class MySqlEngine:
    """See the module. The engine closes ``server``. ``create``: makes the databases where they are
    missing, for the shards ``held`` (all, when not given).

    Raises ProtectData for storage of another shape (E13), for missing storage when ``create`` is
    not set, and for a server that would lose cells.
    """

    def __init__(
        self,
        server: MySqlServer,
        datastore: str,
        shards: int,
        *,
        create: bool = False,
        held: Sequence[int] | None = None,
        codec: int = DEFAULT_CODEC,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._datastore = datastore
        self._shards = check_shard_count(shards)
        self._codec = codec
        layout = Layout(datastore, shards, held)
        self._meta, self._database = layout.meta, layout.database
        self._server = server
        try:
            self._check_server()
            if create:
                migrate(server, layout, create=True)
            check_schema(server, layout)
            self._check_tables(layout)
            self._dictionaries = MySqlDictionaries(server, self._meta)
            self._dictionaries.check()
        except BaseException:
            self._server.close()
            raise
        self._guard = Guard(self._server, self._meta)
        self._belongs_to: tuple[str, str] | None = None
        self._state = MySqlState(self._server, self._meta)
        self._buffer = MySqlBuffer(self._server, self._meta)
        self._indexes = MySqlIndexes(self._server, self._meta, self._database, self._shards)
        self._counters = MySqlCounters(self._server, self._meta, self._state)
        self._log = MySqlLog(self._server, self._database, self._counters)
        self._put = PutStatements(self._server, self._meta, self._database, clock_us)
        self._dictionaries_of_puts = DictionariesOfPuts(self._dictionaries)
        known_dictionaries.add_source(self._dictionaries.find, single_node=True)
        self._trim = TrimStatements(self._server, self._meta, self._database, self._put)
        self._erase = EraseStatements(self._server, self._meta, self._database, self._put)
        self._rewrite = RewriteStatements(self._server, self._meta, self._database, self._put)

    @property
    def datastore(self) -> str:
        return self._datastore

    @property
    def shards(self) -> int:
        return self._shards

    @property
    def history(self) -> History:
        return NO_HISTORY

    @property
    def state(self) -> NodeStateTable:
        return self._state

    @property
    def indexes(self) -> MySqlIndexes:
        return self._indexes

    @property
    def dictionaries(self) -> MySqlDictionaries:
        return self._dictionaries

    def commit_group(self, shard: int) -> str:
        check_shard(shard, self._shards)
        return ""

    @property
    def buffer(self) -> NodeBufferTable:
        """Cells of other clusters that wait here."""
        return self._buffer

    def put(self, cells: Sequence[NewCell], terms: WriteTerms | None = None) -> list[PutResult]:
        """As the contract's; with terms, StaleWriter (nothing written) unless their leader epoch is
        the shards' own."""
        shards = shards_of([cell.row_key for cell in cells], self._shards)
        columns = {cell.column_name for cell in cells}
        return self._put.run(
            cells, shards, lambda retired: self._encoding(columns, terms, retired=retired), terms
        )

    # --- reading ----------------------------------------------------------------------------------

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        found: dict[Triple, LocatedCell | None] = {}
        with self._server.connection() as connection:
            for shard, wanted in self._by_shard(
                [(triple.row_key, triple) for triple in triples]
            ).items():
                # Large bodies stay where they are until their turn has come.
                columns = f"{KEY}, IF(LENGTH(body) > {_LARGE_BODY_BYTES}, NULL, body), crc"
                for row in self._rows(
                    connection,
                    shard,
                    columns,
                    f"(row_key, column_name, ref_key) IN ({','.join(map(sql_triple, wanted))})",
                ):
                    found[Triple(row[1], row[2].decode(), int(row[3]))] = (
                        None if row[5] is None else LocatedCell(shard, stored_cell(shard, row))
                    )
            results: list[LocatedCell | None] = []
            page = Page()
            for triple in triples:
                if triple in found and found[triple] is None:
                    shard = shard_of(triple.row_key, self._shards)
                    cells = self._select(
                        connection,
                        shard,
                        f"(row_key, column_name, ref_key) IN ({sql_triple(triple)})",
                    )
                    found[triple] = (
                        LocatedCell(shard, cells[0]) if cells else None
                    )  # it was trimmed meanwhile
                results.append(there := found.get(triple))
                page.take([there.cell.body] if there else ())
                if page.is_full:
                    break
        return results

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        with self._server.connection() as connection:
            results: list[LocatedCell | None] = []
            page = Page()
            for row_key, column_name in keys:
                shard = shard_of(row_key, self._shards)
                condition = (
                    f"row_key = X'{row_key.hex()}' AND column_name ="
                    f" X'{column_name.encode().hex()}' ORDER BY ref_key DESC LIMIT 1"
                )
                cells = self._select(connection, shard, condition)
                results.append(LocatedCell(shard, cells[0]) if cells else None)
                page.take([cell.body for cell in cells])
                if page.is_full:
                    break
        return results

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        rows: list[list[LocatedCell]] = []
        page = Page()
        with self._server.connection() as connection:
            for row_key in row_keys:
                rows.append([])
                after = "" if len(rows) > 1 else after_column
                while True:
                    step = self._row_step(connection, row_key, after)
                    rows[-1] += page.take_up_to_full_of(step)
                    if page.is_full:
                        return rows
                    if len(step) < _COLUMNS_STEP:
                        break
                    after = step[-1].cell.column_name
        return rows

    def _row_step(
        self, connection: Connection[Any], row_key: bytes, after_column: str
    ) -> list[LocatedCell]:
        """The latest cells of the next ``_COLUMNS_STEP`` columns of a row."""
        shard = shard_of(row_key, self._shards)
        key = f"row_key = X'{row_key.hex()}'" + (
            f" AND column_name > X'{after_column.encode().hex()}'" if after_column else ""
        )
        latest = (
            f"SELECT column_name, MAX(ref_key) FROM {self._database(shard)}.cell WHERE {key} GROUP"
            " BY column_name"
        )
        condition = (
            f"{key} AND (column_name, ref_key) IN ({latest}) ORDER BY column_name LIMIT"
            f" {_COLUMNS_STEP}"
        )
        return [LocatedCell(shard, cell) for cell in self._select(connection, shard, condition)]

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        condition = (
            f"row_key = X'{row_key.hex()}' AND added_id >= {after + 1:d} ORDER BY added_id LIMIT"
            f" {limit:d}"
        )
        with self._server.connection() as connection:
            return self._select(connection, shard_of(row_key, self._shards), condition)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        return self._log.scan(check_shard(shard, self._shards), location, limit)

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        for each in ranges:
            check_shard(each.shard, self._shards)
        return self._log.scan_many(ranges)

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        check_shard(shard, self._shards)
        cells = f"{self._database(shard)}.cell"
        # The index by key is read backwards up to its first entry: as cheap for a row of a million
        # revisions (EXISTS would pass all the lower ref keys).
        newest = (
            f"SELECT newer.ref_key FROM {cells} AS newer WHERE newer.row_key = older.row_key AND"
            f" newer.column_name = older.column_name AND newer.added_id >= {log_start:d} AND"
            f" newer.added_id < {watermark:d} ORDER BY newer.ref_key DESC LIMIT 1"
        )
        sql = (
            f"SELECT older.added_id FROM {cells} AS older WHERE older.added_id >= {start:d} AND"
            f" older.added_id < {end:d} AND older.ref_key < ({newest})"
        )
        with self._server.connection() as connection:
            return {int(added_id) for (added_id,) in query(connection, sql)}

    def locate(self, shard: int, created_at_us: int) -> int:
        check_shard(shard, self._shards)
        with self._server.connection() as connection:
            low, high = map(
                int, self._counters.fields_of(connection, shard, "log_start, next_added_id")
            )
            # created_at never goes back within a shard (E4): a binary search by id needs no index
            # on it.
            while low < high:
                middle = (low + high) // 2
                sql = f"SELECT added_id, created_at >= {sql_moment(created_at_us)} FROM {self._database(shard)}.cell WHERE added_id >= {middle} AND added_id < {high} ORDER BY added_id LIMIT 1"  # noqa: E501
                rows = query(connection, sql)
                if not rows or int(rows[0][1]):
                    high = middle
                else:
                    low = int(rows[0][0]) + 1
            # What was trimmed away during the search was below the place looked for, or was it:
            # then the log begins behind it now.
            return max(low, self._counters.log_start(connection, shard))

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        return {
            shard: (head.leader_epoch, head.next_added_id) for shard, head in self.heads().items()
        }

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        return self._counters.heads(
            shards if shards is None else [check_shard(shard, self._shards) for shard in shards]
        )

    @property
    def connected_at_s(self) -> float:
        """When the youngest connection was begun, by the monotonic clock."""
        return self._server.opened_at_s

    def expect(self, cluster: str, history_id: str) -> None:
        """From now on only connections are used that have reached a server of this cluster and
        history. A name or an address may lead to another server at any time."""
        if self._belongs_to != (cluster, history_id):
            self._belongs_to = cluster, history_id
            self._server.on_open = partial(
                self._guard.check_server, cluster=cluster, history_id=history_id
            )
            self._server.drop_idle()

    def settle(self, terms: WriteTerms) -> None:
        """Comes back when a write under these terms would be acknowledged. Raises
        StorageUnavailable, StaleWriter."""
        with self._server.connection() as connection:
            self._guard.settle(connection, terms)

    def look(self, state_key: str, seen: int | None) -> Look:
        """Heads, where they have changed since the token ``seen``, and a state entry."""
        return self._counters.look(state_key, seen)

    def promised_epoch(self, history_id: str) -> int:
        """The highest epoch of a promotion that the node was asked to remember; -1 when none."""
        return read_promise(self._server, promised_database(self._datastore), history_id)

    def change_token(self) -> int:
        return self._counters.change_token()

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self.heads(shards).items()}

    def trim(
        self,
        shard: int,
        below: int,
        cells_max: int = TRIM_STEP_CELLS,
        terms: WriteTerms | None = None,
    ) -> int:
        """As the contract's; with terms, StaleWriter (nothing done) unless their leader epoch is
        the shard's own."""
        return self._trim.run(check_shard(shard, self._shards), below, cells_max, terms)

    def erase(
        self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS, terms: WriteTerms | None = None
    ) -> ErasedStep:
        """As the contract's; with terms, StaleWriter (nothing done) unless their leader epoch is
        the shard's own."""
        return self._erase.run(row_key, shard_of(row_key, self._shards), cells_max, terms)

    def kept_shards(self) -> list[int]:
        """Shards that have left this server's cluster, or are about to, and of which it has rows
        still."""
        with self._server.connection() as connection:
            return [
                int(shard)
                for (shard,) in query(
                    connection, f"SELECT shard FROM {self._meta}.shard_leaving ORDER BY shard"
                )
            ]

    def settle_puts(self, shard: int, terms: WriteTerms | None = None) -> int:
        return self._rewrite.settle(check_shard(shard, self._shards), terms)

    def bodies_named(self, shard: int, prefix: bytes, location: int, limit: int) -> NamedBodies:
        return self._rewrite.named(check_shard(shard, self._shards), prefix, location, limit)

    def replace_bodies(
        self,
        shard: int,
        cells: Sequence[tuple[StoredCell, bytes]],
        terms: WriteTerms | None = None,
    ) -> int:
        """As the contract's, under terms."""
        return self._rewrite.replace(check_shard(shard, self._shards), cells, terms)

    def bodies_with(self, prefix: bytes) -> dict[str, int]:
        return {f"shard {shard}": count for shard, count in self._rewrite.count(prefix).items()}

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        check_shard(shard, self._shards)
        sql = (
            f"SELECT leader_epoch, first_added_id FROM {self._meta}.leader_epoch WHERE shard ="
            f" {shard} ORDER BY leader_epoch"
        )
        with self._server.connection() as connection:
            return [(int(epoch), int(first)) for epoch, first in query(connection, sql)]

    def columns(self) -> list[str]:
        with self._server.connection() as connection:
            rows = query(
                connection, f"SELECT column_name FROM {self._meta}.column_seen ORDER BY column_name"
            )
        return [name.decode() for (name,) in rows]

    def abort(self) -> None:
        """Cuts off calls under way, which fail as when the network does. Later calls work."""
        self._server.abort()

    def close(self) -> None:
        known_dictionaries.remove_source(self._dictionaries.find)
        self._server.close()

    # --- inside -----------------------------------------------------------------------------------

    def _encoding(
        self, columns: Collection[str], terms: WriteTerms | None, *, retired: bool
    ) -> Encoding:
        """How the bodies of a put to these columns under these terms are encoded. ``retired``: a
        dictionary was retired since this process looked. Raises StorageUnavailable."""
        if retired:
            self._dictionaries_of_puts.forget()
        dictionaries = (
            self._dictionaries_of_puts.under(terms and terms.leader_epoch)
            if self._codec == DEFAULT_CODEC
            else {}
        )
        taken = frozenset(
            dictionaries[name].dictionary.dictionary_id for name in columns if name in dictionaries
        )
        return Encoding(lambda cells: encode_cells(cells, dictionaries, self._codec), taken)

    def _check_server(self) -> None:
        with self._server.connection() as connection:
            refuse(self._server, check_server(connection))

    def _check_tables(self, layout: Layout) -> None:
        with self._server.connection() as connection:
            refuse(self._server, check_tables(connection, layout))

    def _by_shard(self, keyed: Sequence[tuple[bytes, Triple]]) -> dict[int, list[Triple]]:
        grouped: dict[int, list[Triple]] = {}
        for shard, (_, triple) in zip(
            shards_of([row_key for row_key, _ in keyed], self._shards), keyed, strict=True
        ):
            grouped.setdefault(shard, []).append(triple)
        return grouped

    def _rows(
        self, connection: Connection[Any], shard: int, columns: str, condition: str
    ) -> Sequence[Any]:
        return query(
            connection, f"SELECT {columns} FROM {self._database(shard)}.cell WHERE {condition}"
        )

    def _select(self, connection: Connection[Any], shard: int, condition: str) -> list[StoredCell]:
        return plain_cells(connection, shard, f"{self._database(shard)}.cell", f"WHERE {condition}")
