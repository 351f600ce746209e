"""The contract of tables on Delta, by delta-rs.

Positions are transaction identifiers of the Delta protocol, two for each shard: ``cellfeed/7/id``
and ``cellfeed/7/offset``. They are part of the table's state, through checkpoints, compaction and
cleanups of the log. Each commit names the version that it makes (``cellfeed/version``).

A commit is made on the version that was looked at, without retries (``max_commit_retries=0``): any
commit in between refuses it. ``RESTORE`` brings back earlier rows and leaves transaction
identifiers as they are: the positions would be ahead of the rows. Such a table is refused.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from cellfeed.consumers.lake.cell_columns import CELLS_KIND
from cellfeed.consumers.lake.contract import (
    Addition,
    LastCommit,
    LiveFile,
    NotCommitted,
    TableKind,
)
from cellfeed.consumers.lake.data_files import DAY
from cellfeed.consumers.lake.delta_actions import added, removed
from cellfeed.consumers.lake.positions import Position, Positions
from cellfeed.consumers.lake.typed.conforming import lacks, with_uuids_as
from cellfeed.store.backups.synced import make_folders, sync_folder
from cellfeed.store.errors import NotFound, ProtectData, Unavailable
from cellfeed.store.failpoints import declare, failpoint

_APP: Final = "cellfeed"
VERSION: Final = f"{_APP}/version"
NEWEST: Final = f"{_APP}/newest-created-at-us"
SHARDS: Final = f"{_APP}/shards"
SOURCE: Final = "cellfeed.source"

_DAY_FIELD: Final = pa.field(DAY, pa.date32(), nullable=False)

declare("lake.delta.before_log", "lake.delta.after_log")


class DeltaState:
    """One version: see :class:`cellfeed.consumers.lake.contract.State`."""

    def __init__(self, name: str, folder: Path, table: DeltaTable, source: str) -> None:
        self._name = name
        self._folder = folder
        self._table = table
        self.source = source

    @property
    def version(self) -> str:
        return str(self._table.version())

    @property
    def positions(self) -> Positions:
        self._refuse_restored()
        number = self._table.transaction_version
        found = {}
        for shard in range(number(SHARDS) or 0):
            next_id, offset = number(f"{_APP}/{shard}/id"), number(f"{_APP}/{shard}/offset")
            if next_id is not None and offset is not None:
                found[shard] = Position(next_id, offset)
        return found

    def add(self, addition: Addition) -> None:
        version, now_ms = self._table.version() + 1, int(time.time() * 1000)
        shards = max(addition.ends, default=-1) + 1
        numbers = {
            VERSION: version,
            NEWEST: addition.newest_us,
            SHARDS: max(shards, self._table.transaction_version(SHARDS) or 0),
        }
        for shard, end in addition.ends.items():
            numbers[f"{_APP}/{shard}/id"] = end.next_id
            numbers[f"{_APP}/{shard}/offset"] = end.next_offset
        failpoint("lake.delta.before_log")
        try:
            self._table.create_write_transaction(
                [
                    *(added(each, now_ms) for each in addition.files),
                    *removed(self._name, self._folder, addition.removed, self.files, now_ms),
                ],
                "append",
                self._table.schema(),
                partition_by=self._table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    max_commit_retries=0,
                    app_transactions=[
                        Transaction(name, number, now_ms) for name, number in numbers.items()
                    ],
                ),
            )
        except CommitFailedError as error:
            raise NotCommitted(str(error)) from error
        failpoint("lake.delta.after_log")
        _sync(self._folder / "_delta_log" / f"{version:020d}.json")

    def files(self) -> list[LiveFile]:
        actions = self._table.get_add_actions(flatten=True)
        names, rows, sizes = (
            actions.column(each).to_pylist() for each in ("path", "num_records", "size_bytes")
        )
        return [
            LiveFile(str(self._folder / name), count or 0, size)
            for name, count, size in zip(names, rows, sizes, strict=True)
        ]

    def has_row_deletes(self) -> bool:
        return "deletionVectors" in (self._table.protocol().reader_features or ())

    def last_commit(self) -> LastCommit | None:
        version = self._table.transaction_version(VERSION)
        if version is None:
            return None
        path = self._folder / "_delta_log" / f"{version:020d}.json"
        at_us = int(path.stat().st_mtime * 1e6) if path.exists() else 0
        return LastCommit(at_us, self._table.transaction_version(NEWEST) or 0)

    def _refuse_restored(self) -> None:
        own, version = self._table.transaction_version(VERSION), self._table.version()
        if own is None:
            return
        if version < own:
            raise ProtectData(f"{self._name} has version {version}; its loader has made {own}")
        for entry in self._table.history(version - own) if version > own else ():
            if str(entry.get("operation")).upper() == "RESTORE":
                raise ProtectData(
                    f"{self._name} was restored to an earlier version after its loader's last"
                    f" commit, version {own}: rows that it counts as loaded may be gone. Restore it"
                    f" to version {own}, or load into a table of its own"
                )


class DeltaLakeTable:
    """A table in a folder of its own."""

    data_prefix = ""

    def __init__(self, folder: Path, kind: TableKind) -> None:
        self.kind = kind
        self.name = f"Delta table {folder}"
        self.folder = str(folder)
        self._path = folder

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_uuids_as(schema, pa.string())

    def columns(self) -> pa.Schema:
        return pa.schema(DeltaTable(self.folder).schema().to_arrow())

    def property(self, name: str) -> str | None:
        return DeltaTable(self.folder).metadata().configuration.get(name)

    def evolve(self, schema: pa.Schema) -> None:
        wanted = with_uuids_as(schema, pa.string())
        if not lacks(self.columns(), wanted):
            return
        has_day = [_DAY_FIELD] if self.kind.by_day else []
        # No rows of it: delta-rs then commits the columns that the table lacks.
        empty = pa.schema([*wanted, *has_day]).empty_table()
        write_deltalake(self.folder, empty, mode="append", schema_mode="merge")

    def look(self) -> DeltaState:
        try:
            table = DeltaTable(self.folder)
        except TableNotFoundError:
            raise NotFound(f"{self.name} is not there") from None
        except Exception as error:
            raise Unavailable(
                f"{self.name} cannot be read: {type(error).__name__}: {error}"
            ) from error
        source = table.metadata().configuration.get(SOURCE)
        if source is None:
            raise ProtectData(
                f"{self.name} is no table of a lake's loader: its configuration has no {SOURCE}."
                " Load into a table of its own"
            )
        return DeltaState(self.name, self._path, table, source)


def open_table(
    folder: Path, source: str | None, kind: TableKind = CELLS_KIND
) -> DeltaLakeTable | None:
    """The table; makes it for the log ``source``. Without a ``source`` it is not made:
    None when there is none. Raises Unavailable."""
    if not DeltaTable.is_deltatable(str(folder)):
        if source is None:
            return None
        make_folders(folder)
        try:
            DeltaTable.create(
                str(folder),
                pa.schema(
                    [
                        *with_uuids_as(kind.schema, pa.string()),
                        *([_DAY_FIELD] if kind.by_day else []),
                    ]
                ),
                mode="error",
                raise_if_key_not_exists=False,
                partition_by=[DAY] if kind.by_day else None,
                configuration={
                    **kind.properties,
                    SOURCE: source,
                    "delta.checkpointInterval": "50",
                },
            )
        except Exception as error:
            # Another loader may have been faster: each look compares the source.
            if not DeltaTable.is_deltatable(str(folder)):
                raise Unavailable(
                    f"Delta table {folder} cannot be made: {type(error).__name__}: {error}"
                ) from error
    return DeltaLakeTable(folder, kind)


def _sync(path: Path) -> None:
    """Puts a log entry on disk: delta-rs leaves that to the kernel."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)
