"""Opening catalogs of Iceberg, and making the table of cells in one.

The table is made with the source's id in its properties, by one call that makes it or finds it. So
of two loaders of different logs one makes the table, and the other is refused.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform

from cellfeed.consumers.lake.cell_columns import CELLS_KIND
from cellfeed.consumers.lake.contract import TableKind
from cellfeed.consumers.lake.data_files import DAY
from cellfeed.consumers.lake.iceberg_positions import SOURCE
from cellfeed.consumers.lake.iceberg_table import IcebergTable
from cellfeed.consumers.lake.typed.conforming import with_uuids_as
from cellfeed.store.backups.synced import make_folders
from cellfeed.store.errors import CellfeedError, Unavailable

CATALOG_FILE: Final = "catalog.sqlite"

REST_TIMEOUT_S: Final = 20.0
"""Longest wait for an answer of a REST catalog, seconds: below the limit of a loop that stands."""

PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    "write.target-file-size-bytes": str(128 << 20),
}
"""Of a new table. Retries: the loader's own look decides, see ``appending``."""


def sqlite_catalog(folder: Path) -> Catalog:
    """The embedded catalog: a SQLite file in ``folder``, beside the tables. Raises Unavailable."""
    make_folders(folder)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder / CATALOG_FILE}",
        "warehouse": folder.as_uri(),
    }
    try:
        return _opened(properties)
    except Unavailable as error:
        # pyiceberg looks for its tables and makes them in two steps: two processes that open a new
        # file at once are in each other's way, once.
        if "already exists" not in str(error):
            raise
        return _opened(properties)


def rest_catalog(uri: str, folder: Path, properties: Mapping[str, str]) -> Catalog:
    """A catalog with the REST interface. ``properties``: of pyiceberg (``token``, ``credential``,
    ``warehouse`` …). Raises Unavailable."""
    catalog = _opened({"type": "rest", "uri": uri, "warehouse": folder.as_uri(), **properties})
    # pyiceberg gives its requests no time limit, and has no setting for one.
    session = catalog._session  # type: ignore[attr-defined]  # noqa: SLF001
    session.request = partial(session.request, timeout=REST_TIMEOUT_S)
    return catalog


def open_table(
    catalog: Catalog,
    identifier: str,
    source: str | None,
    folder: Path | None = None,
    kind: TableKind = CELLS_KIND,
) -> IcebergTable | None:
    """The table; makes it, in ``folder``, for the log ``source``. Without a ``source`` it is not
    made: None when there is none. Raises Unavailable."""
    try:
        try:
            catalog.load_table(identifier)
        except NoSuchTableError:
            if source is None:
                return None
            namespace = identifier.rpartition(".")[0]
            catalog.create_namespace_if_not_exists(namespace)
            _create(catalog, identifier, source, folder, kind)
        return IcebergTable(catalog, identifier, kind)
    except CellfeedError:
        raise
    except Exception as error:
        raise Unavailable(
            f"the catalog does not open table {identifier}: {type(error).__name__}: {error}"
        ) from error


def _create(
    catalog: Catalog, identifier: str, source: str, folder: Path | None, kind: TableKind
) -> None:
    schema = assign_fresh_schema_ids(
        visit_pyarrow(with_uuids_as(kind.schema, pa.uuid()), _ConvertToIcebergWithoutIDs())
    )
    day = PartitionField(schema.find_field("created_at").field_id, 1000, DayTransform(), DAY)
    # Another loader may be faster: each look compares the source.
    with contextlib.suppress(TableAlreadyExistsError):
        catalog.create_table(
            identifier,
            schema,
            location=folder.as_uri() if folder is not None else None,
            partition_spec=PartitionSpec(day) if kind.by_day else PartitionSpec(),
            sort_order=SortOrder(
                *(
                    SortField(schema.find_field(name).field_id, IdentityTransform())
                    for name in kind.order
                )
            ),
            properties={**PROPERTIES, **kind.properties, SOURCE: source},
        )


def _opened(properties: dict[str, str]) -> Catalog:
    logging.getLogger("pyiceberg").setLevel(logging.WARNING)  # it has a line for each look
    try:
        return load_catalog(
            "cellfeed",
            **{
                "py-io-impl": "cellfeed.consumers.lake.synced_files.SyncedFileIO",
                **properties,
            },
        )
    except Exception as error:
        raise Unavailable(
            f"the catalog at {properties['uri']} does not open: {type(error).__name__}: {error}"
        ) from error
