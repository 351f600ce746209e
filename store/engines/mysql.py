"""An engine over one MySQL or MariaDB master: a database per shard, one meta database with the counters. Promises E1–E23.

Log scans are framed: the server joins the fields of a cell, and all cells of a long scan, into one value of length-prefixed fields, which is taken
apart here. That is four times as fast as fetching rows through a pure-Python driver, and keeps the driver the one that installs everywhere.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from pymysql.connections import Connection

from store.body_codec import DEFAULT_CODEC, encode_cells
from store.cells import NewCell, PutResult, StoredCell, Triple
from store.clusters.buffer_table import BufferTable
from store.dictionaries import known
from store.engines.contract import ErasedStep, Head, LocatedCell, LogRange, Look, Replica, StateTable, WriteTerms
from store.engines.dictionary_contract import DictionariesOfPuts
from store.engines.log_start import check_scan
from store.engines.mysql_buffer import MySqlBuffer
from store.engines.mysql_checks import check_server, check_tables, refuse
from store.engines.mysql_connections import MySqlServer, query
from store.engines.mysql_dictionaries import MySqlDictionaries
from store.engines.mysql_erase import EraseStatements
from store.engines.mysql_index import MySqlIndexes
from store.engines.mysql_migrations import Layout, check_schema, migrate
from store.engines.mysql_put import Encode, PutStatements, sql_moment, sql_triple
from store.engines.mysql_state import MySqlState
from store.engines.mysql_trim import TrimStatements
from store.errors import DataDamaged, ShardMoving, Trimmed
from store.limits import ADDED_ID_MAX, ERASE_STEP_CELLS, READ_KEYS_MAX, SCAN_BYTES_MAX, TRIM_STEP_CELLS
from store.sharding import check_shard, check_shard_count, shard_of, shards_of

_SCAN_STEP: Final = 2_000
"""Rows in one framed answer: its 64 MB (``group_concat_max_len``) hold them at 32 kB each; larger ones are fetched row by row."""

_ROWS_MAX: Final = 200
"""Cells up to which a frame per row is quicker than all joined, which costs the server some half a millisecond before the first."""

_FRAME: Final = struct.Struct(">Q16sqQHI")
_EPOCH_WEIGHT: Final = 1 << 32
"""Of a leader epoch in the change token, a weighted sum of all counters. They only rise, so it changes with any of them; on a node that was cloned
after it lost a tail, ids have fallen and epochs have risen, which must not cancel out."""

_SHARD_WEIGHT: Final = 1 << 64
"""Of a CRC of each shard's number in the change token: a shard that has come, or gone, changes it whatever its counters say."""

_CELL: Final = "added_id, row_key, column_name, ref_key, CAST(UNIX_TIMESTAMP(created_at) * 1000000 AS UNSIGNED), body"
_MICROSECONDS: Final = "CAST(UNIX_TIMESTAMP({0}) * 1000000 AS UNSIGNED)"


def _big_endian(expression: str, size: int) -> str:
    return f"UNHEX(LPAD(HEX({expression}), {2 * size}, '0'))"


_FRAMED: Final = (
    f"CONCAT({_big_endian('added_id', 8)}, row_key, {_big_endian('ref_key', 8)}, {_big_endian(_MICROSECONDS.format('created_at'), 8)}, "
    f"{_big_endian('LENGTH(column_name)', 2)}, {_big_endian('LENGTH(body)', 4)}, column_name, body)"
)


class MySqlEngine:
    """See the module. The engine closes ``server``. ``create``: makes the databases where they are missing, for the shards ``held`` (all, when not given).

    Raises ProtectData for storage of another shape (E13), or where there is none and ``create`` is not set, and for a server that would lose cells.
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
        self._state = MySqlState(self._server, self._meta)
        self._buffer = MySqlBuffer(self._server, self._meta)
        self._indexes = MySqlIndexes(self._server, self._meta, self._database)
        counters = f"{self._meta}.shard_counter"
        # One value for all counters: taking thousands of rows apart costs the driver ten times as much as splitting a text.
        fields = ("shard", "log_start", "next_added_id", "leader_epoch + epoch_base", _MICROSECONDS.format("last_created_at"), "erasures")
        self._heads = f"SELECT GROUP_CONCAT(CONCAT_WS(',', {', '.join(fields)}) SEPARATOR ';') FROM {counters}"
        weighted = f"next_added_id + log_start + erasures + (leader_epoch + epoch_base) * {_EPOCH_WEIGHT} + CRC32(shard) * {_SHARD_WEIGHT}"
        self._token = f"SELECT COALESCE(SUM({weighted}), 0) FROM {counters}"
        self._unchanged = f"SELECT '' FROM {counters} LIMIT 1"
        self._put = PutStatements(self._server, self._meta, self._database, clock_us)
        self._dictionaries_of_puts = DictionariesOfPuts(self._dictionaries)
        known.add_source(self._dictionaries.find, single_node=True)
        self._trim = TrimStatements(self._server, self._meta, self._database, self._put)
        self._erase = EraseStatements(self._server, self._meta, self._database, self._put)

    @property
    def datastore(self) -> str:
        return self._datastore

    @property
    def shards(self) -> int:
        return self._shards

    @property
    def state(self) -> StateTable:
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
    def buffer(self) -> BufferTable:
        """Cells of other clusters that wait here (design §2.8)."""
        return self._buffer

    def put(self, cells: Sequence[NewCell], terms: WriteTerms | None = None) -> list[PutResult]:
        """As the contract's; with terms, StaleWriter (nothing written) unless their leader epoch is the shards' own."""
        shards = shards_of([cell.row_key for cell in cells], self._shards)
        return self._put.run(cells, shards, lambda: self._encoding(terms), terms)

    # --- reading ---------------------------------------------------------------------------------------------------------

    def get(self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER) -> list[LocatedCell | None]:
        found: dict[Triple, LocatedCell] = {}
        with self._server.connection() as connection:
            for shard, wanted in self._by_shard([(triple.row_key, triple) for triple in triples]).items():
                condition = f"(row_key, column_name, ref_key) IN ({','.join(map(sql_triple, wanted))})"
                for cell in self._select(connection, shard, condition):
                    found[Triple(cell.row_key, cell.column_name, cell.ref_key)] = LocatedCell(shard, cell)
        return [found.get(triple) for triple in triples]

    def latest(self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER) -> list[LocatedCell | None]:
        with self._server.connection() as connection:
            results: list[LocatedCell | None] = []
            for row_key, column_name in keys:
                shard = shard_of(row_key, self._shards)
                condition = f"row_key = X'{row_key.hex()}' AND column_name = X'{column_name.encode().hex()}' ORDER BY ref_key DESC LIMIT 1"
                cells = self._select(connection, shard, condition)
                results.append(LocatedCell(shard, cells[0]) if cells else None)
        return results

    def row(self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER) -> list[list[LocatedCell]]:
        with self._server.connection() as connection:
            rows: list[list[LocatedCell]] = []
            for row_key in row_keys:
                shard = shard_of(row_key, self._shards)
                key = f"X'{row_key.hex()}'"
                latest = f"SELECT column_name, MAX(ref_key) FROM {self._database(shard)}.cell WHERE row_key = {key} GROUP BY column_name"
                condition = f"row_key = {key} AND (column_name, ref_key) IN ({latest}) ORDER BY column_name"
                rows.append([LocatedCell(shard, cell) for cell in self._select(connection, shard, condition)])
        return rows

    def row_cells(self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX) -> list[StoredCell]:
        condition = f"row_key = X'{row_key.hex()}' AND added_id >= {after + 1:d} ORDER BY added_id LIMIT {limit:d}"
        with self._server.connection() as connection:
            return self._select(connection, shard_of(row_key, self._shards), condition)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        check_shard(shard, self._shards)
        cells: list[StoredCell] = []
        scanned_bytes = 0
        with self._server.connection() as connection:
            while len(cells) < limit:
                begin = cells[-1].added_id + 1 if cells else location
                step = self._scan_step(connection, shard, begin, min(_SCAN_STEP, limit - len(cells)))
                try:
                    check_scan(shard, begin, step, lambda: self._log_start(connection, shard))
                except Trimmed:
                    if cells:
                        return cells  # they were there when they were read; whoever goes on behind them is told
                    raise
                for cell in step:
                    scanned_bytes += len(cell.body)
                    if scanned_bytes > SCAN_BYTES_MAX and cells:
                        return cells
                    cells.append(cell)
                if len(step) < _SCAN_STEP:
                    break
        return cells

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        found: dict[int, list[StoredCell]] = {}
        together: list[int] = []
        cells = 0
        for index, each in enumerate(ranges):
            if each.limit > _ROWS_MAX:
                found[index] = self.scan(*each)
                continue
            if cells + each.limit > _SCAN_STEP:
                found.update(self._scan_together(ranges, together))
                together, cells = [], 0
            together.append(index)
            cells += each.limit
        found.update(self._scan_together(ranges, together))
        return [found[index] for index in range(len(ranges))]

    def superseded(self, shard: int, start: int, end: int, log_start: int, watermark: int) -> set[int]:
        check_shard(shard, self._shards)
        cells = f"{self._database(shard)}.cell"
        # The index by key is read backwards up to its first entry: as cheap for a row of a million revisions (EXISTS would pass all the lower ref keys).
        newest = (
            f"SELECT newer.ref_key FROM {cells} AS newer WHERE newer.row_key = older.row_key AND newer.column_name = older.column_name"
            f" AND newer.added_id >= {log_start:d} AND newer.added_id < {watermark:d} ORDER BY newer.ref_key DESC LIMIT 1"
        )
        sql = f"SELECT older.added_id FROM {cells} AS older WHERE older.added_id >= {start:d} AND older.added_id < {end:d} AND older.ref_key < ({newest})"
        with self._server.connection() as connection:
            return {int(added_id) for (added_id,) in query(connection, sql)}

    def locate(self, shard: int, created_at_us: int) -> int:
        check_shard(shard, self._shards)
        with self._server.connection() as connection:
            low, high = map(int, self._counter(connection, shard, "log_start, next_added_id"))
            # created_at never goes back within a shard (E4): a binary search by id needs no index on it.
            while low < high:
                middle = (low + high) // 2
                sql = f"SELECT added_id, created_at >= {sql_moment(created_at_us)} FROM {self._database(shard)}.cell WHERE added_id >= {middle} AND added_id < {high} ORDER BY added_id LIMIT 1"  # noqa: E501
                rows = query(connection, sql)
                if not rows or int(rows[0][1]):
                    high = middle
                else:
                    low = int(rows[0][0]) + 1
            # What was trimmed away during the search was below the place looked for, or was it: then the log begins behind it now.
            return max(low, self._log_start(connection, shard))

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        wanted = "" if shards is None else f" WHERE shard IN ({','.join(str(check_shard(shard, self._shards)) for shard in shards)})"
        with self._server.connection() as connection:
            [(joined,)] = query(connection, self._heads + wanted)
        return _heads(joined)

    def look(self, state_key: str, seen: int | None) -> Look:
        """One statement for all that a watcher asks about; ``seen`` is the token of the look before.

        Whoever follows a log looks at every node several times for each commit, and each answer more costs the driver as much as the first one: so it is one
        row. Its text is empty when there are counters and none has changed, NULL when there are none.
        """
        changed = "" if seen is None else f" WHERE ({self._token}) <> {seen}"
        sql = f"SELECT ({self._state.select_value(state_key)}), COALESCE(({self._heads}{changed}), ({self._unchanged}))"
        with self._server.connection() as connection:
            [(entry, joined)] = query(connection, sql)
        if seen is not None and joined is not None and not joined:
            return Look(entry, seen, None)
        heads = _heads(joined)
        # From the same rows, not from another look at them: what changes in between is found by the next look.
        return Look(entry, sum(_weighted(shard, head) for shard, head in heads.items()), heads)

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self.heads(shards).items()}

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS, terms: WriteTerms | None = None) -> int:
        """As the contract's; with terms, StaleWriter (nothing done) unless their leader epoch is the shard's own."""
        return self._trim.run(check_shard(shard, self._shards), below, cells_max, terms)

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS, terms: WriteTerms | None = None) -> ErasedStep:
        """As the contract's; with terms, StaleWriter (nothing done) unless their leader epoch is the shard's own."""
        return self._erase.run(row_key, shard_of(row_key, self._shards), cells_max, terms)

    def kept_shards(self) -> list[int]:
        """Shards that have left this server's cluster, or are about to, and of which it has rows still."""
        with self._server.connection() as connection:
            return [int(shard) for (shard,) in query(connection, f"SELECT shard FROM {self._meta}.shard_leaving ORDER BY shard")]

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        check_shard(shard, self._shards)
        sql = f"SELECT leader_epoch, first_added_id FROM {self._meta}.leader_epoch WHERE shard = {shard} ORDER BY leader_epoch"
        with self._server.connection() as connection:
            return [(int(epoch), int(first)) for epoch, first in query(connection, sql)]

    def columns(self) -> list[str]:
        with self._server.connection() as connection:
            rows = query(connection, f"SELECT column_name FROM {self._meta}.column_seen ORDER BY column_name")
        return [name.decode() for (name,) in rows]

    def change_token(self) -> int:
        with self._server.connection() as connection:
            [(token,)] = query(connection, self._token)
        return int(token or 0)

    def abort(self) -> None:
        """Cuts off calls under way, which fail as when the network does. Later calls work."""
        self._server.abort()

    def close(self) -> None:
        known.remove_source(self._dictionaries.find)
        self._server.close()

    # --- inside ----------------------------------------------------------------------------------------------------------

    def _encoding(self, terms: WriteTerms | None) -> Encode:
        """How the bodies of a put under these terms are encoded. Raises StorageUnavailable."""
        dictionaries = self._dictionaries_of_puts.under(terms and terms.leader_epoch) if self._codec == DEFAULT_CODEC else {}
        return lambda cells: encode_cells(cells, dictionaries, self._codec)

    def _check_server(self) -> None:
        with self._server.connection() as connection:
            refuse(self._server, check_server(connection))

    def _check_tables(self, layout: Layout) -> None:
        with self._server.connection() as connection:
            refuse(self._server, check_tables(connection, layout))

    def _by_shard(self, keyed: Sequence[tuple[bytes, Triple]]) -> dict[int, list[Triple]]:
        grouped: dict[int, list[Triple]] = {}
        for shard, (_, triple) in zip(shards_of([row_key for row_key, _ in keyed], self._shards), keyed, strict=True):
            grouped.setdefault(shard, []).append(triple)
        return grouped

    def _select(self, connection: Connection[Any], shard: int, condition: str) -> list[StoredCell]:
        rows = query(connection, f"SELECT {_CELL} FROM {self._database(shard)}.cell WHERE {condition}")
        return [StoredCell(int(added_id), key, name.decode(), int(ref_key), int(at), body) for added_id, key, name, ref_key, at, body in rows]

    def _scan_step(self, connection: Connection[Any], shard: int, location: int, limit: int) -> list[StoredCell]:
        table = f"{self._database(shard)}.cell"
        if limit <= _ROWS_MAX:
            return _unframe(b"".join([frame for (frame,) in query(connection, f"SELECT {_FRAMED} FROM {table} {_from(location, limit)}")]))
        # Over a range of ids, for a derived table with a LIMIT is written to disk first.
        end = min(location, ADDED_ID_MAX) + limit
        sql = f"SELECT COUNT(*), GROUP_CONCAT({_FRAMED} SEPARATOR '') FROM {table} WHERE added_id >= {min(location, ADDED_ID_MAX)} AND added_id < {end}"
        [(count, frames)] = query(connection, sql)
        cells = _unframe(frames or b"")
        if cells and len(cells) == int(count):
            return sorted(cells, key=_added_id)
        # The joined value was cut at its limit (rows of tens of kilobytes), or no id of that range is there: plain rows, then.
        return self._select(connection, shard, _from(location, limit).removeprefix("WHERE "))

    def _scan_together(self, ranges: Sequence[LogRange], indexes: Sequence[int]) -> dict[int, list[StoredCell]]:
        """The ranges of these indexes in one answer, a row per cell."""
        if not indexes:
            return {}
        selects = [
            f"(SELECT {index}, {_FRAMED} FROM {self._database(check_shard(ranges[index].shard, self._shards))}.cell {_from(*ranges[index][1:])})"
            for index in indexes
        ]
        frames: dict[int, list[bytes]] = {index: [] for index in indexes}
        with self._server.connection() as connection:
            for index, frame in query(connection, " UNION ALL ".join(selects)):
                frames[int(index)].append(frame)
            cells = {index: sorted(_unframe(b"".join(found)), key=_added_id) for index, found in frames.items()}
            for index, found in cells.items():
                shard, location, limit = ranges[index]
                if limit > 0:
                    check_scan(shard, location, found, lambda shard=shard: self._log_start(connection, shard))  # type: ignore[misc]
        return {index: _within_scan_bytes(found) for index, found in cells.items()}

    def _log_start(self, connection: Connection[Any], shard: int) -> int:
        [start] = self._counter(connection, shard, "log_start")
        return int(start)

    def _counter(self, connection: Connection[Any], shard: int, fields: str) -> Sequence[Any]:
        """Raises ShardMoving when the counter is not there."""
        rows = query(connection, f"SELECT {fields} FROM {self._meta}.shard_counter WHERE shard = {shard}")
        if not rows:
            raise ShardMoving(f"{self._server} does not hold shard {shard}")
        return rows[0]


_added_id = itemgetter(0)


def _from(location: int, limit: int) -> str:
    """The rest of a statement over a shard's cells: so many from a location on, in order."""
    return f"WHERE added_id >= {min(location, ADDED_ID_MAX)} ORDER BY added_id LIMIT {limit}"


def _within_scan_bytes(cells: list[StoredCell]) -> list[StoredCell]:
    """The first of them, as many as one scan may give."""
    scanned_bytes = 0
    for index, cell in enumerate(cells):
        scanned_bytes += len(cell.body)
        if scanned_bytes > SCAN_BYTES_MAX and index:
            return cells[:index]
    return cells


def _weighted(shard: int, head: Head) -> int:
    """A shard's part of the change token."""
    crc = zlib.crc32(str(shard).encode())
    return head.next_added_id + head.log_start + head.erasures + head.leader_epoch * _EPOCH_WEIGHT + crc * _SHARD_WEIGHT


def _heads(joined: str | None) -> dict[int, Head]:
    """Without one when there are no counters."""
    heads = {}
    for each in joined.split(";") if joined else ():
        shard, log_start, next_added_id, leader_epoch, created_at_us, erasures = map(int, each.split(","))
        heads[shard] = Head(log_start, next_added_id, next_added_id, leader_epoch, created_at_us, erasures)
    return heads


def _unframe(frames: bytes) -> list[StoredCell]:
    """The whole cells in a framed answer; a cut last one is left out."""
    cells: list[StoredCell] = []
    position, end, head_bytes = 0, len(frames), _FRAME.size
    while position + head_bytes <= end:
        added_id, row_key, ref_key, created_at_us, name_bytes, body_bytes = _FRAME.unpack_from(frames, position)
        name_start = position + head_bytes
        body_start = name_start + name_bytes
        position = body_start + body_bytes
        if position > end:
            break
        cells.append(StoredCell(added_id, row_key, frames[name_start:body_start].decode(), ref_key, created_at_us, frames[body_start:position]))
    if any(cell.added_id > ADDED_ID_MAX for cell in cells):
        raise DataDamaged("a log scan's frames do not hold added_ids")
    return cells
