"""How commands print: for people by default, JSON lines for machines with ``--json``; errors in one
line, and the exit code that goes with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

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
from rich.table import Table

from cellfeed.store.cells.cell import Cell
from cellfeed.store.errors import CellfeedError

if TYPE_CHECKING:
    from cellfeed.bridge.typed.rejected_cells import LeftOutOfTopic

PIPE_COLUMNS: Final = 1000
"""Columns of tables that go to a file or another program: enough to cut off nothing, where a
terminal's width means nothing."""

_NARROWEST_COLUMN: Final = 12
"""Characters that a column of a table needs at least to be of use."""

_BETWEEN_COLUMNS: Final = 2
"""Blanks between two columns of a table."""

# Without markup: the output is mostly data, where "[red]" is text like any other.
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


def print_result(as_json: bool, value: Mapping[str, Any], text: str) -> None:
    """A command's result: ``value`` as one line of JSON for machines, ``text`` for people."""
    if as_json:
        print_json(value)
    else:
        console.print(text, highlight=False)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of a query as a table. On a terminal it is no wider than that: values that are too long
    end with "…", and rows of many columns stand as records, a line for each value."""
    if not rows:
        console.print("no rows")
        return
    names = [str(name) for name in rows[0]]
    fits = not console.is_terminal or len(names) * _NARROWEST_COLUMN <= console.width
    if fits:
        shown = [[str(value) for value in row.values()] for row in rows]
    else:
        shown = [
            [str(name), str(value)] for row in rows for name, value in (*row.items(), ("", ""))
        ]
        shown.pop()  # blank lines stand between records only
    table = Table(*(names if fits else ("", "")), box=None, show_header=fits, pad_edge=False)
    for row in shown:
        table.add_row(*row)
    if console.is_terminal:
        needed = [max(map(len, column)) for column in zip(*shown, strict=True)]
        if fits:
            needed = [max(width, len(name)) for width, name in zip(needed, names, strict=True)]
        for column, width in zip(table.columns, _shared(needed, console.width), strict=True):
            column.width, column.no_wrap, column.overflow = width, True, "ellipsis"
    console.print(table, soft_wrap=not console.is_terminal)


def _shared(needed: Sequence[int], columns: int) -> list[int]:
    """Widths that fit a line: short columns stay whole, long ones share the rest."""
    room = columns - _BETWEEN_COLUMNS * (len(needed) - 1)
    widest = min(max(needed), columns)
    while widest > 1 and sum(min(width, widest) for width in needed) > room:
        widest -= 1
    return [min(width, widest) for width in needed]


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


def node_advice(cluster: Mapping[str, Any]) -> list[str]:
    """Advice for the operator of each node, a line each."""
    return [f"  {node['name']}: {node['advice']}" for node in cluster["nodes"] if node["advice"]]


def left_out_line(of: LeftOutOfTopic) -> str:
    """How many cells the typed topics of a column leave out, and why."""
    first = of.first
    topics = "its typed topics (unfit: park)"
    if of.gateways:
        topics = (
            f"declared typed topics of {', '.join(of.gateways)}, until a restart there"
            " (unfit was park at its start)"
        )
    return (
        f"{of.cells}{' or more' if of.or_more else ''} cells of column {of.column} fit no version"
        f" of its schema and have no record in {topics}, such as"
        f" {first.shard}/{first.added_id}: {first.reason}; list them:"
        f" cellfeed schemas unfit --column {of.column}"
    )


def fail(error: CellfeedError, as_json: bool = False) -> typer.Exit:
    """Prints an error; returns the exception to raise then."""
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
