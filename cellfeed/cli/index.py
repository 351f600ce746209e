"""index create|build|query|status|drop: secondary indexes. Checks and repairs are in
index_check.py."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.indexes.status import VersionStatus, drop_versions, version_status
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    ConfigOption,
    DatastoreOption,
    RunDirOption,
    UrlOption,
    client_of,
    opened,
)
from cellfeed.cli.output import JsonOption, cell_as_json, console, print_json, progress_bar
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.catalog import BUILDING, VersionRecord
from cellfeed.store.indexes.definition_file import load_definition

app = typer.Typer(
    no_args_is_help=True, help="Secondary indexes: find rows by the fields of their cells."
)

NameArgument = Annotated[
    str, typer.Argument(help="The index, as its definition's `table` names it.")
]
ThrottleOption = Annotated[
    float | None,
    typer.Option(
        "--throttle",
        min=1,
        metavar="CELLS_PER_S",
        help="Build at most so many cells a second in each worker process.",
    ),
]

_POLL_S = 0.2


@app.command()
def create(
    definition: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The definition, YAML: table, datastore, column_defs."),
    ],
    throttle: ThrottleOption = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Make an index of a definition, or a new version of the index whose definition has changed.

    A running index worker (an entry under indexes: of the configuration) begins to build it at
    once; so does `cellfeed index build`. Queries use the version before until the new one is
    complete.
    """
    loaded = load_definition(definition)
    with opened(run_dir, config) as instance:
        record = instance.datastore.indexes.catalog.create(loaded, cells_per_s=throttle)
        instance.datastore.engine.indexes.create(instance.datastore.indexes.version(record).table)
    if as_json:
        print_json({"index": loaded.table, "version": record.number, "state": record.state})
    else:
        console.print(
            f"index {loaded.table}: version {record.number} is {record.state}", highlight=False
        )


@app.command()
def build(
    name: NameArgument,
    throttle: ThrottleOption = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Wait until the newest version of an index is complete and answers queries, with a progress
    bar; does the work itself where no index worker runs.

    Ctrl-C ends the waiting; the built part stays, and building resumes from there the next time.
    """
    with opened(run_dir, config) as instance:
        catalog = instance.datastore.indexes.catalog
        record = catalog.get(name).building
        if record is not None:
            if throttle is not None:
                catalog.throttle(name, record.number, throttle)
            _wait_until_built(instance, name, record)
        status = version_status(
            instance.datastore, instance.coordinator, catalog.get(name).versions[-1]
        )
    _print_status([status], as_json)


def _wait_until_built(instance: Opened, name: str, record: VersionRecord) -> None:
    catalog, stop = instance.datastore.indexes.catalog, threading.Event()
    first = version_status(instance.datastore, instance.coordinator, record)
    worker = IndexWorker(
        instance.datastore,
        instance.coordinator,
        f"build-{socket.gethostname()}-{os.getpid()}",
        only=name,
    )
    thread: threading.Thread | None = None
    try:
        with progress_bar() as bar:
            task = bar.add_task(
                f"index {name} version {record.number}",
                total=first.cells_total,
                completed=first.cells_total - first.cells_behind,
            )
            while any(
                each.number == record.number and each.state == BUILDING
                for each in catalog.get(name).versions
            ):
                now = version_status(instance.datastore, instance.coordinator, record)
                if (
                    thread is None and not now.workers
                ):  # asked each time: one that was killed counts as a worker until its session ends
                    thread = threading.Thread(target=worker.run, args=(stop,), name="index-build")
                    thread.start()
                bar.update(
                    task, total=now.cells_total, completed=now.cells_total - now.cells_behind
                )
                if thread is not None and not thread.is_alive():
                    raise InvalidRequest("the build has ended before it was complete; see its log")
                stop.wait(_POLL_S)
            bar.update(task, completed=bar.tasks[task].total)
    finally:
        stop.set()
        if thread is not None:
            thread.join()


@app.command()
def status(
    name: Annotated[
        str | None, typer.Argument(help="One index; all of them when left out.")
    ] = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show every version of the indexes: whether it answers queries, how far it is behind the
    cells, and values that were not of their field's type."""
    with opened(run_dir, config) as instance:
        catalog = instance.datastore.indexes.catalog
        records = catalog.all() if name is None else [catalog.get(name)]
        found = [
            version_status(instance.datastore, instance.coordinator, version)
            for record in records
            for version in record.versions
        ]
    _print_status(found, as_json)


def _print_status(found: list[VersionStatus], as_json: bool) -> None:
    if as_json:
        for each in found:
            print_json(msgspec.to_builtins(each, str_keys=True))
        return
    table = Table(
        "index",
        "version",
        "state",
        "cells behind",
        "seconds behind",
        "parked",
        "unfit",
        "workers",
        "",
        box=None,
    )
    for each in found:
        note = each.waits_because or each.unfit_last
        numbers = (
            str(each.cells_behind),
            f"{each.seconds_behind:.1f}",
            str(each.parked),
            str(each.unfit),
            str(len(each.workers)),
        )
        table.add_row(each.index, str(each.version), each.state, *numbers, note)
    console.print(table if found else "no index was made here")


@app.command()
def drop(
    name: NameArgument,
    version: Annotated[
        int | None,
        typer.Option(
            "--version", help="Only this version, for example one that has been replaced."
        ),
    ] = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Drop an index, or one version of it: its tables and positions. The cells stay as they are."""
    with opened(run_dir, config) as instance:
        dropped = drop_versions(instance.datastore, instance.coordinator, name, version)
    console.print(f"index {name}: dropped version {', '.join(map(str, dropped))}", highlight=False)


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
