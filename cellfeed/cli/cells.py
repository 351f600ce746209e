"""put, get, scan, tail, load: cells by hand."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    DatastoreOption,
    RunDirOption,
    UrlOption,
    client_of,
)
from cellfeed.cli.output import JsonOption, console, errors, print_cell, print_json, progress_bar
from cellfeed.loading.load import LoadReport, LoadSpec, load_file
from cellfeed.loading.records import FileFormat, size_of
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import InvalidLocation, InvalidRequest, NotFound, Unavailable

RowKeyArgument = Annotated[str, typer.Argument(help="Row key: a UUID.")]
ColumnArgument = Annotated[str, typer.Argument(help="Column name, for example BASE.")]


def put(
    row_key: RowKeyArgument,
    column: ColumnArgument,
    ref_key: Annotated[
        int, typer.Argument(help="Version of the cell; the latest has the highest.")
    ],
    body: Annotated[
        str, typer.Argument(help="A JSON object, or - to read it from standard input.")
    ],
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one cell. The same cell again changes nothing; another body for it is a conflict."""
    text = sys.stdin.buffer.read() if body == "-" else body.encode("utf-8", "surrogateescape")
    parsed = canonical_json.parse(canonical_json.canonical_from_json(text))
    with client_of(run_dir, url, datastore) as client:
        result = client.put_cell(row_key, column, ref_key, parsed)
    if as_json:
        print_json(
            {"outcome": result.outcome.value, "shard": result.shard, "added_id": result.added_id}
        )
    else:
        console.print(
            f"{result.outcome.value} at {result.shard}/{result.added_id}", highlight=False
        )


def get(
    row_key: RowKeyArgument,
    column: Annotated[
        str | None, typer.Argument(help="Column; all of the row when left out.")
    ] = None,
    ref_key: Annotated[
        int | None, typer.Argument(help="Version; the latest when left out.")
    ] = None,
    read_from: Annotated[
        Replica,
        typer.Option(
            "--from",
            help=(
                "Where to read first. A minion takes the load off the master; what it has may be"
                " stale."
            ),
        ),
    ] = (Replica.MASTER),
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a cell, the latest cell of a column, or the latest of every column of a row."""
    with client_of(run_dir, url, datastore) as client:
        if column is None:
            cells = list(client.get_row(row_key, read_from=read_from).values())
        else:
            if ref_key is None:
                cell = client.get_cell_latest(row_key, column, read_from=read_from)
            else:
                cell = client.get_cell(row_key, column, ref_key, read_from=read_from)
            cells = [cell] if cell else []
    if not cells:
        raise NotFound(
            "no cell of"
            f" {row_key}{' ' + column if column else ''}{'' if ref_key is None else f' {ref_key}'}"
        )
    for cell in cells:
        print_cell(cell, as_json)


def scan(
    shard: Annotated[int, typer.Argument(help="Shard number.")],
    location: Annotated[
        str | None,
        typer.Argument(
            help=(
                "The next added_id to read, or a timestamp with a time zone; the start of the log"
                " when left out."
            )
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Cells at most.")] = 100,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a shard's log from a location on."""
    given = _location(location) if location is not None else None
    with client_of(run_dir, url, datastore) as client:
        at: int | datetime = (
            given
            if given is not None
            else client.heads()[check_shard(shard, client.shards)].log_start
        )
        while limit > 0:
            piece = client.get_cells_for_shard(shard, at, min(limit, 1000))
            for cell in piece.cells:
                print_cell(cell, as_json)
            limit -= len(piece.cells)
            at = piece.next_location
            if not piece.cells:
                break
    errors.print(f"next location {at}", highlight=False)


def tail(
    shard: Annotated[
        list[int] | None,
        typer.Option("--shard", help="Only these shards; may be given several times."),
    ] = None,
    column: Annotated[
        str | None, typer.Option("--column", help="Only cells of this column.")
    ] = None,
    last: Annotated[
        int, typer.Option("--last", min=0, help="Begin with so many cells of each shard's end.")
    ] = 0,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="End after so long; until Ctrl-C when left out."),
    ] = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow the logs: new cells of all shards as they come."""
    deadline_s = time.monotonic() + seconds if seconds is not None else None
    with client_of(run_dir, url, datastore) as client:
        heads = client.heads()
        locations: dict[int, int | datetime] = {
            number: max(heads[number].log_start, heads[number].watermark - last)
            for number in shard or heads
        }
        try:
            while deadline_s is None or time.monotonic() < deadline_s:
                found = False
                try:
                    pieces = client.get_cells_for_shards(locations, 500)
                except Unavailable as error:
                    errors.print(f"waiting: {error}", highlight=False, markup=False)
                    time.sleep(1.0)
                    continue
                for number, piece in pieces.items():
                    for cell in piece.cells:
                        found = True
                        if column is None or cell.column_name == column:
                            print_cell(cell, as_json)
                    locations[number] = piece.next_location
                sys.stdout.flush()
                if not found:
                    time.sleep(0.1)
        except KeyboardInterrupt:
            return


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
        FileFormat | None, typer.Option("--format", help="Told by the file's name when left out.")
    ] = None,
    field_types: Annotated[
        str,
        typer.Option(
            "--field-types", help="Types of CSV fields: name:int,name:float,… Text when left out."
        ),
    ] = "",
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load a file's records as cells. Running it again changes nothing, so a load that was cut off
    is finished by running it again."""
    if not file.is_file():
        raise InvalidRequest(f"there is no file {file}")
    spec = LoadSpec(
        column=column,
        row_key=row_key,
        row_key_from=tuple(filter(None, (row_key_from or "").split(","))),
        ref_key=int(ref_key) if ref_key.lstrip("-").isdigit() else ref_key,
        file_format=file_format,
        field_types=_field_types(field_types),
    )
    with client_of(run_dir, url, datastore) as client, progress_bar() as bar:
        task = bar.add_task(f"loading {file.name} (bytes)", total=size_of(file))
        report = load_file(
            file, client, spec, on_progress=lambda now: bar.update(task, completed=now.read_bytes)
        )
    _tell(report, as_json)
    if not report.complete:
        raise typer.Exit(1)


def _tell(report: LoadReport, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    for problem in report.problems:
        errors.print(
            f"line {problem.line}: {problem.outcome.value}: {problem.error}",
            style="red",
            highlight=False,
            markup=False,
        )
    counts = ", ".join(
        f"{name} {value}" for name, value in report.as_json().items() if isinstance(value, int)
    )
    console.print(counts, highlight=False)


def _location(text: str) -> int | datetime:
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidLocation(
            f"location {text!r} is neither an added_id nor a timestamp such as"
            " 2019-03-23T20:21:09+00:00"
        ) from None
    if moment.tzinfo is None:
        raise InvalidLocation(f"location {text!r} has no time zone; write for example {text}+00:00")
    return moment


def _field_types(text: str) -> dict[str, str]:
    pairs = [part.partition(":") for part in filter(None, text.split(","))]
    if any(not kind for _, _, kind in pairs):
        raise InvalidRequest(f"--field-types {text!r} is not of the form name:type,name:type")
    return {name: kind for name, _, kind in pairs}
