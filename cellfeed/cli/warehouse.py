"""warehouse query|status: a look into the Parquet table, with DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.cli.table_query import print_query
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound

app = typer.Typer(
    no_args_is_help=True, help="The warehouse table: SQL over it, and how far it has come."
)

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory", help="The table's folder; the instance's first warehouse when left out."
    ),
]


@app.command()
def query(
    sql: Annotated[
        str,
        typer.Argument(
            help="SQL over the views `cells` (all) and `latest` (newest of each row and column)."
        ),
    ],
    directory: DirectoryOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Ask the table, with DuckDB."""
    table = WarehouseTable(table_directory(directory, run_dir))
    print_query(table.query, sql, as_json=as_json)


@app.command()
def status(
    directory: DirectoryOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """How many rows and files, and where each shard resumes."""
    table = WarehouseTable(table_directory(directory, run_dir))
    answer = {
        "rows": table.row_count(),
        "files": len(table.files()),
        "next_offsets": {str(k): v for k, v in table.next_offsets().items()},
    }
    if as_json:
        print_json(answer)
    else:
        console.print(
            f"{answer['rows']} rows in {answer['files']} files; next offsets"
            f" {answer['next_offsets']}",
            highlight=False,
        )


def table_directory(directory: Path | None, run_dir: Path) -> Path:
    """The table's folder. Raises NotFound when the instance has no warehouse."""
    if directory is not None:
        return directory
    instance = RunDir(run_dir)
    warehouses = load_config(instance.config).warehouses if instance.config.exists() else []
    if not warehouses:
        raise NotFound(
            f"the instance in {run_dir} has no warehouse; name a table's folder with --directory"
        )
    return instance.inside(warehouses[0].directory)
