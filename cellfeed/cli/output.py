"""How commands print: for people by default, JSON lines for machines with ``--json``; errors in one
line, and the exit code that goes with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cellfeed.store.cells.cell import Cell
from cellfeed.store.errors import CellfeedError

PIPE_COLUMNS: Final = 1000
"""Columns of tables that go to a file or another program: enough to cut off nothing, where a
terminal's width means nothing."""

# Without markup: what is printed is mostly data, where "[red]" is text like any other.
console = Console(soft_wrap=True, markup=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
errors = Console(stderr=True, soft_wrap=True, markup=False)

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object per line, for machines.")
]


def print_json(value: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
    )


def cell_as_json(cell: Cell) -> dict[str, Any]:
    """A cell as commands print it."""
    return {
        "shard": cell.shard,
        "added_id": cell.added_id,
        "row_key": str(cell.row_key),
        "column_name": cell.column_name,
        "ref_key": cell.ref_key,
        "created_at": cell.created_at.isoformat(),
        "body": None if cell.erased else cell.body,
        **({"stale": True} if cell.stale else {}),
    }


def print_cell(cell: Cell, as_json: bool) -> None:
    """A cell as one line."""
    if as_json:
        print_json(cell_as_json(cell))
    else:
        place = f"{cell.shard}/{cell.added_id}"
        console.print(
            f"{place:>10}  {cell.row_key}  {cell.column_name} {cell.ref_key} "
            f" {cell.body_json.decode()}{'  (stale: from a minion)' if cell.stale else ''}",
            markup=False,
            highlight=False,
        )


def cluster_line(cluster: Mapping[str, Any]) -> str:
    """How a cluster stands, in one line."""
    up = sum(node["up"] for node in cluster["nodes"])
    if cluster["lag_cells"] is None:
        lag = "nobody knows how many cells are not on a minion"
    else:
        age = "" if cluster["lag_s"] is None else f", the oldest for {cluster['lag_s']:.1f} s"
        lag = (
            f"{cluster['lag_cells']} cells not on a minion yet{age if cluster['lag_cells'] else ''}"
        )
    mode = "semi-synchronous" if cluster["semi_sync"] else "asynchronous"
    return (
        f"cluster {cluster['name']}: master {cluster['master'] or 'unknown'}, {mode}; {up} of"
        f" {len(cluster['nodes'])} nodes up; {lag}"
    )


def fail(error: CellfeedError, as_json: bool = False) -> typer.Exit:
    """Prints an error; what to raise then."""
    if as_json:
        print_json(error.as_json())
    errors.print(f"cellfeed: {error}", style="red", markup=False, highlight=False)
    return typer.Exit(error.exit_code)


def progress_bar() -> Progress:
    """A progress bar on a terminal; nothing that fills logs elsewhere."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
    )
