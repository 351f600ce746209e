"""parked list|show|retry|skip|resume|export: cells that a trigger could not run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, TextIO

import msgspec
import typer
from rich.table import Table

from cellfeed.bridge.groups.history import Deed, entry, operator
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption, opened
from cellfeed.cli.known_groups import must_exist
from cellfeed.cli.output import JsonOption, console, errors, print_json, print_result
from cellfeed.cli.parked_export import ExportFormat, write_parked
from cellfeed.store.cells.cell import moment
from cellfeed.store.errors import InvalidRequest, NotFound

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Cells that a trigger could not run: list, show, retry, skip, export; resume a stopped"
        " trigger."
    ),
)

GroupArgument = Annotated[str, typer.Argument(help="The trigger's group, for example billing.")]
CellArgument = Annotated[
    str, typer.Argument(help="The parked cell, as the list shows it: shard/added_id.")
]


@app.command("list")
def list_parked(
    group: Annotated[str | None, typer.Argument(help="Only this trigger's.")] = None,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="Those that were skipped, instead.")
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """List parked cells."""
    with _parked(run_dir, group) as parked:
        cells = parked.skipped(group) if skipped else parked.all(group)
    if as_json:
        for cell in cells:
            print_json(msgspec.to_builtins(cell))
        return
    table = Table(
        "group",
        "cell",
        "row key",
        "column",
        "tries",
        "parked since",
        "reason" if skipped else "error",
        box=None,
    )
    for cell in cells:
        reason = cell.skipped_because if skipped else cell.error.strip().splitlines()[-1][:100]
        table.add_row(
            cell.group,
            cell.cell_id,
            cell.row_key,
            cell.column_name,
            str(cell.attempts),
            _when(cell.parked_at_us),
            reason,
        )
    console.print(table if cells else "nothing is parked")


@app.command()
def show(
    group: GroupArgument,
    cell: CellArgument,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show one parked cell with its whole error."""
    with _parked(run_dir, group) as parked:
        found = parked.find(group, cell)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found)


@app.command()
def retry(
    group: GroupArgument,
    cell: Annotated[
        str | None, typer.Argument(help="One parked cell; all of the group when left out.")
    ] = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Have parked cells tried again now."""
    with _parked(run_dir, group) as parked:
        count = parked.ask_retry(group, cell)
    print_result(as_json, {"to_be_tried_again": count}, f"{count} to be tried again")


@app.command()
def skip(
    group: GroupArgument,
    cell: CellArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="Why it is given up; kept for the record.")
    ],
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Give a parked cell up for good, with a reason."""
    with _parked(run_dir, group) as parked:
        parked.skip(group, cell, reason)
    print_result(as_json, {"skipped": cell}, f"{cell} skipped")


@app.command()
def resume(
    group: GroupArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; kept in the trigger's history.")
    ] = "not given",
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Resume a trigger that stopped because too many cells were parked."""
    by = operator(reason)
    with opened(run_dir) as instance:
        must_exist(group, instance)
        datastore = instance.datastore
        parked = ParkedCells(datastore.state)
        stopped = parked.stopped_because(group)
        if stopped is None:
            raise NotFound(f"trigger {group!r} is not stopped")
        deed = Deed(
            group=group,
            action="parked resume",
            by=by.name,
            because=by.because,
            at_us=datastore.state.now_us(),
            to=f"it was stopped: {stopped[:200]}",
        )
        parked.resume(group, entry(deed))
    print_result(as_json, {"resumed": group}, f"{group} has resumed")


@app.command()
def export(
    group: GroupArgument,
    form: Annotated[
        ExportFormat, typer.Option("--format", help="One JSON object a line, or CSV with a header.")
    ] = ExportFormat.NDJSON,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="A file that is not there yet; standard output when left out."
        ),
    ] = None,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="Those that were skipped, instead.")
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Write a trigger's parked cells, each with its error and its body."""
    with opened(run_dir) as instance:
        must_exist(group, instance)
        datastore = instance.datastore
        parked = ParkedCells(datastore.state)
        cells = parked.skipped(group) if skipped else parked.all(group)
        if output is None:
            count = write_parked(cells, datastore, sys.stdout, form)
        else:
            count = _write_file(output, lambda file: write_parked(cells, datastore, file, form))
    # Beside the records, not among them.
    errors.print(
        f"{count} parked cells of {group}{f' in {output}' if output else ''}", highlight=False
    )


def _write_file(path: Path, write: Callable[[TextIO], int]) -> int:
    """Writes a file whole or not at all, unless the process is killed; never over another one."""
    try:
        file = path.open("x", encoding="utf-8", newline="")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
    try:
        with file:
            return write(file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def _parked(run_dir: Path, group: str | None) -> Iterator[ParkedCells]:
    """The parked cells of an instance. Raises NotFound for a group that has never been there."""
    with opened(run_dir) as instance:
        if group is not None:
            must_exist(group, instance)
        yield ParkedCells(instance.datastore.state)


def _print(cell: ParkedCell) -> None:
    console.print(
        f"{cell.group} {cell.cell_id}: row key {cell.row_key}, column {cell.column_name}, ref key"
        f" {cell.ref_key}",
        highlight=False,
    )
    console.print(
        f"parked {_when(cell.parked_at_us)}, tried {cell.attempts} times, last"
        f" {_when(cell.last_tried_at_us)}",
        highlight=False,
    )
    console.print(cell.error, highlight=False, markup=False)


def _when(moment_us: int) -> str:
    return datetime.strftime(moment(moment_us), "%Y-%m-%d %H:%M:%S UTC")
