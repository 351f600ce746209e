"""put, get, scan, tail: cells by hand."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import Annotated, Final

import typer

from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    DatastoreOption,
    RunDirOption,
    UrlOption,
    client_of,
)
from cellfeed.cli.output import JsonOption, console, errors, print_cell, print_json
from cellfeed.status.newest import newest_cells
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import InvalidLocation, NotFound, Unavailable

RowKeyArgument = Annotated[str, typer.Argument(help="Row key: a UUID.")]
ColumnArgument = Annotated[str, typer.Argument(help="Column name, for example BASE.")]

_ADDED_ID_DIGITS: Final = 19
"""No added_id has more."""


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
            {
                "outcome": result.outcome.value,
                "shard": result.shard,
                "added_id": result.added_id,
                "token": result.token,
            }
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
                "Where to read first. A minion takes the load off the master; its cells may be"
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
        int, typer.Option("--last", min=0, help="Begin with so many of the newest cells.")
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
        followed = {number: heads[check_shard(number, client.shards)] for number in shard or heads}
        for cell in newest_cells(client, followed, last, column):
            print_cell(cell, as_json)
        locations: dict[int, int | datetime] = {
            number: head.watermark for number, head in followed.items()
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


def _location(text: str) -> int | datetime:
    if text.isascii() and text.isdigit() and len(text) <= _ADDED_ID_DIGITS:
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
