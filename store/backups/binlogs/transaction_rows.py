"""The rows of the transaction that is being read from a binlog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from cellfeed.store.backups.binlogs.transactions import AddedCell, EpochBegin, Transaction
from cellfeed.store.cells.cell import microseconds
from cellfeed.store.cells.dictionary import Dictionary, to_line
from cellfeed.store.engines.mysql.cells import stored_cell


class TransactionRows:
    """The rows of the transaction that is being read."""

    def __init__(self, shards: Mapping[str, int], meta: str) -> None:
        self._shards = shards
        self._meta = meta
        self._clear()

    def _clear(self) -> None:
        self._new: list[tuple[int, Sequence[Any]]] = []
        self._changed: list[tuple[int, Sequence[Any]]] = []
        self._epochs: list[EpochBegin] = []
        self._leader_epochs: dict[int, int] = {}
        self._log_starts: dict[int, int] = {}
        self._dictionaries: list[bytes] = []

    def add(self, event: Any, *, is_new: bool) -> None:
        for each in event.rows:
            row = each["values"] if is_new else each["after_values"]
            if event.schema in self._shards and event.table == "cell":
                shard = self._shards[event.schema]
                (self._new if is_new else self._changed).append((shard, _cell_row(row)))
            elif event.schema == self._meta:
                before = None if is_new else each["before_values"]
                self._meta_row(event.table, row, before)

    def _meta_row(
        self, table: str, row: Mapping[str, Any], before: Mapping[str, Any] | None
    ) -> None:
        if table == "shard_counter":
            shard = int(row["shard"])
            self._leader_epochs[shard] = int(row["leader_epoch"]) + int(row["epoch_base"])
            if before is not None and before["log_start"] != row["log_start"]:
                self._log_starts[shard] = int(row["log_start"])
        elif table == "leader_epoch":
            self._epochs.append(
                EpochBegin(int(row["shard"]), int(row["leader_epoch"]), int(row["first_added_id"]))
            )
        elif table == "dictionary":
            self._dictionaries.append(
                to_line(
                    Dictionary(
                        row["column_name"].decode(),
                        row["content"],
                        int(row["trained_at_us"]),
                        int(row["samples"]) & 0xFFFF_FFFF,
                    )
                )
            )

    def taken(self) -> Transaction:
        """The whole transaction. Raises DataDamaged for a cell that differs from the written
        one."""
        made = Transaction(
            self._cells(self._new),
            self._cells(self._changed),
            self._epochs,
            list(self._log_starts.items()),
            self._dictionaries,
        )
        self._clear()
        return made

    def _cells(self, rows: Sequence[tuple[int, Sequence[Any]]]) -> list[AddedCell]:
        return [
            AddedCell(shard, self._leader_epochs.get(shard, -1), stored_cell(shard, row))
            for shard, row in rows
        ]


def _cell_row(row: Mapping[str, Any]) -> Sequence[Any]:
    """In the order of a SELECT of ``CELL``. Zeros at the end of a key are not in the binlog."""
    crc = row.get("crc")
    return (
        row["added_id"],
        row["row_key"].ljust(16, b"\0"),
        row["column_name"],
        row["ref_key"],
        microseconds(row["created_at"].replace(tzinfo=UTC)),
        row["body"],
        None if crc is None else int(crc) & 0xFFFF_FFFF,
    )
