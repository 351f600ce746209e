"""index create|build|status|drop: secondary indexes. Queries are in index_query.py, checks and
repairs in index_check.py."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.indexes.status import VersionStatus, drop_versions, version_status
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    ConfigOption,
    RunDirOption,
    opened,
)
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.definition_file import load_definition
from cellfeed.store.indexes.records import BUILDING, VersionRecord

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
