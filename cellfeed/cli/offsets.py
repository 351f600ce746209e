"""offsets show|set: how far a group has come, and where it goes on when its offsets were lost or are to be others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer
from rich.table import Table

from bridge.coordination.contract import CommittedOffset, Coordinator
from bridge.coordination.open import open_coordinator
from bridge.triggers.foothold import accept, last_known, lost_offsets
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.config import load_config
from cellfeed.processes import open_datastore
from cellfeed.run_dir import RunDir
from store.datastore import Datastore
from store.engines.contract import Head
from store.errors import InvalidLocation, NotFound, Refused

app = typer.Typer(no_args_is_help=True, help="Offsets of a trigger or consumer group: show them; set where it goes on.")

GroupArgument = Annotated[str, typer.Argument(help="The group, for example billing.")]


@app.command()
def show(group: GroupArgument, run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False) -> None:
    """Show the offset of every shard, and why they cannot be trusted, where they cannot."""
    with _opened(run_dir) as (datastore, coordinator):
        offsets = _offsets(coordinator, datastore, group)
        kept = last_known(datastore.state, group, datastore.name, list(offsets))
        lost = lost_offsets(datastore.state, coordinator, group, datastore.name)
    if as_json:
        print_json({"group": group, "offsets": {str(shard): offset for shard, offset in offsets.items()}, "kept": kept, "lost_because": lost})
        return
    table = Table("shard", "offset", "kept", box=None)
    for shard, offset in offsets.items():
        table.add_row(str(shard), "" if offset is None else str(offset), str(kept.get(shard, "")))
    console.print(table)
    if lost:
        console.print(f"{group} stands still: {lost}", style="red", highlight=False)


@app.command("set")
def set_offsets(
    group: GroupArgument,
    to: Annotated[str, typer.Argument(help="kept (where its workers were), earliest, latest, or SHARD:LOCATION,… (the other shards stay)", metavar="TO")],
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Set where a group goes on. Its workers must have ended, or stand still because its offsets were lost."""
    with _opened(run_dir) as (datastore, coordinator):
        members = coordinator.members(group)
        if members and lost_offsets(datastore.state, coordinator, group, datastore.name) is None:
            raise Refused(f"group {group!r} is at work ({', '.join(members)}): stop its workers first")
        wanted = _wanted(to, group, datastore, coordinator)
        coordinator.commit_offsets(group, {(datastore.name, shard): CommittedOffset(location) for shard, location in wanted.items()})
        accept(datastore.state, coordinator, group, datastore.name)
    if as_json:
        print_json({"group": group, "offsets": {str(shard): location for shard, location in wanted.items()}})
    else:
        console.print(f"{group} goes on at {', '.join(f'{shard}:{location}' for shard, location in wanted.items())}", highlight=False)


def _wanted(to: str, group: str, datastore: Datastore, coordinator: Coordinator) -> dict[int, int]:
    heads = datastore.heads()
    match to:
        case "earliest":
            return {shard: head.log_start for shard, head in heads.items()}
        case "latest":
            return {shard: head.watermark for shard, head in heads.items()}
        case "kept":
            known = last_known(datastore.state, group, datastore.name, list(heads))
            if unknown := sorted(set(heads) - set(known)):
                raise NotFound(
                    f"nothing is kept of shards {', '.join(map(str, unknown))}: give their locations as SHARD:LOCATION, or all with earliest or latest"
                )
            return known
    given = _given(to, heads)
    now = _offsets(coordinator, datastore, group)
    known = last_known(datastore.state, group, datastore.name, list(heads))
    wanted = {shard: given.get(shard, offset if offset is not None else known.get(shard)) for shard, offset in now.items()}
    if missing := [str(shard) for shard, location in wanted.items() if location is None]:
        raise NotFound(f"nothing is known of shards {', '.join(missing)}: give their locations too")
    return {shard: location for shard, location in wanted.items() if location is not None}


def _given(to: str, heads: dict[int, Head]) -> dict[int, int]:
    given: dict[int, int] = {}
    for part in to.split(","):
        shard, colon, location = part.partition(":")
        if not (colon and shard.isdecimal() and location.isdecimal()):
            raise InvalidLocation(f"{part!r} is not SHARD:LOCATION, nor is it kept, earliest or latest")
        head = heads.get(int(shard))
        if head is None:
            raise NotFound(f"there is no shard {shard}; there are {len(heads)}")
        if not head.log_start <= int(location) <= head.watermark:
            raise InvalidLocation(f"location {location} is not in shard {shard}, which has {head.log_start} to {head.watermark}")
        given[int(shard)] = int(location)
    return given


def _offsets(coordinator: Coordinator, datastore: Datastore, group: str) -> dict[int, int | None]:
    shards = range(datastore.shards)
    found = coordinator.fetch_offsets(group, [(datastore.name, shard) for shard in shards])
    return {shard: found[(datastore.name, shard)].offset if (datastore.name, shard) in found else None for shard in shards}


@contextmanager
def _opened(run_dir: RunDirOption) -> Iterator[tuple[Datastore, Coordinator]]:
    directory = RunDir(run_dir)
    if not directory.config.exists():
        raise NotFound(f"{run_dir} is not the run directory of an instance")
    config = load_config(directory.config)
    with open_datastore(directory, config) as datastore, closing(open_coordinator(config.coordination, datastore.state)) as coordinator:
        yield datastore, coordinator
