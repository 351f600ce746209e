"""The buffer table of a cluster on MySQL; see :mod:`cellfeed.store.engines.contract.buffer`.

Values are X'..' literals made here from bytes and numbers; names are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.body_encoding import encode_bodies
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.engines.contract.buffer import BufferCount, BufferedCell
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.cells import parts
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.limits import BATCH_BYTES_MAX

_KEYS_MAX: Final = 500
"""Keys per statement: keeps the optimiser on the unique key."""


class MySqlBuffer:
    """:class:`cellfeed.store.engines.contract.buffer.NodeBufferTable` in the meta database ``meta``
    of one server. Every write is guarded (:mod:`cellfeed.store.engines.mysql.guard`), as the cells
    are that it may have to answer for. Raises StorageUnavailable and StaleWriter (nothing written),
    OutcomeUnknown."""

    def __init__(self, server: MySqlServer, meta: str) -> None:
        self._server = server
        self._guard = Guard(server, meta)
        self._table = f"{meta}.buffered_cell"

    def add(self, owner: str, cells: Sequence[NewCell], terms: WriteTerms | None = None) -> None:
        rows = [
            f"(X'{owner.encode().hex()}',X'{cell.row_key.hex()}',"
            f"X'{cell.column_name.encode().hex()}',{cell.ref_key},X'{body.hex()}',NOW(6))"
            for cell, body in zip(
                cells, encode_bodies([cell.body_json for cell in cells]), strict=True
            )
        ]
        head = (
            f"INSERT INTO {self._table} (owner,row_key,column_name,ref_key,body,buffered_at)"
            " VALUES "
        )
        self._guard.commit(
            [
                f"{head}{','.join(part)} ON DUPLICATE KEY UPDATE owner = owner"
                for part in parts(rows)
            ],
            terms,
        )

    def accept(
        self, owner: str, cells: Sequence[NewCell], terms: WriteTerms | None = None
    ) -> list[bool]:
        with self._server.connection() as connection:
            bodies = {
                key: decode_body(body) for key, _, body in self._found(connection, owner, cells)
            }
            same = [bodies.get(cell.triple) == cell.body_json for cell in cells]
        if accepted := [cell for cell, is_same in zip(cells, same, strict=True) if is_same]:
            self._guard.commit(
                [
                    f"UPDATE {self._table} SET accepted = 1 WHERE {condition}"
                    for condition in _conditions(owner, accepted)
                ],
                terms,
            )
        return same

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        due = (
            f"FROM {self._table} WHERE owner = X'{owner.encode().hex()}' AND buffer_id > {after_id}"
            f" AND conflict IS NULL AND buffered_at <= NOW(6) - INTERVAL {int(older_than_s * 1e6)}"
            " MICROSECOND"
        )
        with self._server.connection() as connection:
            sizes = query(
                connection, f"SELECT buffer_id, LENGTH(body) {due} ORDER BY buffer_id LIMIT {limit}"
            )
            if not sizes:
                return []
            last = _up_to(
                BATCH_BYTES_MAX, [(int(buffer_id), int(size)) for buffer_id, size in sizes]
            )
            wanted = (
                "buffer_id, row_key, column_name, ref_key, body, CAST(UNIX_TIMESTAMP(buffered_at) *"
                " 1000000 AS UNSIGNED), accepted"
            )
            rows = query(
                connection,
                f"SELECT {wanted} {due} AND buffer_id <= {last} ORDER BY buffer_id LIMIT {limit}",
            )
        found: list[BufferedCell] = []
        decoded_bytes = 0
        for buffer_id, row_key, column, ref_key, encoded, at_us, accepted in rows:
            body = decode_body(encoded)
            decoded_bytes += len(body)
            if found and decoded_bytes > BATCH_BYTES_MAX:
                break
            cell = NewCell(row_key, column.decode(), int(ref_key), body)
            found.append(BufferedCell(int(buffer_id), owner, cell, int(at_us), bool(int(accepted))))
        return found

    def remove(self, buffer_ids: Sequence[int], terms: WriteTerms | None = None) -> None:
        if buffer_ids:
            self._guard.commit(
                [
                    f"DELETE FROM {self._table} WHERE buffer_id IN"
                    f" ({','.join(map(str, buffer_ids))})"
                ],
                terms,
            )

    def remove_copies(
        self, owner: str, cells: Sequence[NewCell], terms: WriteTerms | None = None
    ) -> None:
        with self._server.connection() as connection:
            bodies = {
                key: (buffer_id, decode_body(body))
                for key, buffer_id, body in self._found(connection, owner, cells)
            }
            ids = [
                bodies[cell.triple][0]
                for cell in cells
                if bodies.get(cell.triple, (0, b""))[1] == cell.body_json
            ]
        if ids:
            self._guard.commit(
                [
                    f"DELETE FROM {self._table} WHERE accepted = 0 AND buffer_id IN"
                    f" ({','.join(map(str, ids))})"
                ],
                terms,
            )

    def remove_row(self, owner: str, row_key: bytes, terms: WriteTerms | None = None) -> None:
        self._guard.commit(
            [
                f"DELETE FROM {self._table} WHERE owner = X'{owner.encode().hex()}' AND row_key ="
                f" X'{row_key.hex()}'"
            ],
            terms,
        )

    def mark_conflict(self, buffer_id: int, reason: str, terms: WriteTerms | None = None) -> None:
        self._guard.commit(
            [
                f"UPDATE {self._table} SET conflict = X'{reason[:1000].encode().hex()}' WHERE"
                f" buffer_id = {buffer_id}"
            ],
            terms,
        )

    def counts(self) -> list[BufferCount]:
        sql = (
            "SELECT owner, COUNT(*), SUM(accepted), SUM(conflict IS NOT NULL),"
            f" CAST(UNIX_TIMESTAMP(MIN(buffered_at)) * 1000000 AS UNSIGNED) FROM {self._table}"
            " GROUP BY owner ORDER BY owner"
        )
        with self._server.connection() as connection:
            return [
                BufferCount(owner.decode(), *map(int, rest))
                for owner, *rest in query(connection, sql)
            ]

    def _found(
        self, connection: Connection[Any], owner: str, cells: Sequence[NewCell]
    ) -> Iterator[tuple[Any, int, bytes]]:
        for condition in _conditions(owner, cells):
            sql = (
                f"SELECT buffer_id, row_key, column_name, ref_key, body FROM {self._table} WHERE"
                f" {condition}"
            )
            for buffer_id, row_key, column, ref_key, body in query(connection, sql):
                yield (row_key, column.decode(), int(ref_key)), int(buffer_id), body


def _up_to(bytes_max: int, sizes: Sequence[tuple[int, int]]) -> int:
    """The last id of those, from the first on, whose sizes together are within the limit; the first
    one in any case."""
    last, total = sizes[0][0], 0
    for number, size in sizes:
        total += size
        if total > bytes_max:
            break
        last = number
    return last


def _conditions(owner: str, cells: Sequence[NewCell]) -> Iterator[str]:
    for start in range(0, len(cells), _KEYS_MAX):
        keys = ",".join(
            f"(X'{cell.row_key.hex()}',X'{cell.column_name.encode().hex()}',{cell.ref_key})"
            for cell in cells[start : start + _KEYS_MAX]
        )
        yield f"owner = X'{owner.encode().hex()}' AND (row_key, column_name, ref_key) IN ({keys})"
