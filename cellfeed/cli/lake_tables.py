"""The typed tables of a lake, for the verbs of ``lake``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cellfeed.cli.output import console, print_json
from cellfeed.config.lake import LakeConfig
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir

if TYPE_CHECKING:
    from cellfeed.consumers.lake.open_table import Place
    from cellfeed.consumers.lake.typed.table_digests import ShardReport


def typed_status(place: Place) -> list[dict[str, Any]]:
    """Rows, files, bytes and the last commit of each typed table; rows of a table of parked cells
    are those that wait for a mended schema."""
    # Libraries of an extra, and large ones.
    from cellfeed.consumers.lake.open_table import LakeTables
    from cellfeed.consumers.lake.typed.table_views import typed_tables

    found = []
    for table in typed_tables(LakeTables(place)):
        state = table.look()
        files, last = state.files(), state.last_commit()
        found.append(
            {
                "table": table.kind.name,
                "rows": sum(each.rows for each in files),
                "files": len(files),
                "bytes": sum(each.bytes for each in files),
                "cells_passed": sum(each.next_id for each in state.positions.values()),
                "last_commit_at_us": last.at_us if last is not None else None,
            }
        )
    return found


def typed_reports(lake: LakeConfig, directory: RunDir) -> list[ShardReport]:
    """Digests of each shard of the typed tables beside the table of all cells; none where the lake
    has no typed tables."""
    # Libraries of an extra, and large ones.
    from cellfeed.assembly.lakes import lake_place, lake_schemas
    from cellfeed.consumers.lake.typed.table_digests import ColumnDigests
    from cellfeed.consumers.lake.views import LakeView

    place = lake_place(lake, directory)
    with lake_schemas(lake, load_config(directory.config), directory.path) as schemas:
        columns = schemas() if schemas is not None else {}
    found: list[ShardReport] = []
    for column, versions in columns.items():
        digests = ColumnDigests(place, column, versions)
        with LakeView(place).connect() as connection:
            digests.add_views(connection)
            found += digests.shards(connection)
    return found


def print_typed(reports: Sequence[ShardReport], *, as_json: bool) -> None:
    """One line for each table, and one for each shard that differs; as JSON one for each shard."""
    if as_json:
        for report in reports:
            print_json({**report._asdict(), "equal": report.equal})
        return
    for table in dict.fromkeys(each.table for each in reports):
        own = [each for each in reports if each.table == table]
        wrong = [each for each in own if not each.equal]
        cells = sum(each.cells for each in own)
        says = "DIFFERENT" if wrong else "equal"
        console.print(f"{table}: {cells} cells in {len(own)} shards, {says}", highlight=False)
        for each in wrong:
            console.print(
                f"  shard {each.shard}: {each.digest}, wanted {each.wanted}", highlight=False
            )
