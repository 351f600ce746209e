"""Whose log a table holds: the Kafka cluster ids that its rows came from, as files that are only
ever added.

    _sources/<cluster id>.json      {"cluster_id": …}

A gateway's cluster id follows from the history of its datastore (:mod:`cellfeed.store.histories`):
another store has another one, and so has a store that was restored. A table takes rows of a cluster
that it knows. One that it does not know is **compared first**: the last row of every shard against
the record that lies at its offset now. They are the same cell in a store that was restored from a
backup that has it, and in a topic that was moved. Where one differs, or is gone, the table belongs
to another log, and nothing is loaded. A table without rows takes any cluster, and notes its id.

The id is asked again before each commit. So rows of a log that was replaced while the loader ran
are given up.

Crash points: a note that is written, and no row after it, says no more than that the last rows were
compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from cellfeed.consumers.warehouse.cell_rows import WarehouseRow
from cellfeed.consumers.warehouse.layout import SOURCES, STAGING
from cellfeed.consumers.warehouse.staging import put_if_absent
from cellfeed.store.backups.synced import make_folders, sync_folder
from cellfeed.store.errors import ProtectData, Unavailable

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

RecordAt = Callable[[int, int], WarehouseRow | None]
"""Of a partition and an offset: the cell of the record there, None where there is none."""


class _SourceNote(msgspec.Struct, frozen=True):
    cluster_id: str


class TableSource:
    """See the module. Used by the loader's thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._folder = directory / SOURCES

    def known(self) -> list[str]:
        """The cluster ids that rows came from, ascending."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def accept(
        self,
        cluster_id: str | None,
        last_rows: Callable[[], Mapping[int, tuple[int, WarehouseRow]]],
        record_at: RecordAt,
    ) -> str:
        """Takes the cluster for one of the table's, or refuses it; returns its id.

        ``last_rows``: by shard the offset and the last row of the table. Raises ProtectData with
        both ids for another log, Unavailable where the cluster does not report its id.
        """
        if not cluster_id or _NAME.fullmatch(cluster_id) is None:
            raise Unavailable(
                f"the Kafka cluster does not report its identity: its cluster id is {cluster_id!r}"
            )
        if cluster_id in (known := self.known()):
            return cluster_id
        for shard, (offset, row) in sorted(last_rows().items()):
            found = record_at(shard, offset)
            if found is None or found[:-1] != row[:-1]:
                what = (
                    "has no record there"
                    if found is None
                    else f"has cell {_described(found)} there"
                )
                raise ProtectData(
                    f"the table in {self._directory} holds the log of"
                    f" {' and '.join(known) or 'a cluster of before'}, not of {cluster_id}: its"
                    f" last row of shard {shard} is {_described(row)}, and the cluster {what}. Load"
                    " this log into a directory of its own, or name the cluster that the table"
                    " belongs to"
                )
        make_folders(self._folder)
        put_if_absent(
            self._folder / f"{cluster_id}.json",
            msgspec.json.encode(_SourceNote(cluster_id)),
            self._directory / STAGING,
            "source",
        )
        sync_folder(self._folder)
        return cluster_id


def _described(row: WarehouseRow) -> str:
    return f"{row.row_key.hex()}/{row.column_name}/{row.ref_key} (added_id {row.added_id})"
