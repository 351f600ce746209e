"""schemas list|check|unfit: the Avro schemas of columns' bodies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.groups.control import when
from cellfeed.bridge.typed.body_encoder import BodyEncoder, decoded
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.declaration import ColumnSchema, Compatibility
from cellfeed.bridge.typed.mismatch import SchemaMismatch
from cellfeed.bridge.typed.rejected_cells import RejectedCell, TriedAgain, rejected_cells, try_again
from cellfeed.bridge.typed.schema_files import load_schema
from cellfeed.bridge.typed.typed_column import TypedColumns
from cellfeed.bridge.typed.versions import (
    Settings,
    StoredColumn,
    check_version,
    ids_in_layouts,
    stored_columns,
    version_of,
)
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.store.cells.body_codec import decode_body, is_erased
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError

app = typer.Typer(
    no_args_is_help=True,
    help="Avro schemas of columns: list their versions, check a new one, see which cells fit none.",
)

ColumnOption = Annotated[str | None, typer.Option("--column", help="Only this column's.")]

_SHOWN_MAX: Final = 20
"""Cells that are shown one by one; the others are counted."""

_SCAN_CELLS: Final = 1_000

HEARD_S: Final = 5.0
"""After so long every gateway that is alive has heard of a version: they look once a second."""


@app.command("list")
def list_versions(
    column: ColumnOption = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """List every version of every column's schema, with the ids that records carry.

    A version has an id of its own in topics and exports with another `body` or `created_at`, from
    the first one on.
    """
    with opened(run_dir, config) as (_, datastore, _):
        columns = stored_columns(datastore.state, column)
        others = ids_in_layouts(datastore.state)
    table = Table("column", "version", "id", "body", "created_at", "registered", box=None)
    for heading in ("unfit", "compatibility"):
        table.add_column(heading)
    for name, stored in columns.items():
        for version in stored.versions:
            settings = stored.settings
            layouts = others.get((name, version.number), [])
            if as_json:
                fields = {
                    "column": name,
                    "version": version.number,
                    "id": version.schema_id,
                    "registered_at_us": version.at_us,
                    "schema": version.body,
                    "other_ids": [{**layout._asdict(), "id": number} for layout, number in layouts],
                }
                print_json(
                    {**fields, "unfit": settings.unfit, "compatibility": settings.compatibility}
                )
            for layout, number in [(Layout(), version.schema_id), *layouts]:
                row = (name, str(version.number), str(number), layout.body, layout.created_at)
                table.add_row(*row, when(version.at_us), settings.unfit, settings.compatibility)
    if not as_json:
        console.print(table if columns else "no column has a schema")


@app.command()
def check(
    schema: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file that ends in .avsc, or the name of a schema that is shipped.",
        ),
    ],
    column: Annotated[str, typer.Option("--column", help="The column whose bodies it is for.")],
    cells: Annotated[
        int,
        typer.Option(
            "--cells",
            min=0,
            help="How many of the column's cells are tried, the oldest of each shard first.",
        ),
    ] = 10_000,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Check whether a schema could be the column's next version, and which of its cells would fit
    no version then. Changes nothing.

    Exits with 3 when it is not compatible, with 1 when a cell would fit no version.
    """
    read = load_schema(schema, Path.cwd())
    with opened(run_dir, config) as (configuration, datastore, _):
        stored = stored_columns(datastore.state, column).get(column, StoredColumn(Settings(), ()))
        known = version_of(stored, read)
        if known is None:
            check_version(
                column, read, stored, _rule(configuration.datastore.schemas, column, stored)
            )
        tried, rejected, mismatches = _try_cells(datastore, column, read, stored, cells)
    standing = (
        f"is version {known.number}" if known else f"can be version {len(stored.versions) + 1}"
    )
    if as_json:
        print_json(
            {
                "column": column,
                "registered": known is not None,
                "tried": tried,
                "unfit": rejected,
                "examples": mismatches,
            }
        )
    else:
        console.print(
            f"{schema} {standing} of column {column}; of {tried} cells {rejected} fit no version",
            highlight=False,
        )
        for each in mismatches:
            console.print(each, highlight=False)
    if rejected:
        raise typer.Exit(CellfeedError.exit_code)


@app.command()
def unfit(
    column: ColumnOption = None,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help=(
                "Try each again with the versions that are there now; those that fit are off the"
                " list."
            ),
        ),
    ] = False,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """List cells that are left out of typed topics because they fit no version (unfit: park), with
    the reason.

    With --retry those that fit a newer version are off the list: they are shown at their own
    offsets. Groups that read on behind one before are named.
    """
    with opened(run_dir, config) as (_, datastore, coordinator):
        if not retry:
            found = list(rejected_cells(datastore.state, column))
            for cell in found if as_json else found[:_SHOWN_MAX]:
                _report(cell, as_json)
            if not as_json:
                console.print(
                    f"{len(found)} cells fit no version" if found else "no cell is left out",
                    highlight=False,
                )
            return
        _wait_until_heard(datastore)
        done = try_again(datastore.engine, TypedColumns(datastore.state), column)
        behind = _read_on(coordinator, datastore.name, done)
    if as_json:
        fields = {
            "fit": len(done.fits),
            "trimmed": len(done.trimmed),
            "still_unfit": len(done.still_rejected),
        }
        print_json(
            {
                **fields,
                "read_on": [
                    {"group": group, "shard": shard, "added_id": added_id}
                    for group, shard, added_id in behind
                ],
            }
        )
        return
    console.print(
        f"{len(done.fits)} fit a version now, {len(done.trimmed)} are trimmed,"
        f" {len(done.still_rejected)} still fit none",
        highlight=False,
    )
    for group, shard, added_id in behind:
        console.print(
            f"group {group} has read on behind {shard}/{added_id}: set it back to {added_id} there"
            " if it needs the cells that were left out",
            highlight=False,
        )


def _rule(declared: list[ColumnSchema], column: str, stored: StoredColumn) -> Compatibility:
    """The rule that the configuration declares, or the one that the datastore knows."""
    return next(
        (each.compatibility for each in declared if each.column == column),
        stored.settings.compatibility,
    )


def _try_cells(
    datastore: Datastore, column: str, schema: BodySchema, stored: StoredColumn, cells: int
) -> tuple[int, int, list[str]]:
    """How many were tried, how many fit no version, and the messages about the first of these."""
    encoders = [
        BodyEncoder(each.root)
        for each in (*(body_schema(version.body) for version in stored.versions), schema)
    ]
    tried = rejected = 0
    mismatches: list[str] = []
    for shard, cell in islice(_cells_of(datastore, column), cells):
        tried += 1
        reason = _mismatch(encoders, cell)
        if reason is not None:
            rejected += 1
            if len(mismatches) < _SHOWN_MAX:
                mismatches.append(f"{shard}/{cell.added_id}: {reason}")
    return tried, rejected, mismatches


def _mismatch(encoders: list[BodyEncoder], cell: StoredCell) -> str | None:
    body, reason = decoded(decode_body(cell.body)), ""
    for encoder in encoders:
        try:
            encoder.encode(body)
        except SchemaMismatch as mismatch:
            reason = str(mismatch)
        else:
            return None
    return reason


def _cells_of(datastore: Datastore, column: str) -> Iterator[tuple[int, StoredCell]]:
    """A piece of each shard in turn, so that a few cells are some of all shards."""
    heads = datastore.heads()
    locations = {
        shard: head.log_start for shard, head in heads.items() if head.log_start < head.watermark
    }
    while locations:
        for shard, location in list(locations.items()):
            found = [
                cell
                for cell in datastore.engine.scan(shard, location, _SCAN_CELLS)
                if cell.added_id < heads[shard].watermark
            ]
            if found:
                locations[shard] = found[-1].added_id + 1
            else:
                del locations[shard]
            yield from (
                (shard, cell)
                for cell in found
                if cell.column_name == column and not is_erased(cell.body)
            )


def _wait_until_heard(datastore: Datastore) -> None:
    """Waits until gateways know the newest version. A gateway without it still leaves its cells
    out, and readers that pass them there would not be named."""
    newest_us = max(
        (
            version.at_us
            for stored in stored_columns(datastore.state).values()
            for version in stored.versions
        ),
        default=0,
    )
    time.sleep(min(HEARD_S, max(0.0, HEARD_S - (datastore.state.now_us() - newest_us) / 1e6)))


def _read_on(
    coordinator: Coordinator, datastore: str, done: TriedAgain
) -> list[tuple[str, int, int]]:
    """Groups whose offset on any topic lies behind a cell that fits now: the first such cell of
    each shard."""
    first: dict[tuple[str, int], int] = {}
    for group in coordinator.groups():
        for (topic, partition), offset in coordinator.fetch_offsets(group).items():
            passed = [
                cell.added_id
                for cell in done.fits
                if cell.shard == partition
                and cell.added_id < offset.offset
                and _shows(datastore, topic, cell)
            ]
            if passed:
                first[group, partition] = min(passed)
    return [(group, shard, added_id) for (group, shard), added_id in sorted(first.items())]


def _shows(datastore: str, topic: str, cell: RejectedCell) -> bool:
    """Whether the topic may have left the cell out. Topics of other columns have no such cell; the
    topic of all cells has it whether it fits or not. For a view it is unknown, so True."""
    return topic != datastore and (
        not topic.startswith(f"{datastore}.")
        or topic.removesuffix("@latest") == f"{datastore}.{cell.column}"
    )


def _report(cell: RejectedCell, as_json: bool) -> None:
    if as_json:
        print_json(cell._asdict())
    else:
        console.print(
            f"{cell.column} {cell.shard}/{cell.added_id} row key {cell.row_key}, ref key"
            f" {cell.ref_key}: {cell.reason}",
            highlight=False,
        )
