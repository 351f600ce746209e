"""load: a file's records as cells. Loaded cells stay for ever, so the first load of a file is shown
before it begins."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    DatastoreOption,
    RunDirOption,
    UrlOption,
    client_of,
)
from cellfeed.cli.load_report import show_end, show_look
from cellfeed.cli.output import JsonOption, console, errors, print_json, progress_bar
from cellfeed.loading.load import load_cells
from cellfeed.loading.look import look_at, was_loaded
from cellfeed.loading.records import FileFormat, size_of
from cellfeed.loading.report import LoadReport
from cellfeed.loading.spec import FileCells, LoadSpec, cells_of_file
from cellfeed.store.api import CellStore
from cellfeed.store.errors import InvalidRequest

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
"""A ref key; any other text is the name of a field."""

ASKED_COMPARES_MAX: Final = 100_000
"""Cells that are compared with the store before the question; ``--dry-run`` compares all."""


def load(
    file: Annotated[Path, typer.Argument(help="CSV, NDJSON or Parquet.")],
    column: Annotated[str, typer.Option("--column", help="Column of the cells.")],
    datastore: DatastoreOption = None,
    row_key: Annotated[
        str | None, typer.Option("--row-key", help="The field that holds the row key (a UUID).")
    ] = None,
    row_key_from: Annotated[
        str | None,
        typer.Option(
            "--row-key-from",
            help="Fields, separated by commas, that a stable row key is made from.",
        ),
    ] = None,
    ref_key: Annotated[
        str, typer.Option("--ref-key", help="A number, or the field that holds it.")
    ] = "1",
    file_format: Annotated[
        FileFormat | None, typer.Option("--format", help="The file's name decides when left out.")
    ] = None,
    field_types: Annotated[
        str,
        typer.Option(
            "--field-types",
            help=(
                "Types of CSV fields: name:int,name:float,… (int, float, bool, json, text). Those"
                " of the others are inferred from the whole file."
            ),
        ),
    ] = "",
    all_text: Annotated[
        bool,
        typer.Option("--all-text", help="CSV fields without a type of yours are text."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show types, keys, examples and conflicts, and write nothing."
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Load without the question that a terminal is asked."),
    ] = False,
    max_errors: Annotated[
        int,
        typer.Option("--max-errors", min=0, help="Stop when more lines than these have errors."),
    ] = 100,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load a file's records as cells. Running it again changes nothing, so a load that was cut off
    is finished by running it again. On a terminal the first load of a file is shown and asked."""
    if not file.is_file():
        raise InvalidRequest(f"there is no file {file}")
    spec = LoadSpec(
        column=column,
        row_key=row_key,
        row_key_from=tuple(filter(None, (row_key_from or "").split(","))),
        ref_key=int(ref_key) if _NUMBER.fullmatch(ref_key) else ref_key,
        file_format=file_format,
        field_types=_field_types(field_types),
        all_text=all_text,
    )
    cells = cells_of_file(file, spec)
    with client_of(run_dir, url, datastore) as client:
        if dry_run:
            look = look_at(cells, client)
            if as_json:
                print_json(look.as_json())
            else:
                show_look(console, cells, look, client.name)
                console.print("nothing was written (--dry-run)", highlight=False)
            if look.would.errors:
                raise typer.Exit(1)
            return
        if not yes and sys.stdin.isatty() and not was_loaded(cells, client):
            _ask(cells, client)
        report = _load(cells, client, max_errors, as_json)
    if not report.complete:
        raise typer.Exit(1)


def _ask(cells: FileCells, client: CellStore) -> None:
    """Raises Exit with code 1 where the person does not want it."""
    look = look_at(cells, client, ASKED_COMPARES_MAX)
    show_look(errors, cells, look, client.name)
    if not typer.confirm("Cells stay as they are for ever. Load them?", err=True):
        errors.print("nothing was written", highlight=False)
        raise typer.Exit(1)


def _load(cells: FileCells, client: CellStore, max_errors: int, as_json: bool) -> LoadReport:
    report, began_s = LoadReport(), time.monotonic()
    try:
        with progress_bar() as bar:
            task = bar.add_task(f"loading {cells.path.name} (bytes)", total=size_of(cells.path))
            load_cells(
                cells,
                client,
                lambda now: bar.update(task, completed=now.read_bytes),
                max_errors=max_errors,
                report=report,
            )
    except BaseException:
        show_end(report, time.monotonic() - began_s, max_errors, as_json, broken_off=True)
        raise
    show_end(report, time.monotonic() - began_s, max_errors, as_json)
    return report


def _field_types(text: str) -> dict[str, str]:
    pairs = [part.partition(":") for part in filter(None, text.split(","))]
    if any(not kind for _, _, kind in pairs):
        raise InvalidRequest(f"--field-types {text!r} is not of the form name:type,name:type")
    return {name: kind for name, _, kind in pairs}
