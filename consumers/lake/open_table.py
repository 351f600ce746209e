"""The tables that a configuration names, in either format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from cellfeed.consumers.lake.cell_columns import CELLS, CELLS_KIND, CellColumns, rows_of_days
from cellfeed.consumers.lake.contract import DataFile, LakeTable, TableKind
from cellfeed.consumers.lake.data_files import write_data_files
from cellfeed.store.errors import Unavailable

Format = Literal["iceberg", "delta"]
TABLE: Final = CELLS_KIND.name


class Place(msgspec.Struct, frozen=True):
    """Where a lake's tables are. ``storage``: the folder of all of them; ``namespace``: in an
    Iceberg catalog. ``rest_uri``: of a REST catalog; the SQLite catalog in ``storage`` without.
    ``catalog``: further properties of pyiceberg's REST client."""

    format: Format
    storage: Path
    namespace: str = "cellfeed"
    rest_uri: str | None = None
    catalog: dict[str, str] = {}


class LakeTables:
    """The tables of one place. Opens the catalog once, when it is first needed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._catalog: Any = None

    def make(self, kind: TableKind, source: str) -> LakeTable:
        """The table; made for the log ``source`` when there is none. Raises Unavailable."""
        table = self._opened(kind, source)
        if table is None:
            raise Unavailable(
                f"the table {kind.name} in {self._place.storage} was taken away while it was made"
            )
        return table

    def find(self, kind: TableKind) -> LakeTable | None:
        """None when there is none. Raises Unavailable."""
        return self._opened(kind, None)

    def names(self) -> list[str]:
        """All tables of the place, also those of others. Raises Unavailable."""
        place = self._place
        if place.format == "delta":
            return sorted(each.parent.name for each in place.storage.glob("*/_delta_log"))
        if self._opened(CELLS_KIND, None) is None:
            return []
        try:
            return sorted(each[-1] for each in self._catalog.list_tables(place.namespace))
        except Exception as error:
            raise Unavailable(f"the catalog does not list its tables: {error}") from error

    def _opened(self, kind: TableKind, source: str | None) -> LakeTable | None:
        place = self._place
        if place.format == "delta":
            from cellfeed.consumers.lake import delta_table  # a large library

            return delta_table.open_table(place.storage / kind.name, source, kind)
        from cellfeed.consumers.lake import iceberg_catalog  # a large library

        if self._catalog is None:
            if place.rest_uri is not None:
                self._catalog = iceberg_catalog.rest_catalog(
                    place.rest_uri, place.storage, place.catalog
                )
            elif source is None and not (place.storage / iceberg_catalog.CATALOG_FILE).exists():
                return None
            else:
                self._catalog = iceberg_catalog.sqlite_catalog(place.storage)
        folder = place.storage / place.namespace / kind.name
        identifier = f"{place.namespace}.{kind.name}"
        return iceberg_catalog.open_table(self._catalog, identifier, source, folder, kind)


def make_lake_table(place: Place, source: str) -> LakeTable:
    """The table ``cells`` there; made for the log ``source`` when there is none. Raises
    Unavailable."""
    return LakeTables(place).make(CELLS_KIND, source)


def find_lake_table(place: Place) -> LakeTable | None:
    """The table ``cells`` there, None when there is none. Raises Unavailable."""
    return LakeTables(place).find(CELLS_KIND)


def stage(table: LakeTable, rows: CellColumns) -> Sequence[DataFile]:
    """Writes the rows as files in the table's folder; they are of no table until a commit names
    them. Raises OSError."""
    return write_data_files(
        rows.days(), Path(table.folder), table.data_prefix, table.file_schema(CELLS)
    )


def stage_rows(table: LakeTable, rows: pa.Table) -> list[DataFile]:
    """As :func:`stage`, of a table of any kind. No rows are no file."""
    if not rows.num_rows:
        return []
    kind = table.kind
    parts = (
        rows_of_days(rows, kind.order)
        if kind.by_day
        else [(None, rows.sort_by([(name, "ascending") for name in kind.order]))]
    )
    schema = table.file_schema(kind.schema)
    return write_data_files(parts, Path(table.folder), table.data_prefix, schema)
