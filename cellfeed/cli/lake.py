"""lake status|query|verify: a look into a lake's table."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption, client_of
from cellfeed.cli.lake_tables import print_typed, typed_reports, typed_status
from cellfeed.cli.output import JsonOption, console, errors, print_json
from cellfeed.cli.table_query import print_query
from cellfeed.cli.verify import print_verdict
from cellfeed.config.lake import LakeConfig
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.store.api import CellStore
from cellfeed.store.errors import NotFound
from cellfeed.verify.place import Place
from cellfeed.verify.report import verify as compare
from cellfeed.verify.store_place import StorePlace

app = typer.Typer(
    no_args_is_help=True,
    help="Lake tables (Iceberg, Delta): how far they are, SQL over them, digests beside the store.",
)

NameOption = Annotated[
    str | None,
    typer.Option("--lake", help="The lake's name; the configuration's first one when left out."),
]
LAGGING_SHARDS_MAX: Final = 64
"""Shards whose first missing cell is asked for: those that are furthest behind."""


@app.command()
def status(
    name: NameOption = None, run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False
) -> None:
    """Rows, files, bytes, the last commit, lag in cells and seconds, and why a loader waits."""
    # Libraries of an extra, and large ones.
    from cellfeed.assembly.lakes import lake_place
    from cellfeed.consumers.lake.open_table import find_lake_table

    lake, directory = _lake(name, run_dir)
    answer: dict[str, Any] = {"lake": lake.name, "format": lake.format}
    table = find_lake_table(lake_place(lake, directory))
    positions: dict[int, int] = {}
    if table is not None:
        state = table.look()
        files, last = state.files(), state.last_commit()
        positions = {shard: each.next_id for shard, each in state.positions.items()}
        answer |= {
            "rows": sum(each.rows for each in files),
            "files": len(files),
            "bytes": sum(each.bytes for each in files),
            "snapshot": state.version,
            "source": state.source,
            "last_commit": _moment(last.at_us) if last is not None else None,
        }
    with client_of(run_dir, None, None) as client:
        lag_cells, lag_s = lag(client, positions)
    answer |= {
        "lag_cells": lag_cells,
        "lag_s": round(lag_s, 1),
        "troubles": directory.troubles(lake.name),
        "tables": typed_status(lake_place(lake, directory)),
    }
    if as_json:
        print_json(answer)
        return
    for key, value in answer.items():
        for line in value if isinstance(value, list) else [value]:
            console.print(f"{key:12} {line}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def query(
    sql: Annotated[
        str,
        typer.Argument(
            help="SQL over the views `cells` (all), `latest` (newest of each row and column), and"
            " one for each typed table; a filter on `created_day` reads the files of these days"
            " alone."
        ),
    ],
    name: NameOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Ask the table, with DuckDB."""
    # Libraries of an extra, and large ones.
    from cellfeed.assembly.lakes import lake_place
    from cellfeed.consumers.lake.views import LakeView

    lake, directory = _lake(name, run_dir)
    view = LakeView(lake_place(lake, directory))
    print_query(view.query, sql, as_json=as_json)


@app.command()
def verify(
    name: NameOption = None, run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False
) -> None:
    """Compare the table with the store: a digest per shard, up to where both have come.

    Then compare each typed table with the table of all cells. Exits with 1 when they differ.
    """
    # Libraries of an extra, and large ones.
    from cellfeed.assembly.lakes import lake_place
    from cellfeed.verify.lake_place import LakePlace

    lake, directory = _lake(name, run_dir)
    with client_of(run_dir, None, None) as client:
        places: list[Place] = [StorePlace(client), LakePlace(lake_place(lake, directory))]
        with errors.status("reading store, lake"):
            report = compare(places)
            typed = typed_reports(lake, directory)
    print_verdict(report, as_json=as_json)
    print_typed(typed, as_json=as_json)
    if not all(each.equal for each in typed):
        raise typer.Exit(1)


def lag(store: CellStore, positions: dict[int, int]) -> tuple[int, float]:
    """Cells of the store that a table lacks, and how old the oldest one is, seconds."""
    behind = {
        shard: missing
        for shard, head in store.heads().items()
        if (missing := head.watermark - max(positions.get(shard, 0), head.log_start)) > 0
    }
    oldest, now = 0.0, time.time()
    for shard in sorted(behind, key=lambda each: -behind[each])[:LAGGING_SHARDS_MAX]:
        cells = store.get_cells_for_shard(shard, positions.get(shard, 0), 1)
        for cell in cells.cells:
            oldest = max(oldest, now - cell.created_at.timestamp())
    return sum(behind.values()), oldest


def _lake(name: str | None, run_dir: Path) -> tuple[LakeConfig, RunDir]:
    from cellfeed.assembly.lakes import lake_named  # loads a library of an extra

    directory = RunDir(run_dir)
    if not directory.config.exists():
        raise NotFound(f"{run_dir} is not the run directory of an instance; name it with --run-dir")
    return lake_named(load_config(directory.config), name), directory


def _moment(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")
