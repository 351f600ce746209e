"""A check of a log looks at each cell once, in pieces that a bound on bytes ends early as well."""

from __future__ import annotations

import base64
import random
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.checksum import cell_checksum
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.contract.log_check import ROWS_CELLS, check_log
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.engines.sqlite import checked_log
from cellfeed.store.engines.sqlite.cells import stored_cells
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.integrity import check_files
from cellfeed.store.errors import DataDamaged
from tests.support.rides import rides

ROW_KEY, AT_US = b"0123456789abcdef", 1_000


class Answers:
    """A storage whose answers hold ``most`` cells. ``lost`` and ``damaged`` are ids."""

    def __init__(self, most: int, lost: set[int], damaged: set[int]) -> None:
        self.most, self.lost, self.damaged = most, lost, damaged

    def cells(self, ids: range) -> list[StoredCell]:
        rows = self.rows(ids, self.most)
        if any(row[0] in self.damaged for row in rows):
            raise DataDamaged("a checksum")
        return [StoredCell._make(row[:6]) for row in rows]

    def rows(self, ids: range, most: int | None = None) -> list[tuple[object, ...]]:
        cells = (
            StoredCell(added_id, ROW_KEY, "BASE", added_id, AT_US, b"")
            for added_id in ids
            if added_id not in self.lost
        )
        return [
            (*cell, cell_checksum(*cell) + (cell.added_id in self.damaged))
            for cell in islice(cells, most)
        ]


@pytest.mark.parametrize("most", [1, 7, 5_000])
def test_cells_beyond_one_answers_limit_are_no_gap(most: int) -> None:
    found, looked_at, lost = Findings(), list[int](), {0, 1_999, 2_000, 2_500, 4_499}
    check_log(
        "here",
        0,
        1,
        Answers(most, lost, {300, 301, 2_001}),
        Head(0, 4_500, 4_500, 0, AT_US),
        {"BASE"},
        found,
        looked_at.append,
    )
    assert [(each.kind, each.ids) for each in found.found] == [
        ("checksum", range(300, 301)),
        ("checksum", range(301, 302)),
        ("checksum", range(2_001, 2_002)),
        ("gap", range(1)),
        ("gap", range(1_999, 2_001)),
        ("gap", range(2_500, 2_501)),
        ("gap", range(4_499, 4_500)),
    ]
    assert (found.cells, sum(looked_at)) == (4_500 - len(lost), 4_500)


def test_large_bodies_of_a_file_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, asked = random.Random(1), list[int]()
    large = [
        cell._replace(body_json=b'{"a":"' + base64.b64encode(chance.randbytes(3_000)) + b'"}')
        for cell in rides(0, 300)
    ]
    with closing(SqliteEngine(tmp_path / "trips", "trips", 1)) as engine:
        engine.put(large)
    monkeypatch.setattr(checked_log, "SCAN_BYTES_MAX", 20_000)

    def asked_for(shard: int, rows: list[tuple[Any, ...]]) -> list[StoredCell]:
        asked.append(len(rows))
        return stored_cells(shard, rows)

    monkeypatch.setattr(checked_log, "stored_cells", asked_for)
    check_files(tmp_path / "trips", "trips", 1, found := Findings())
    assert (found.well, found.cells, max(asked)) == (True, 300, ROWS_CELLS)
