"""An engine over one MySQL or MariaDB master: a database per shard, one meta database with the
counters. Promises E1–E28.

Statements are in a module for each concern: puts, reads by key, the log's scans, counters, trims,
erasures, indexes, state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import DEFAULT_CODEC, encode_cells
from cellfeed.store.cells.cell import NewCell, PutResult, StoredCell, Triple
from cellfeed.store.cells.sharding import check_shard, check_shard_count, shard_of, shards_of
from cellfeed.store.engines.contract.buffer import NodeBufferTable
from cellfeed.store.engines.contract.dictionaries import DictionariesOfPuts
from cellfeed.store.engines.contract.engine import NodeStateTable
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    LogRange,
    Look,
    NamedBodies,
    Replica,
    WriteTerms,
    changed_since,
)
from cellfeed.store.engines.mysql.buffer import MySqlBuffer
from cellfeed.store.engines.mysql.checks import check_server, check_tables, refuse
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.counters import MySqlCounters
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.erase import EraseStatements
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.index import MySqlIndexes
from cellfeed.store.engines.mysql.key_reads import MySqlKeyReads
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.locked_counters import CounterLocks
from cellfeed.store.engines.mysql.log import MySqlLog
from cellfeed.store.engines.mysql.memory import memory_advice
from cellfeed.store.engines.mysql.migrations import check_schema, migrate
from cellfeed.store.engines.mysql.promises import promised_database, read_promise
from cellfeed.store.engines.mysql.put import Encoding, PutStatements
from cellfeed.store.engines.mysql.rewrite import RewriteStatements
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.engines.mysql.trim import TrimStatements
from cellfeed.store.histories import NO_HISTORY, History
from cellfeed.store.limits import ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS


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
        owned: Sequence[int] | None = None,
        codec: int = DEFAULT_CODEC,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._datastore = datastore
        self._shards = check_shard_count(shards)
        self._codec = codec
        layout = Layout(datastore, shards, owned)
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
        self._keys = MySqlKeyReads(self._server, self._database, self._shards)
        self._log = MySqlLog(self._server, self._database, self._counters)
        counters = CounterLocks(self._server, self._meta, clock_us)
        self._put = PutStatements(self._server, self._meta, self._database, counters)
        self._dictionaries_of_puts = DictionariesOfPuts(self._dictionaries)
        self._dictionaries.on_use = self._dictionaries_of_puts.forget
        known_dictionaries.add_source(self._dictionaries.find, single_node=True)
        self._trim = TrimStatements(self._server, self._meta, self._database, counters)
        self._erase = EraseStatements(self._server, self._meta, self._database, counters)
        self._rewrite = RewriteStatements(self._server, self._meta, self._database, counters)

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
        return self._keys.get(triples)

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        return self._keys.latest(keys)

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        return self._keys.row(row_keys, after_column)

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        return self._keys.row_cells(row_key, after, limit)

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
        return self._log.superseded(shard, start, end, log_start, watermark)

    def locate(self, shard: int, created_at_us: int) -> int:
        return self._log.locate(check_shard(shard, self._shards), created_at_us)

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        return {
            shard: (head.leader_epoch, head.next_added_id) for shard, head in self.heads().items()
        }

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        return self._counters.heads(
            shards if shards is None else [check_shard(shard, self._shards) for shard in shards]
        )

    def heads_since(self, mark: object | None) -> HeadChanges:
        """As the contract's. The token is read before the heads, as in the embedded engine."""
        token, before = self.change_token(), mark if isinstance(mark, HeadChanges) else None
        if before is not None and before.mark == token:
            return HeadChanges({}, before)
        heads = self.heads()
        changed = heads if before is None else changed_since(before.heads, heads)
        return HeadChanges(changed, HeadChanges(heads, token))

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
        """Returns when a write under these terms would be acknowledged. Raises
        StorageUnavailable, StaleWriter."""
        with self._server.connection() as connection:
            self._guard.settle(connection, terms)

    def look(self, state_key: str, seen: object | None) -> Look:
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

    def memory_advice(self) -> str | None:
        """See :mod:`cellfeed.store.engines.mysql.memory`."""
        with self._server.connection() as connection:
            return memory_advice(connection)

    def kept_shards(self) -> list[int]:
        """Shards that have left this server's cluster, or are about to, and whose rows it still
        has."""
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
