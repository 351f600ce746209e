"""offsets show|set|accept: how far a group has come, and where it continues when its offsets were
lost or are to be others."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from cellfeed.bridge.gateway.groups.slot_owners import GROUP as GATEWAYS
from cellfeed.bridge.gateway.groups.slot_owners import why_stopped
from cellfeed.bridge.groups.history import Deed, entry, operator
from cellfeed.bridge.triggers.offsets.kept_offsets import last_known
from cellfeed.bridge.triggers.offsets.lineage import acceptance, lost_offsets
from cellfeed.bridge.triggers.operate.locations import FORMS, offsets_by_shard, wanted_locations
from cellfeed.bridge.triggers.operate.reset import Reset
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.known_groups import must_exist
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.store.errors import Refused

app = typer.Typer(
    no_args_is_help=True,
    help="Offsets of a trigger or consumer group: show them; set where it resumes.",
)

GroupArgument = Annotated[str, typer.Argument(help="The group, for example billing.")]


@app.command()
def show(
    group: GroupArgument,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show the offset of every shard, and why they cannot be trusted, where they cannot."""
    with opened(run_dir, config) as instance:
        must_exist(group, instance)
        _, datastore, coordinator = instance
        offsets = offsets_by_shard(coordinator, datastore, group)
        kept = last_known(datastore.state, group, datastore.name, list(offsets))
        lost = lost_offsets(datastore.state, coordinator, group, datastore.name)
    if as_json:
        print_json(
            {
                "group": group,
                "offsets": {str(shard): offset for shard, offset in offsets.items()},
                "kept": kept,
                "lost_because": lost,
            }
        )
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
    to: Annotated[str, typer.Argument(help=f"{FORMS}.", metavar="TO")],
    reason: Annotated[
        str, typer.Option("--reason", help="Why; kept in the trigger's history.")
    ] = "not given",
    new: Annotated[
        bool, typer.Option("--new", help="The group is new: nothing is known of it here yet.")
    ] = False,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Set where a group resumes. Its workers must have ended, or stand still because its offsets
    were lost; `triggers reset` is for one at work."""
    by = operator(reason)
    with opened(run_dir, config) as instance:
        if not new:
            must_exist(group, instance)
        _, datastore, coordinator = instance
        members = coordinator.members(group)
        if members and lost_offsets(datastore.state, coordinator, group, datastore.name) is None:
            raise Refused(
                f"group {group!r} is at work ({', '.join(members)}): stop its workers first, or use"
                " cellfeed triggers reset"
            )
        locations = wanted_locations(to, group, datastore, coordinator)
        Reset(datastore, coordinator, group, by, action="offsets set", to=to).run(locations)
        offsets = {
            str(shard): offset
            for shard, offset in offsets_by_shard(coordinator, datastore, group).items()
        }
    if as_json:
        print_json({"group": group, "offsets": offsets})
    else:
        known = {shard: offset for shard, offset in offsets.items() if offset is not None}
        places = ", ".join(f"{shard}:{offset}" for shard, offset in known.items())
        console.print(f"{group} resumes at {places}", highlight=False)


@app.command()
def accept(
    reason: Annotated[
        str, typer.Option("--reason", help="Why; kept in the history of the gateways.")
    ] = "not given",
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Let the consumer groups of the gateways continue with the offsets that ZooKeeper has now.
    They wait for it after ZooKeeper was restored, emptied or replaced. A consumer whose offset is
    older reads some records once more."""
    by = operator(reason)
    with opened(run_dir, config) as (_, datastore, coordinator):
        state = datastore.state
        stopped = why_stopped(state, coordinator)
        if stopped is None:
            raise Refused("consumer groups do not wait: their offsets are where they were saved")
        deed = Deed(
            group=GATEWAYS,
            action="offsets accept",
            by=by.name,
            because=by.because,
            at_us=state.now_us(),
            to=f"it was stopped: {stopped[:200]}",
        )
        state.commit({**acceptance(state, coordinator, GATEWAYS, datastore.name), **entry(deed)})
    if as_json:
        print_json({"accepted": stopped})
    else:
        console.print("consumer groups continue", highlight=False)
