"""schemas unfit: the cells that typed topics leave out, and trying them again."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.typed.rejected_cells import RejectedCell, TriedAgain, rejected_cells, try_again
from cellfeed.bridge.typed.stored_columns import stored_columns
from cellfeed.bridge.typed.typed_column import TypedColumns
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.cli.schemas import SHOWN_MAX, ColumnOption, app
from cellfeed.store.datastore import Datastore

HEARD_S: Final = 5.0
"""After so long every gateway that is alive has heard of a version: they look once a second."""


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
            for cell in found if as_json else found[:SHOWN_MAX]:
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
