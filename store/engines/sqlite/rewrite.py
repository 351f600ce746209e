"""Stored bodies of an embedded store in another encoding (E27)."""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.store.cells.body_codec import dictionaries_named
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.dictionaries import replacement_retired
from cellfeed.store.engines.contract.values import NamedBodies
from cellfeed.store.engines.sqlite import log
from cellfeed.store.engines.sqlite.cells import counter_of, replace_body
from cellfeed.store.engines.sqlite.dictionaries import are_in_use
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.errors import Trimmed


def settle_puts(file: SqliteFile, shard: int) -> int:
    """The shard's next added_id, once no put is under way: the file has one writer at a time."""
    with file.write() as connection:
        [next_added_id] = counter_of(connection, shard, "next_added_id")
    return int(next_added_id)


def bodies_named(
    file: SqliteFile, shard: int, prefix: bytes, location: int, limit: int
) -> NamedBodies:
    """As the contract's."""
    try:
        with file.read() as connection:
            cells = log.scan(connection, shard, location, limit)
    except Trimmed:
        with file.read() as connection:
            [location] = counter_of(connection, shard, "log_start")
            cells = log.scan(connection, shard, location, limit)
    named = [cell for cell in cells if cell.body.startswith(prefix)]
    return NamedBodies(named, cells[-1].added_id + 1 if cells else None)


def replace_bodies(file: SqliteFile, shard: int, cells: Sequence[tuple[StoredCell, bytes]]) -> int:
    """As the contract's; each body is read back."""
    with file.write() as connection:
        if not are_in_use(connection, dictionaries_named(body for _, body in cells)):
            raise replacement_retired(file.path, shard)
        return sum(replace_body(connection, shard, cell, body) for cell, body in cells)


def bodies_with(file: SqliteFile, prefix: bytes) -> dict[str, int]:
    """As the contract's."""
    sql = "SELECT count(*) FROM cell WHERE substr(body, 1, ?) = ?"
    with file.read() as connection:
        [(count,)] = connection.execute(sql, (len(prefix), prefix)).fetchall()
    return {str(file.path): int(count)} if count else {}
