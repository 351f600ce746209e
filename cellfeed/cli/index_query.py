"""index query: rows by the fields of their cells."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cellfeed.cli.index import NameArgument, app
from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    DatastoreOption,
    RunDirOption,
    UrlOption,
    client_of,
)
from cellfeed.cli.output import JsonOption, cell_as_json, console, print_json
from cellfeed.store.errors import InvalidRequest


@app.command()
def query(
    name: NameArgument,
    shard_value: Annotated[
        list[str],
        typer.Argument(
            metavar="SHARD_VALUE...",
            help="The value of the shard field; several are asked together.",
        ),
    ],
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="FIELD OP VALUE",
            help=(
                "A filter, for example --where 'city = \"NYC\"'; VALUE is JSON, or else text; may"
                " be repeated."
            ),
        ),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            "--order-by",
            help="The field to order by, then the row key; the row key alone when left out.",
        ),
    ] = None,
    descending: Annotated[bool, typer.Option("--descending", help="The highest first.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Rows of one answer.")
    ] = 100,
    cursor: Annotated[
        str | None,
        typer.Option(
            "--cursor", help="Continue behind an answer: this version, everything else unchanged."
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", help="A field to show; all when left out; may be repeated."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            help="Show the rows' latest cell of this column as well, * for all; may be repeated.",
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="Straight from the index, not checked against the current cells."
        ),
    ] = False,
    minion: Annotated[bool, typer.Option("--minion", help="Ask a minion first.")] = False,
    wait_for: Annotated[
        list[str] | None,
        typer.Option(
            "--wait-for",
            metavar="SHARD/ADDED_ID",
            help="Wait until the index has come past this cell.",
        ),
    ] = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the rows whose fields are as asked for. Prints a line for each, and the cursor of
    the next page."""
    columns: Any = "*" if column == ["*"] else column
    with client_of(run_dir, url, datastore) as client:
        page = client.query_index(
            name,
            [_value(each) for each in shard_value],
            [_filter(each) for each in where or ()],
            order_by=order_by,
            descending=descending,
            limit=limit,
            cursor=cursor,
            fields=field,
            columns=columns,
            mode="fast" if fast else "fresh",
            read_from="minion" if minion else "master",
            wait_for=[_location(each) for each in wait_for or ()],
        )
    for row in page.rows:
        cells = {name: cell_as_json(cell) for name, cell in row.cells.items()}
        if as_json:
            print_json({"row_key": str(row.row_key), "fields": row.fields, "cells": cells})
        else:
            shown = "  ".join(
                f"{name}={json.dumps(value, ensure_ascii=False)}"
                for name, value in row.fields.items()
            )
            console.print(
                f"{row.row_key}  {shown}",
                *(f"\n    {name} {json.dumps(cell['body'])}" for name, cell in cells.items()),
                highlight=False,
            )
    if as_json:
        print_json({"cursor": page.cursor, "version": page.version, "stale": page.stale})
        return
    if not page.rows:
        console.print(f"no row found in index {name} (version {page.version})", highlight=False)
    if page.stale:
        console.print("stale: a minion answered, so later cells may be missing", highlight=False)
    if page.cursor is not None:
        console.print(f"more: --cursor {page.cursor}", highlight=False)


def _value(text: str) -> Any:
    """The value of a text that is JSON; any other text, and JSON text of an object, as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict) else value


def _filter(text: str) -> tuple[str, str, Any]:
    parts = text.split(maxsplit=2)
    if len(parts) != 3:
        raise InvalidRequest(
            f"--where {text!r}: FIELD OP VALUE is meant, for example 'fare >= 1000'"
        )
    return parts[0], parts[1], _value(parts[2])


def _location(text: str) -> tuple[int, int]:
    shard, slash, added_id = text.partition("/")
    if not (slash and shard.isdigit() and added_id.isdigit()):
        raise InvalidRequest(
            f"--wait-for {text!r}: SHARD/ADDED_ID is meant, as `cellfeed put` prints it"
        )
    return int(shard), int(added_id)
