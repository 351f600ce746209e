"""A shard's log in memory, as a warehouse loader reads it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from cellfeed.bridge.events.envelope import AvroFormat, EventFormat
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.cells.sharding import row_key_text

SHARD = 7


class Log:
    """A shard's log: one cell per id, holes where ``ids`` has none."""

    def __init__(
        self, ids: Sequence[int], event_format: EventFormat | None = None, shard: int = SHARD
    ) -> None:
        event_format = event_format or AvroFormat(1)
        self.records: list[tuple[int, bytes]] = []
        self.cells: list[tuple[int, bytes, str, int, bytes]] = []
        for added_id in ids:
            key = uuid.uuid5(uuid.NAMESPACE_OID, str(added_id // 2)).bytes
            body = b'{"n":%d,"t":"caf\xc3\xa9"}' % added_id
            cell = StoredCell(
                added_id,
                key,
                "BASE" if added_id % 3 else "NOTES",
                added_id - 5,
                1_700_000_000_000_000 + added_id,
                b"",
            )
            self.records.append(
                (added_id, event_format.encode(shard, cell, row_key_text(key), body))
            )
            self.cells.append((added_id, key, cell.column_name, cell.ref_key, body))

    def digest(self, below: int) -> str:
        digest = ShardDigest()
        for cell in self.cells:
            if cell[0] < below:
                digest.add(*cell)
        return digest.hexdigest()

    def from_offset(self, offset: int) -> list[tuple[int, bytes]]:
        return [record for record in self.records if record[0] >= offset]


def table_directory(parent: Path) -> Path:
    directory = parent / uuid.uuid4().hex
    make_table(directory, "trips")
    return directory


def feed(loader: ShardLoader, log: Log, count: int) -> None:
    for offset, value in log.from_offset(loader.next_offset)[:count]:
        assert loader.add(offset, value)


def assert_prefix(directory: Path, log: Log) -> int:
    """The table is the log up to its own position, each cell once, and all files are as they were
    committed; returns the position."""
    table = WarehouseTable(directory)
    table.check()
    position = table.next_ids().get(SHARD, 0)
    expected = [cell for cell in log.cells if cell[0] < position]
    assert [
        (r.added_id, r.row_key, r.column_name, r.ref_key, r.body_json) for r in table.rows(SHARD)
    ] == expected
    assert table.row_count() == len(expected)
    assert table.digests({SHARD: position})[SHARD].hexdigest() == log.digest(position)
    return position
