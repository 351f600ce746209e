"""The contract of tables on Iceberg, by pyiceberg.

A commit asserts the snapshot that was looked at (``assert-ref-snapshot-id``), so the catalog
refuses it on any other state. :class:`_OneAttempt` stands between pyiceberg and the catalog.

pyiceberg repeats a refused commit on the newest state by itself, where the table's properties allow
it: a loader that was overtaken would add its rows a second time. It also deletes the manifests of a
refused commit. After a proxy has repeated a request, the refused one may be the commit that
happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table

from cellfeed.consumers.lake.contract import (
    Addition,
    LastCommit,
    LiveFile,
    NotCommitted,
    TableKind,
)
from cellfeed.consumers.lake.iceberg_positions import (
    NEWEST,
    POSITIONS,
    SOURCE,
    loader_snapshot,
    read_positions,
    summary_of,
)
from cellfeed.consumers.lake.positions import Positions, encode_positions, moved
from cellfeed.consumers.lake.synced_files import local_path
from cellfeed.consumers.lake.typed.conforming import lacks, with_uuids_as
from cellfeed.consumers.lake.typed.uuid_arrays import BYTES
from cellfeed.store.errors import NotFound, ProtectData, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare("lake.iceberg.before_catalog", "lake.iceberg.after_catalog")


class _OneAttempt:
    """The catalog, with refusals by a name at which pyiceberg neither repeats nor cleans up."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        failpoint("lake.iceberg.before_catalog")
        try:
            answer = self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise NotCommitted(str(error)) from error
        failpoint("lake.iceberg.after_catalog")
        return answer


class IcebergState:
    """One state: see :class:`cellfeed.consumers.lake.contract.State`."""

    def __init__(self, name: str, table: Table, source: str, *, has_every_id: bool) -> None:
        self._name = name
        self._table = table
        self._has_every_id = has_every_id
        self.source = source

    @property
    def version(self) -> str:
        head = self._table.current_snapshot()
        return str(head.snapshot_id) if head is not None else "none"

    @property
    def positions(self) -> Positions:
        metadata = self._table.metadata
        return read_positions(
            self._name,
            self._table.current_snapshot(),
            metadata.snapshot_by_id,
            metadata.properties.get(POSITIONS),
            self._next_ids,
            has_every_id=self._has_every_id,
        )

    def add(self, addition: Addition) -> None:
        vector = encode_positions(moved(self.positions, addition.ends))
        folder = self._table.location()
        paths = [f"{folder}/{each.path}" for each in addition.files]
        noted = {POSITIONS: vector, NEWEST: str(addition.newest_us)}
        leaving = self._leaving(addition.removed)
        with self._table.transaction() as transaction:
            transaction.set_properties({POSITIONS: vector})
            if not leaving:
                transaction.add_files(
                    paths,
                    snapshot_properties=noted,
                    check_duplicate_files=False,  # their names are random
                )
                return
            with transaction.update_snapshot(noted).overwrite() as snapshot:
                for file in leaving:
                    snapshot.delete_data_file(file)
                for path in paths:
                    snapshot.append_data_file(
                        parquet_file_to_data_file(self._table.io, transaction.table_metadata, path)
                    )

    def files(self) -> list[LiveFile]:
        return [
            LiveFile(
                str(local_path(task.file.file_path)),
                task.file.record_count,
                task.file.file_size_in_bytes,
            )
            for task in self._table.scan().plan_files()
        ]

    def has_row_deletes(self) -> bool:
        return any(task.delete_files for task in self._table.scan().plan_files())

    def last_commit(self) -> LastCommit | None:
        metadata = self._table.metadata
        found = loader_snapshot(self._table.current_snapshot(), metadata.snapshot_by_id)
        if found is None:
            return None
        return LastCommit(found.timestamp_ms * 1000, int(summary_of(found).get(NEWEST, "0")))

    def _leaving(self, removed: Sequence[str]) -> list[IcebergFile]:
        if not removed:
            return []
        live = {
            str(local_path(task.file.file_path)): task.file
            for task in self._table.scan().plan_files()
        }
        if gone := [path for path in removed if path not in live]:
            raise NotCommitted(f"{self._name} does not have {gone[0]} any more")
        return [live[path] for path in removed]

    def _next_ids(self) -> Mapping[int, int]:
        ends: dict[int, int] = {}
        scan = self._table.scan(selected_fields=("shard", "added_id"))
        for batch in scan.to_arrow_batch_reader():
            for shard in pc.unique(batch["shard"]).to_pylist():
                ids = pc.filter(batch["added_id"], pc.equal(batch["shard"], shard))
                ends[shard] = max(ends.get(shard, 0), pc.max(ids).as_py() + 1)
        return ends


class IcebergTable:
    """A table of a catalog. ``identifier``: namespace and name, with a dot between."""

    data_prefix = "data/"

    def __init__(self, catalog: Catalog, identifier: str, kind: TableKind) -> None:
        self.kind = kind
        self.name = f"Iceberg table {identifier}"
        self._catalog = catalog
        self._identifier = identifier
        self.folder = str(local_path(self._load().location()))

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """With the table's field ids: readers find columns by them after a rename."""
        has = schema_to_pyarrow(self._load().schema(), include_field_ids=True)
        return pa.schema([_of_file(field, has.field(field.name)) for field in schema])

    def columns(self) -> pa.Schema:
        return schema_to_pyarrow(self._load().schema(), include_field_ids=False)

    def property(self, name: str) -> str | None:
        return self._load().properties.get(name)

    def evolve(self, schema: pa.Schema) -> None:
        wanted = with_uuids_as(schema, pa.uuid())
        table = self._load()
        if not lacks(schema_to_pyarrow(table.schema()), wanted):
            return
        table.catalog = cast("Catalog", _OneAttempt(self._catalog))
        with table.transaction() as transaction, transaction.update_schema() as update:
            # Adds columns and takes none away: a column of somebody else stays.
            update.union_by_name(wanted)

    def look(self) -> IcebergState:
        table = self._load()
        source = table.properties.get(SOURCE)
        if source is None:
            raise ProtectData(
                f"{self.name} is no table of a lake's loader: it has no property {SOURCE}. Load"
                " into a table of its own"
            )
        table.catalog = cast("Catalog", _OneAttempt(self._catalog))
        return IcebergState(self.name, table, source, has_every_id=self.kind.has_every_id)

    def _load(self) -> Table:
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError as error:
            raise NotFound(f"{self.name} is not there: {error}") from None
        except Exception as error:
            raise Unavailable(
                f"{self.name} cannot be read: {type(error).__name__}: {error}"
            ) from error


def _of_file(wanted: pa.Field, has: pa.Field) -> pa.Field:
    """With the table's field ids, also of members."""
    if wanted.type == BYTES or pa.types.is_nested(wanted.type):
        return has
    return wanted.with_metadata(has.metadata)
