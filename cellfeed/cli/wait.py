"""wait: until a trigger, an index, a consumer group, an export or a lake has passed a put."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    DatastoreOption,
    RunDirOption,
    UrlOption,
    client_of,
)
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.store.waits.waiting import TIMEOUT_S, WAIT_S_MAX


def wait(
    token: Annotated[
        list[str],
        typer.Argument(help="The token of a put (`cellfeed put --json`), or several of them."),
    ],
    trigger: Annotated[str | None, typer.Option("--trigger", help="A trigger's group.")] = None,
    index: Annotated[str | None, typer.Option("--index", help="An index.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="A Kafka consumer group of the gateways.")
    ] = None,
    export: Annotated[str | None, typer.Option("--export", help="An export.")] = None,
    lake: Annotated[str | None, typer.Option("--lake", help="A lake's table.")] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, max=WAIT_S_MAX, help="Seconds to wait.")
    ] = TIMEOUT_S,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until a trigger, an index, a consumer group, an export or a lake has passed a put. Fails
    when the time is over first, and when the cell is parked there or was skipped."""
    with client_of(run_dir, url, datastore) as client:
        passed = client.wait_for(
            token,
            trigger=trigger,
            index=index,
            group=group,
            export=export,
            lake=lake,
            timeout_s=timeout_s,
        )
    if as_json:
        print_json(msgspec.to_builtins(passed))
    elif passed.handled:
        console.print(f"{passed.outlet} has passed it", highlight=False)
    else:
        parked = [f"{each.shard}/{each.added_id} is parked" for each in passed.parked]
        skipped = [
            f"{each.shard}/{each.first} to {each.shard}/{each.last} was skipped"
            for each in passed.skipped
        ]
        console.print(
            f"{passed.outlet} has passed it: {', '.join(parked + skipped)}", highlight=False
        )
    if not passed.handled:
        raise typer.Exit(1)
