"""The tables that SQL may ask: the lakes and warehouses of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cellfeed.assembly.lakes import lake_place
from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound, ProtectData


class TableFiles(NamedTuple):
    """The files of a table as it stands: Parquet files with the rows of cells."""

    paths: list[str]


class SqlTables:
    """Of one instance. Opens a table when it is asked for."""

    def __init__(self, config: Config, directory: Path) -> None:
        self._config = config
        self._directory = RunDir(directory)

    def names(self) -> list[str]:
        """Of lakes and warehouses, the lakes first."""
        lakes = [each.name for each in self._config.lakes]
        return lakes + [each.name for each in self._config.warehouses]

    def files(self, name: str) -> TableFiles:
        """The files of a table. Blocks. Raises NotFound for one that is not there, or not yet;
        ProtectData where other files delete rows of these; Unavailable."""
        for warehouse in self._config.warehouses:
            if warehouse.name == name:
                # Libraries of an extra, and large ones.
                from cellfeed.consumers.warehouse.table import WarehouseTable

                table = WarehouseTable(self._directory.inside(warehouse.directory))
                return TableFiles([str(each.absolute()) for each in table.files()])
        for lake in self._config.lakes:
            if lake.name == name:
                from cellfeed.consumers.lake.views import LakeView  # likewise

                state = LakeView(lake_place(lake, self._directory)).look()
                if state.has_row_deletes():
                    raise ProtectData(
                        f"{name} has files that delete rows of others, which DuckDB would show:"
                        " read it with an engine of its format"
                    )
                return TableFiles([each.path for each in state.files()])
        raise NotFound(f"there is no lake or warehouse {ascii(name)[:80]}")
