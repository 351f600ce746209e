"""One shard on its way into the table: records in, commits out. Knows nothing of consumers and
groups.

Exactly once, in short: the position is read from the table's own chain; only records at or behind
it are taken; a file holds everything from the position to the last record taken; and the commit
that moves the position is the commit of the file (:mod:`cellfeed.consumers.warehouse.chain`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cellfeed.bridge.events.envelope import decode_record
from cellfeed.consumers.warehouse.cell_rows import RowBuffer, WarehouseRow
from cellfeed.consumers.warehouse.chain import ShardChain, recover_shard
from cellfeed.consumers.warehouse.layout import CommitRecord, Position, data_file_name
from cellfeed.consumers.warehouse.staging import finish_data_file, stage_data_file
from cellfeed.store.errors import DataDamaged
from cellfeed.store.failpoints import declare, failpoint

declare("warehouse.staging.created")

_NO_HEADERS: Final[Mapping[str, bytes]] = {}


class ShardLoader:
    """Gathers records of one shard and commits them. Opening one finishes the commits that an
    earlier loader of the shard left behind."""

    def __init__(self, directory: Path, shard: int, *, offset_is_added_id: bool = True) -> None:
        self.shard = shard
        self._directory = directory
        self._offset_is_added_id = offset_is_added_id
        self._chain = ShardChain(directory, shard)
        recover_shard(self._chain)
        self._buffer = RowBuffer()
        self._next = self._chain.position

    @property
    def committed(self) -> Position:
        """The end of the table's rows."""
        return self._chain.position

    @property
    def next_offset(self) -> int:
        """The Kafka offset behind the last record taken: where reading continues."""
        return self._next.next_offset

    @property
    def waiting_rows(self) -> int:
        return len(self._buffer.rows)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of memory, roughly, that the rows not yet committed take."""
        return self._buffer.bytes

    def add(
        self,
        offset: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] = _NO_HEADERS,
        timestamp_ms: int = 0,
    ) -> bool:
        """Takes the record at ``offset``; its key, headers and timestamp count where it has no
        value (an erased cell); returns False for one taken already (the client delivered it again).

        Raises DataDamaged for a record that is no cell of this shard or contradicts the log's
        order. Nothing of it is taken then, and nothing behind it may be: the caller stops reading
        the shard.
        """
        if offset < self._next.next_offset:
            return False
        row = decoded_row(self.shard, offset, value, key, headers, timestamp_ms)
        if self._offset_is_added_id and row.added_id != offset:
            raise DataDamaged(
                f"{_place(self.shard, offset)} holds added_id {row.added_id}; in a gateway's topic"
                " the offset is the added_id"
            )
        if row.added_id < self._next.next_id:
            raise DataDamaged(
                f"{_place(self.shard, offset)} holds added_id {row.added_id}, which should have"
                f" come before {self._next.next_id}"
            )
        self._buffer.add(row)
        self._next = Position(row.added_id + 1, offset + 1)
        return True

    def flush(self) -> CommitRecord | None:
        """Commits the waiting rows; returns the commit, or None when there was nothing to commit or
        another loader was faster.

        In the latter case the waiting rows are given up: the other one's commit holds some, the log
        all of them. :attr:`next_offset` goes to the end of the chain, before or behind where it
        was: the caller seeks.
        """
        if not self._buffer.rows:
            return None
        rows = self._buffer.rows
        start, end = self._chain.position, self._next
        name = data_file_name(self.shard, rows[0].added_id, rows[-1].added_id)
        from cellfeed.consumers.warehouse import (
            parquet_rows,
        )  # a large library: loaded for writing files only

        with stage_data_file(self._directory, self.shard) as staged:
            failpoint("warehouse.staging.created")
            parquet_rows.write_rows(rows, staged.file)
            size, sha256 = finish_data_file(staged)
            commit = CommitRecord(
                shard=self.shard,
                start_id=start.next_id,
                first_id=rows[0].added_id,
                last_id=rows[-1].added_id,
                start_offset=start.next_offset,
                next_offset=end.next_offset,
                rows=len(rows),
                file=name,
                staged=staged.path.name,
                file_bytes=size,
                file_sha256=sha256,
            )
            won = self._chain.append(commit)
            if not won:
                staged.discard()
        self._buffer.clear()
        self._next = self._chain.position
        return commit if won else None


def decoded_row(
    shard: int,
    offset: int,
    value: bytes | None,
    key: bytes | None,
    headers: Mapping[str, bytes],
    timestamp_ms: int,
) -> WarehouseRow:
    """The row of a record. Raises DataDamaged for a record that is no cell of the shard."""
    try:
        event = decode_record(shard, key, value, headers, timestamp_ms)
    except Exception as error:
        raise DataDamaged(
            f"{_place(shard, offset)} does not decode: {type(error).__name__}: {error}"
        ) from error
    if event.shard != shard:
        raise DataDamaged(f"{_place(shard, offset)} holds a cell of shard {event.shard}")
    return WarehouseRow(
        shard=shard,
        added_id=event.added_id,
        row_key=event.row_key,
        column_name=event.column_name,
        ref_key=event.ref_key,
        created_at_us=event.created_at_us,
        body_json=event.body_json,
    )


def _place(shard: int, offset: int) -> str:
    return f"record at partition {shard}, offset {offset}"
