"""triggers pause|resume|reset|rename|redefine|forget|history: control of a trigger by hand; each
action keeps its reason."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.groups import control
from cellfeed.bridge.groups.control import Control, when
from cellfeed.bridge.groups.definition import let_change
from cellfeed.bridge.groups.history import Deed, history, operator
from cellfeed.bridge.triggers.operate.locations import FORMS, wanted_locations
from cellfeed.bridge.triggers.operate.rename import rename
from cellfeed.bridge.triggers.operate.renamed import renamed
from cellfeed.bridge.triggers.operate.reset import WAIT_S, Reset
from cellfeed.cli.group_control import done, resume_group
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.known_groups import must_exist
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.cli.triggers import GroupArgument, app

PAUSE_WAIT_S: Final = 10.0
"""How long ``pause`` looks whether the cells under way have ended. It is in force even so."""

_SHARDS_SHOWN: Final = 8
"""Of a reset, in a line of the history; ``--json`` has all."""

ReasonOption = Annotated[
    str,
    typer.Option(
        "--reason",
        help="Why; shown with every shard as long as it lasts, and kept in the trigger's history.",
    ),
]


@app.command()
def pause(
    group: GroupArgument,
    reason: ReasonOption,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait-s", min=0, help="Seconds to wait until the cells under way have ended."
        ),
    ] = PAUSE_WAIT_S,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Have a trigger's workers, on all hosts, stop after the cells under way, until `resume`."""
    with opened(run_dir, config) as instance:
        must_exist(group, instance)
        Control(instance.datastore.state, group).pause(operator(reason))
        at_work = _at_work(group, instance, wait_s)
    if as_json:
        print_json(
            {
                "paused": group,
                "still_at_work": {str(shard): owner for shard, owner in at_work.items()},
            }
        )
    elif at_work:
        places = ", ".join(
            f"shard {shard} ({owner})" for shard, owner in list(at_work.items())[:_SHARDS_SHOWN]
        )
        console.print(
            f"{group} is paused; cells that were under way have not ended yet: {places}",
            highlight=False,
        )
    else:
        console.print(f"{group} is paused, and nothing of it runs", highlight=False)


@app.command()
def resume(
    group: GroupArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; kept in the trigger's history.")
    ] = "the reason for the pause is gone",
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Resume a paused trigger where it was. (One that stopped because of parked cells:
    `cellfeed parked resume`.)"""
    with opened(run_dir, config) as instance:
        must_exist(group, instance)
        resume_group(group, group, instance, reason, as_json=as_json)


@app.command()
def reset(
    group: GroupArgument,
    to: Annotated[str, typer.Option("--to", metavar="TO", help=f"{FORMS}.")],
    reason: ReasonOption,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait-s", min=0, help="Seconds to wait for workers to give their shards back."
        ),
    ] = WAIT_S,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Set where a trigger resumes, also while its workers run: they stand aside, and nothing that
    they save late undoes it."""
    by = operator(reason)
    with opened(run_dir, config) as instance:
        must_exist(group, instance)
        locations = wanted_locations(to, group, instance.datastore, instance.coordinator)
        deed = Reset(instance.datastore, instance.coordinator, group, by, to=to).run(
            locations, wait_s=wait_s
        )
        paused = Control(instance.datastore.state, group).paused()
    if as_json:
        print_json(_as_json(deed))
        return
    console.print(f"{group} resumes at {places(deed, None)}", highlight=False)
    if deed.unparked:
        console.print(
            f"{deed.unparked} parked cells were taken off the queue: it comes to them again",
            highlight=False,
        )
    if paused is not None:
        console.print(
            f"it is {paused}; let it resume with: cellfeed triggers resume {group}", highlight=False
        )


@app.command()
def forget(
    group: GroupArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the trigger's history.")],
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Have a trigger that is not run any more listed and measured no longer. Its offsets stay:
    should it run again, it resumes from them."""
    by = operator(reason)
    with opened(run_dir, config) as instance:
        must_exist(group, instance)
        control.forget(instance.datastore.state, instance.coordinator, group, by)
    done(as_json, {"forgotten": group}, f"{group} is not listed any more")


@app.command("rename")
def rename_group(
    group: GroupArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="Its name from now on.")],
    reason: ReasonOption,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Give a trigger's group another name; its workers must have ended. Offsets, parked cells and
    history follow."""
    by = operator(reason)
    with opened(run_dir, config) as instance:
        if renamed(instance.datastore.state, group) is None:
            must_exist(group, instance)
        rename(instance.datastore, instance.coordinator, group, to, by)
    done(as_json, {"renamed": group, "to": to}, f"{group} is {to} now")


@app.command()
def redefine(
    group: GroupArgument,
    reason: ReasonOption,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Let a group's next worker come with another column, application or entry. Its workers must
    have ended; its offsets and parked cells stay."""
    by = operator(reason)
    with opened(run_dir, config) as instance:
        must_exist(group, instance)
        before = let_change(instance.datastore.state, instance.coordinator, group, by)
    done(
        as_json,
        {"redefined": group, "it_was": msgspec.to_builtins(before)},
        f"{group} was {before}; it will be the trigger that runs next",
    )


@app.command("history")
def show_history(
    group: GroupArgument,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show the changes made to a trigger by hand: author, time, change, reason, and offsets before
    and after."""
    with opened(run_dir, config) as instance:
        must_exist(group, instance, done_by_hand=True)
        deeds = history(instance.datastore.state, group)
    if as_json:
        for deed in deeds:
            print_json(_as_json(deed))
        return
    table = Table("when", "who", "what", "why", "from → to", box=None)
    for deed in deeds:
        what = f"{deed.action} to {deed.to}" if deed.to else deed.action
        table.add_row(when(deed.at_us), deed.by, what, deed.because, places(deed, _SHARDS_SHOWN))
    console.print(table if deeds else f"nothing was done to {group} by hand")


def places(deed: Deed, shards_max: int | None) -> str:
    """Where shards went: ``3:120→0``; those beyond ``shards_max`` are only counted."""
    shown = list(deed.after.items())[:shards_max]
    parts = [
        f"{shard}:{'none' if deed.before.get(shard) is None else deed.before[shard]}→{location}"
        for shard, location in shown
    ]
    more = len(deed.after) - len(shown)
    return ", ".join(parts) + (f" and {more} more" if more else "")


def _at_work(group: str, instance: Opened, wait_s: float) -> dict[int, str]:
    """Shards whose workers have not stood aside after some time; those of dead workers do not
    count."""
    deadline_s = time.monotonic() + wait_s
    while True:
        members = set(instance.coordinator.members(group))
        at_work = {
            shard: owner
            for shard, owner in instance.coordinator.owners(group, instance.datastore.name).items()
            if owner in members
        }
        if not at_work or time.monotonic() >= deadline_s:
            return at_work
        time.sleep(0.1)


def _as_json(deed: Deed) -> dict[str, Any]:
    return {
        name: value
        for name, value in msgspec.to_builtins(deed, str_keys=True).items()
        if value or name not in ("to", "before", "after", "unparked")
    }
