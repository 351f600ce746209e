"""An engine over one MySQL or MariaDB master: a database per shard, one meta database with the
counters. Promises E1–E28.

Statements are in a module for each concern: puts, reads by key, the log's scans, counters, trims,
erasures, indexes, state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import DEFAULT_CODEC
from cellfeed.store.cells.cell import NewCell, StoredCell, Triple
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import check_shard, check_shard_count, shard_of, shards_of
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
)
from cellfeed.store.engines.mysql.buffer import MySqlBuffer
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.counters import MySqlCounters
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.encoding import PutEncoding
from cellfeed.store.engines.mysql.erase import EraseStatements
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.index import MySqlIndexes
from cellfeed.store.engines.mysql.key_reads import MySqlKeyReads
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.locked_counters import CounterLocks
from cellfeed.store.engines.mysql.log import MySqlLog
from cellfeed.store.engines.mysql.memory import memory_advice
from cellfeed.store.engines.mysql.open import open_storage
from cellfeed.store.engines.mysql.promises import promised_database, read_promise
from cellfeed.store.engines.mysql.put import PutStatements
from cellfeed.store.engines.mysql.rewrite import RewriteStatements
from cellfeed.store.engines.mysql.role_terms import ServerIdentity
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.engines.mysql.trim import TrimStatements
from cellfeed.store.histories import NO_HISTORY
from cellfeed.store.limits import ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS


class MySqlEngine:
    """See the module. The engine closes ``server``. ``create``: makes the databases where they are
    missing, for the shards ``owned`` (all, when not given). A write under terms raises StaleWriter,
    nothing done, unless their leader epoch is the shards' own.

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
        self.datastore = datastore
        self.history = NO_HISTORY
        self._shards = check_shard_count(shards)
        layout = Layout(datastore, shards, owned)
        self._meta, self._database = layout.meta, layout.database
        self._server = server
        try:
            open_storage(server, layout, create=create)
            self.dictionaries = MySqlDictionaries(server, self._meta)
            self.dictionaries.check()
        except BaseException:
            self._server.close()
            raise
        self._guard = Guard(self._server, self._meta)
        self._identity = ServerIdentity(self._server, self._guard)
        self.state = MySqlState(self._server, self._meta)
        self.buffer = MySqlBuffer(self._server, self._meta)
        self.indexes = MySqlIndexes(self._server, self._meta, self._database, self._shards)
        self._counters = MySqlCounters(self._server, self._meta, self.state)
        self._keys = MySqlKeyReads(self._server, self._database, self._shards)
        self._log = MySqlLog(self._server, self._database, self._counters)
        counters = CounterLocks(self._server, self._meta, clock_us)
        encoding = PutEncoding(self.dictionaries, codec)
        self._put = PutStatements(self._server, self._meta, self._database, counters, encoding)
        known_dictionaries.add_source(self.dictionaries.find, single_node=True)
        self._trim = TrimStatements(self._server, self._meta, self._database, counters)
        self._erase = EraseStatements(self._server, self._meta, self._database, counters)
        self._rewrite = RewriteStatements(self._server, self._meta, self._database, counters)

    @property
    def shards(self) -> int:
        return self._shards

    def commit_group(self, shard: int) -> str:
        check_shard(shard, self._shards)
        return ""

    def put(self, cells: Sequence[NewCell], terms: WriteTerms | None = None) -> list[PutResult]:
        shards = shards_of([cell.row_key for cell in cells], self._shards)
        return self._put.run(cells, shards, terms)

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
        return self._counters.heads_since(mark, self.change_token())

    @property
    def connected_at_s(self) -> float:
        """When the youngest connection was begun, by the monotonic clock."""
        return self._server.opened_at_s

    def expect(self, cluster: str, history_id: str) -> None:
        """From now on only connections are used that have reached a server of this cluster and
        history. A name or an address may lead to another server at any time."""
        self._identity.expect(cluster, history_id)

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
        return read_promise(self._server, promised_database(self.datastore), history_id)

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
        return self._trim.run(check_shard(shard, self._shards), below, cells_max, terms)

    def erase(
        self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS, terms: WriteTerms | None = None
    ) -> ErasedStep:
        return self._erase.run(row_key, shard_of(row_key, self._shards), cells_max, terms)

    def memory_advice(self) -> str | None:
        """See :mod:`cellfeed.store.engines.mysql.memory`."""
        with self._server.connection() as connection:
            return memory_advice(connection)

    def kept_shards(self) -> list[int]:
        """Shards that have left this server's cluster, or are about to, and whose rows it still
        has."""
        sql = f"SELECT shard FROM {self._meta}.shard_leaving ORDER BY shard"
        return [int(shard) for (shard,) in self._server.rows(sql)]

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
        return self._rewrite.replace(check_shard(shard, self._shards), cells, terms)

    def bodies_with(self, prefix: bytes) -> dict[str, int]:
        return {f"shard {shard}": count for shard, count in self._rewrite.count(prefix).items()}

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        check_shard(shard, self._shards)
        return self._counters.leader_epochs(shard)

    def columns(self) -> list[str]:
        sql = f"SELECT column_name FROM {self._meta}.column_seen ORDER BY column_name"
        return [name.decode() for (name,) in self._server.rows(sql)]

    def abort(self) -> None:
        """Cuts off calls under way, which fail as when the network does. Later calls work."""
        self._server.abort()

    def close(self) -> None:
        known_dictionaries.remove_source(self.dictionaries.find)
        self._server.close()
