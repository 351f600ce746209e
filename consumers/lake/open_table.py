"""The table that a configuration names, in either format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from cellfeed.consumers.lake.cell_columns import CELLS, CellColumns
from cellfeed.consumers.lake.contract import DataFile, LakeTable
from cellfeed.consumers.lake.data_files import write_data_files
from cellfeed.store.errors import Unavailable

Format = Literal["iceberg", "delta"]
TABLE: Final = "cells"


class Place(msgspec.Struct, frozen=True):
    """Where a lake's tables are. ``storage``: the folder of all of them; ``namespace``: in an
    Iceberg catalog. ``rest_uri``: of a REST catalog; the SQLite catalog in ``storage`` without.
    ``catalog``: further properties of pyiceberg's REST client."""

    format: Format
    storage: Path
    namespace: str = "cellfeed"
    rest_uri: str | None = None
    catalog: dict[str, str] = {}


def make_lake_table(place: Place, source: str) -> LakeTable:
    """The table ``cells`` there; made for the log ``source`` when there is none. Raises
    Unavailable."""
    table = _opened(place, source)
    if table is None:
        raise Unavailable(f"the table in {place.storage} was taken away while it was made")
    return table


def find_lake_table(place: Place) -> LakeTable | None:
    """The table ``cells`` there, None when there is none. Raises Unavailable."""
    return _opened(place, None)


def _opened(place: Place, source: str | None) -> LakeTable | None:
    if place.format == "delta":
        from cellfeed.consumers.lake import delta_table  # a large library

        return delta_table.open_table(place.storage / TABLE, source)
    from cellfeed.consumers.lake import iceberg_catalog  # a large library

    if place.rest_uri is None:
        if source is None and not (place.storage / iceberg_catalog.CATALOG_FILE).exists():
            return None
        catalog = iceberg_catalog.sqlite_catalog(place.storage)
    else:
        catalog = iceberg_catalog.rest_catalog(place.rest_uri, place.storage, place.catalog)
    folder = place.storage / place.namespace / TABLE
    return iceberg_catalog.open_table(catalog, f"{place.namespace}.{TABLE}", source, folder)


def stage(table: LakeTable, rows: CellColumns) -> Sequence[DataFile]:
    """Writes the rows as files in the table's folder; they are of no table until a commit names
    them. Raises OSError."""
    return write_data_files(rows, Path(table.folder), table.data_prefix, table.file_schema(CELLS))
