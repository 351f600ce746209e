"""L4: commits of other programs neither hide a table's positions nor reset them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table
from pyiceberg.types import StringType

from cellfeed.consumers.lake.appending import Outcome, append
from cellfeed.consumers.lake.contract import LakeTable
from cellfeed.consumers.lake.iceberg_catalog import sqlite_catalog
from cellfeed.consumers.lake.iceberg_positions import POSITIONS
from cellfeed.consumers.lake.positions import Position
from cellfeed.consumers.lake.views import LakeView
from cellfeed.store.errors import ProtectData
from tests.support.lake_tables import addition, make, place_of

NAME = "cellfeed.cells"


def catalog(folder: Path) -> Catalog:
    return sqlite_catalog(folder)


def iceberg(folder: Path) -> Table:
    return catalog(folder).load_table(NAME)


def compact_iceberg(folder: Path) -> None:
    """All files become one, as a person's job does it."""
    table = iceberg(folder)
    files = [task.file for task in table.scan().plan_files()]
    path = f"{table.location()}/data/created_day=2024-10-04/compacted.parquet"
    pq.write_table(table.scan().to_arrow(), path.removeprefix("file://"))
    with table.transaction() as changes, changes.update_snapshot().overwrite() as update:
        for each in files:
            update.delete_data_file(each)
        update.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))


def add_iceberg_column(folder: Path) -> None:
    with iceberg(folder).update_schema() as update:
        update.add_column("note", StringType())


def expire_iceberg(folder: Path) -> None:
    later = datetime.now() + timedelta(seconds=1)  # noqa: DTZ005 (pyiceberg wants it so)
    iceberg(folder).maintenance.expire_snapshots().older_than(later).commit()


def allow_retries(folder: Path) -> None:
    with iceberg(folder).transaction() as changes:
        changes.set_properties({"commit.retry.num-retries": "10"})


def delta(folder: Path) -> DeltaTable:
    return DeltaTable(str(folder / "cells"))


def compact_delta(folder: Path) -> None:
    delta(folder).optimize.compact()


def add_delta_column(folder: Path) -> None:
    delta(folder).alter.add_columns([Field("note", PrimitiveType("string"))])


def clean_delta(folder: Path) -> None:
    table = delta(folder)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


CHANGES: list[tuple[str, list[Callable[[Path], None]]]] = [
    ("iceberg", [compact_iceberg]),
    ("iceberg", [add_iceberg_column]),
    ("iceberg", [expire_iceberg]),
    ("iceberg", [compact_iceberg, expire_iceberg]),
    ("iceberg", [compact_iceberg, compact_iceberg, add_iceberg_column, expire_iceberg]),
    ("delta", [compact_delta]),
    ("delta", [add_delta_column]),
    ("delta", [compact_delta, clean_delta]),
]


def loaded(folder: Path, kind: str) -> LakeTable:
    table = make(folder, kind)
    append(table, addition(table, {0: 20, 3: 5}))
    append(table, addition(table, {0: 30}, {0: 20}))
    return table


@pytest.mark.parametrize(("kind", "changes"), CHANGES)
def test_l4_after_foreign_commits_a_loader_resumes_where_it_was(
    kind: str, changes: list[Callable[[Path], None]], tmp_path: Path
) -> None:
    table = loaded(tmp_path, kind)
    view = LakeView(place_of(tmp_path, kind))
    before = {shard: each.hexdigest() for shard, each in view.digests().items()}
    for change in changes:
        change(tmp_path)
    state = table.look()
    assert state.positions == {0: Position(30, 30), 3: Position(5, 5)}
    assert {shard: each.hexdigest() for shard, each in view.digests().items()} == before
    assert append(table, addition(table, {0: 30})) is Outcome.OVERTAKEN
    assert append(table, addition(table, {0: 33}, {0: 30})) is Outcome.LANDED
    assert sum(each.rows for each in table.look().files()) == 38


def test_l4_a_commit_is_tried_once_where_a_person_allowed_retries(tmp_path: Path) -> None:
    table = loaded(tmp_path, "iceberg")
    allow_retries(tmp_path)
    slow = table.look()
    rows = addition(table, {0: 40}, {0: 30})
    append(table, addition(table, {0: 35}, {0: 30}))
    with pytest.raises(Exception, match="branch main has changed"):
        slow.add(rows)
    assert sum(each.rows for each in table.look().files()) == 40


def test_l4_a_table_that_was_rolled_back_has_the_positions_of_its_rows(tmp_path: Path) -> None:
    table = loaded(tmp_path, "iceberg")
    entry = iceberg(tmp_path)
    first = entry.history()[0].snapshot_id
    entry.manage_snapshots().rollback_to_snapshot(first).commit()
    assert table.look().positions == {0: Position(20, 20), 3: Position(5, 5)}
    assert append(table, addition(table, {0: 30}, {0: 20})) is Outcome.LANDED
    assert sum(each.rows for each in table.look().files()) == 35


def test_l4_a_delta_table_that_was_restored_is_refused(tmp_path: Path) -> None:
    table = loaded(tmp_path, "delta")
    delta(tmp_path).restore(1)
    with pytest.raises(ProtectData, match="restored to an earlier version"):
        append(table, addition(table, {0: 31}, {0: 30}))


def test_l4_rows_that_do_not_end_at_the_noted_positions_are_refused(tmp_path: Path) -> None:
    table = loaded(tmp_path, "iceberg")
    iceberg(tmp_path).delete("added_id >= 20")
    assert table.look().positions[0] == Position(30, 30), "the loader's snapshot says so"
    expire_iceberg(tmp_path)
    with pytest.raises(ProtectData, match="shard 0 ends before added_id 20"):
        table.look().positions  # noqa: B018


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_l4_a_table_of_other_programs_is_refused(kind: str, tmp_path: Path) -> None:
    table = loaded(tmp_path, kind)
    if kind == "iceberg":
        with iceberg(tmp_path).transaction() as changes:
            changes.remove_properties("cellfeed.source")
    else:
        path = min((tmp_path / "cells" / "_delta_log").glob("*.json"))
        path.write_text(path.read_text().replace("cellfeed.source", "someone.else"))
    with pytest.raises(ProtectData, match="no table of a lake's loader"):
        table.look()


def test_l4_rows_without_positions_are_refused(tmp_path: Path) -> None:
    table = loaded(tmp_path, "iceberg")
    with iceberg(tmp_path).transaction() as changes:
        changes.remove_properties(POSITIONS)
    assert table.look().positions[0] == Position(30, 30)
    compact_iceberg(tmp_path)
    expire_iceberg(tmp_path)
    with pytest.raises(ProtectData, match="rows and no positions"):
        table.look().positions  # noqa: B018
