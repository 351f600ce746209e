"""schemas list|check: the Avro schemas of columns' bodies. ``unfit`` is in schemas_unfit.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.groups.control import when
from cellfeed.bridge.typed.body_encoder import BodyEncoder, decoded
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.declaration import ColumnSchema, Compatibility
from cellfeed.bridge.typed.mismatch import SchemaMismatch
from cellfeed.bridge.typed.schema_files import load_schema
from cellfeed.bridge.typed.stored_columns import Settings, StoredColumn, stored_columns, version_of
from cellfeed.bridge.typed.versions import check_version, ids_in_layouts
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

SHOWN_MAX: Final = 20
"""Cells that are shown one by one; the others are counted."""

_SCAN_CELLS: Final = 1_000


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
            if len(mismatches) < SHOWN_MAX:
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
