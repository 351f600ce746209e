"""A lake with typed tables in a folder, fed without Kafka: a log of cells, the table of all cells,
and the tables that follow it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from cellfeed.bridge.events.decoded_event import DecodedEvent
from cellfeed.consumers.lake.appending import Outcome, append
from cellfeed.consumers.lake.cell_columns import CellColumns
from cellfeed.consumers.lake.contract import Addition, LakeTable
from cellfeed.consumers.lake.open_table import LakeTables, make_lake_table, stage
from cellfeed.consumers.lake.positions import START, Position
from cellfeed.consumers.lake.progress import LakeProgress
from cellfeed.consumers.lake.typed import column_kinds
from cellfeed.consumers.lake.typed.following import TypedTables
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON
from tests.support.lake_tables import FIRST_US, SOURCE, place_of

COLUMN: Final = "FARE"


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Fare", "fields": list(fields)})


CENTS: Final = {"name": "cents", "type": "long"}
DAY: Final = {"name": "day", "type": {"type": "int", "logicalType": "date"}}
NOTE: Final = {"name": "note", "type": ["null", "string"], "default": None}
V1: Final = schema(CENTS, DAY)
V2: Final = schema(CENTS, DAY, NOTE)


def key(row: int) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_OID, str(row)).bytes


class Lake:
    """``log``: all cells by shard, which :meth:`commit` adds to the table of all cells."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.place = place_of(folder, kind)
        self.cells: LakeTable = make_lake_table(self.place, SOURCE)
        self.versions = [V1]
        self.log: dict[int, list[DecodedEvent]] = {}
        self.done: dict[int, int] = {}
        self.begin()

    def begin(self) -> None:
        """Another loader, which knows nothing of the one before."""
        self.progress = LakeProgress()
        self.typed = TypedTables(self.place, self._schemas, self.progress)

    def _schemas(self) -> dict[str, list[str]]:
        return {COLUMN: list(self.versions)} if self.versions else {}

    def put(self, row: int, ref_key: int, body: Any, column: str = COLUMN, shard: int = 0) -> None:
        log = self.log.setdefault(shard, [])
        text = ERASED_JSON if body is None else json.dumps(body, separators=(",", ":")).encode()
        at_us = FIRST_US + len(log)
        log.append(DecodedEvent(shard, len(log), key(row), column, ref_key, at_us, text))

    def erase(self, row: int, shard: int = 0) -> None:
        self.put(row, 0, None, ERASED_COLUMN, shard)

    def commit(self) -> Addition:
        """All new cells, into the table of all cells alone."""
        rows = CellColumns()
        starts, ends = {}, {}
        for shard, log in self.log.items():
            begin = self.done.get(shard, 0)
            if begin == len(log):
                continue
            for event in log[begin:]:
                rows.add(event)
            starts[shard] = Position(begin, begin) if begin else START
            ends[shard] = Position(len(log), len(log))
            self.done[shard] = len(log)
        made = Addition(SOURCE, stage(self.cells, rows), starts, ends, rows.newest_us)
        assert append(self.cells, made) is Outcome.LANDED
        self.new_rows = rows.table()
        return made

    def follow(self) -> None:
        """A commit, and the typed tables after it."""
        made = self.commit()
        self.typed.follow(made.starts, made.ends, self.new_rows, SOURCE)

    def catch_up(self, steps_max: int = 20) -> None:
        for _ in range(steps_max):
            if not self.typed.catch_up(self.cells, sorted(self.log), SOURCE):
                break
        assert not self.progress.table_troubles, self.progress.table_troubles

    def rows(self, suffix: str = "") -> list[dict[str, Any]]:
        """Of a table of the column, by shard and added_id; no rows where there is no table."""
        kind = {
            "": column_kinds.typed_kind(COLUMN, ()),
            column_kinds.LATEST: column_kinds.latest_kind(COLUMN, ()),
            column_kinds.PARKED: column_kinds.parked_kind(COLUMN),
        }[suffix]
        table = LakeTables(self.place).find(kind)
        if table is None:
            return []
        state = table.look()
        parts = [pa_table(file.path) for file in state.files()]
        found = [row for part in parts for row in part.to_pylist()]
        return sorted(found, key=lambda row: (row["shard"], row["added_id"]))

    def ids(self, suffix: str = "") -> list[int]:
        return [row["added_id"] for row in self.rows(suffix)]


def pa_table(path: str) -> pa.Table:

    return pq.read_table(path, partitioning=None)


def bodies(cents: Sequence[int]) -> list[Mapping[str, Any]]:
    return [{"cents": each, "day": "2026-11-28"} for each in cents]
