"""The lakes of a configuration as outlets that somebody waits for: their tables, read where they
are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from cellfeed.bridge.outlets.lakes import LakeLook, LakeTable
from cellfeed.config.lake import LakeConfig
from cellfeed.config.model import Config
from cellfeed.extras import missing_extra
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import (
    DataDamaged,
    InvalidRequest,
    NotFound,
    ProtectData,
    Unavailable,
)

if TYPE_CHECKING:
    from cellfeed.consumers.lake import contract
    from cellfeed.consumers.lake.open_table import Place


def lake_tables(config: Config, directory: RunDir) -> Callable[[], Mapping[str, LakeTable]]:
    """By name, made at the first call: it loads the libraries of the formats. The call raises
    InvalidRequest where they are not installed."""

    @cache
    def tables() -> Mapping[str, LakeTable]:
        return {each.name: LakeTable(each.group, _reader(each, directory)) for each in config.lakes}

    return tables


def _reader(lake: LakeConfig, directory: RunDir) -> Callable[[], LakeLook | None]:
    try:
        # Large libraries of an extra: loaded when somebody waits for a lake.
        from cellfeed.assembly.lakes import lake_place

        place = lake_place(lake, directory)
        if lake.format == "delta":
            import_module("cellfeed.consumers.lake.delta_table")
            return _Reader(lake.name, place, None)
        from cellfeed.consumers.lake.iceberg_catalog import CATALOG_FILE  # the same

        return _Reader(lake.name, place, place.storage / CATALOG_FILE)
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            raise
        raise InvalidRequest(f"to wait for lake {lake.name!r}, {sentence}") from None


class _Reader:
    """Reads one table. Any number of threads. The table stays open between two looks, unless the
    last one failed, or another catalog's file is in the place: SQLite would read the old file."""

    def __init__(self, name: str, place: Place, catalog: Path | None) -> None:
        self._name = name
        self._place = place
        self._catalog = catalog
        self._lock = threading.Lock()
        self._table: contract.LakeTable | None = None
        self._file: tuple[int, int] | None = None

    def __call__(self) -> LakeLook | None:
        from cellfeed.consumers.lake.open_table import find_lake_table  # as in _reader

        with self._lock:
            table, self._table = self._table, None
            try:
                file = self._catalog_file()
                if table is None or self._file != file:
                    self._file = file
                    table = find_lake_table(self._place)
                if table is None:
                    return None
                state = table.look()
                positions = state.positions
            except NotFound:
                return None
            except (ProtectData, DataDamaged) as error:
                raise Unavailable(f"lake {self._name!r} stands still: {error}") from error
            self._table = table
        return LakeLook(
            state.source, {shard: position.next_id for shard, position in positions.items()}
        )

    def _catalog_file(self) -> tuple[int, int] | None:
        """Which file it is; None where there is none."""
        if self._catalog is None or not self._catalog.exists():
            return None
        found = self._catalog.stat()
        return found.st_dev, found.st_ino
