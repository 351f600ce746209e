"""The rows of a lake's table at each answer of a wait: the version is noted behind the answer, and
the version that brought each cell is read from the table's own log at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from cellfeed.consumers.lake import iceberg_catalog
from cellfeed.consumers.lake.open_table import Format, Place, find_lake_table
from cellfeed.consumers.lake.synced_files import local_path

LAKE: Final = "lake"

CellPlace = tuple[int, int]


class LakeEvidence:
    """Any number of threads. ``storage``: the lake's folder."""

    def __init__(self, format: Format, storage: Path) -> None:  # noqa: A002
        self._place = Place(format=format, storage=storage)

    def version(self) -> str:
        """The newest one."""
        table = find_lake_table(self._place)
        return table.look().version if table is not None else "none"

    def brought(self) -> tuple[Mapping[CellPlace, int], Mapping[str, int]]:
        """By place of each cell the number of the commit that brought it; and the number of each
        version."""
        commits, numbers = self._delta() if self._place.format == "delta" else self._iceberg()
        found: dict[CellPlace, int] = {}
        for path, number in commits.items():
            rows = pq.ParquetFile(path).read(columns=["shard", "added_id"])
            places = zip(rows["shard"].to_pylist(), rows["added_id"].to_pylist(), strict=True)
            for place in places:
                assert place not in found, f"{place} is in the table twice"
                found[place] = number
        return found, numbers

    def _delta(self) -> tuple[Mapping[Path, int], Mapping[str, int]]:
        table = self._place.storage / "cells"
        commits: dict[Path, int] = {}
        numbers: dict[str, int] = {}
        for log in sorted((table / "_delta_log").glob("*.json")):
            number = numbers[str(int(log.stem))] = int(log.stem)
            for line in log.read_text().splitlines():
                if (added := json.loads(line).get("add")) is not None:
                    commits[table / added["path"]] = number
        return commits, numbers

    def _iceberg(self) -> tuple[Mapping[Path, int], Mapping[str, int]]:
        catalog = iceberg_catalog.sqlite_catalog(self._place.storage)
        table = catalog.load_table(f"{self._place.namespace}.cells")
        numbers = {
            str(each.snapshot_id): each.sequence_number or 0 for each in table.metadata.snapshots
        }
        entries = table.inspect.entries()
        return {
            Path(local_path(file["file_path"])): numbers[str(snapshot)]
            for file, snapshot in zip(
                entries["data_file"].to_pylist(), entries["snapshot_id"].to_pylist(), strict=True
            )
        }, numbers
