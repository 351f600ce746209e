"""index verify|repair|rebuild: an index against the cells, both ways, and all of them from the
cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.bridge.indexes.rebuild import rebuild_indexes
from cellfeed.cli.index import NameArgument, app
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.store.errors import NotFound
from cellfeed.store.indexes.check import IndexCheck
from cellfeed.store.indexes.difference import CheckReport
from cellfeed.store.indexes.records import IndexRecord, VersionRecord
from cellfeed.store.indexes.repair import IndexRepair

VersionOption = Annotated[
    int | None,
    typer.Option("--version", help="This version; the one that answers queries when left out."),
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait-s",
        min=0,
        help="How long to wait for the index to come to the ends of the logs, in seconds.",
    ),
]


@app.command()
def verify(
    name: NameArgument,
    version: VersionOption = None,
    wait_s: WaitOption = 60.0,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Hold an index against the cells, both ways, beside live writes, and name every missing, stale
    or invented entry. Exits with 1 when there is one."""
    report = _check(run_dir, config, name, version, wait_s, as_json=as_json, repair=False)
    if report.differences or report.unsettled:
        raise typer.Exit(1)


@app.command()
def repair(
    name: NameArgument,
    version: VersionOption = None,
    wait_s: WaitOption = 60.0,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Verify an index, and mend just the entries that are missing, stale or invented. May be killed
    and run again."""
    _check(run_dir, config, name, version, wait_s, as_json=as_json, repair=True)


@app.command()
def rebuild(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Build every index of an embedded datastore again: when the file with their entries is lost,
    or belongs to another store.

    Each index gets a new version, which an index worker or `cellfeed index build` builds; until
    then no query of it is answered. The old file is moved aside. Processes that have it open have
    to be started again.
    """
    with opened(run_dir, config) as instance:
        made = rebuild_indexes(instance.datastore, instance.coordinator)
    for name, record in made.items():
        if as_json:
            print_json({"index": name, "version": record.number, "state": record.state})
        else:
            console.print(
                f"index {name}: version {record.number} is {record.state}", highlight=False
            )


def _check(
    run_dir: Path,
    config: Path | None,
    name: str,
    number: int | None,
    wait_s: float,
    *,
    as_json: bool,
    repair: bool,
) -> CheckReport:
    with opened(run_dir, config) as instance:
        datastore = instance.datastore
        version = datastore.indexes.version(_chosen(datastore.indexes.catalog.get(name), number))
        check = IndexCheck(
            datastore.engine, version, index_positions(instance.coordinator, datastore.name), wait_s
        )
        mender = IndexRepair(datastore.engine, version, check.report)
        with progress_bar() as bar:
            task = bar.add_task(f"index {name} version {version.number}", total=2 * check.total())
            for difference in check.run(lambda done: bar.advance(task, done)):
                if repair:
                    mender.repair(difference)
                as_printed = difference.as_json(version)
                if as_json:
                    print_json(as_printed)
                else:
                    console.print(
                        f"{as_printed['kind']}: row {as_printed['row_key']}: found"
                        f" {as_printed['found']}, the cells say {as_printed['wanted']}",
                        highlight=False,
                    )
    report = check.report
    if as_json:
        counts = {"cells": report.cells, "entries": report.entries, "tombstones": report.tombstones}
        print_json(
            {
                **counts,
                "differences": report.differences,
                "unsettled": report.unsettled,
                "repaired": repair,
            }
        )
    else:
        console.print(
            f"{report.cells} cells and {report.entries} entries looked at; {report.differences}"
            f" differences{' mended' if repair else ''}",
            highlight=False,
        )
        if report.unsettled:
            console.print(
                f"{report.unsettled} rows got new cells at every look: run it again",
                highlight=False,
            )
    return report


def _chosen(record: IndexRecord, number: int | None) -> VersionRecord:
    if number is not None:
        return record.version(number)
    if (found := record.current or record.building) is None:
        raise NotFound(
            f"index {record.name!r} has no version that is kept; name one with --version"
        )
    return found
