"""triggers run|list|lag: trigger workers on this host, and how far every trigger is."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.cli.group_control import away, lag_cells, print_lag, shard_as_json
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, config_of, opened
from cellfeed.cli.known_groups import must_exist
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.config.model import Config, TriggersConfig
from cellfeed.instance.trigger_fleet import TriggerFleet, worker_names
from cellfeed.kinds.triggers import UNNAMED
from cellfeed.run_dir import RunDir
from cellfeed.status.instance_groups import summary
from cellfeed.store.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Triggers: run workers, see how far each is and why, pause, resume, reset, and the changes"
        " made by hand."
    ),
)

GroupArgument = Annotated[str, typer.Argument(help="The trigger's group, for example billing.")]


@app.command()
def run(
    program: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM",
            help=(
                "module, module:name, file.py or file.py:name; or the name of an entry under"
                " triggers: of the configuration."
            ),
        ),
    ],
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            max=64,
            help="Worker processes on this host; 1, or the entry's value.",
        ),
    ] = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help=(
                "For a program without an entry: the group of a trigger whose code names none, as"
                " an entry's name is."
            ),
        ),
    ] = None,
    name_prefix: Annotated[
        str,
        typer.Option(
            "--name-prefix", help="Begins the workers' names, which are PREFIX-HOST-PID-NUMBER."
        ),
    ] = "",
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            min=1,
            max=256,
            help="Shards that a worker runs at the same time; 8, or the entry's value.",
        ),
    ] = None,
    lease_s: Annotated[
        float | None,
        typer.Option(
            "--lease-s",
            min=0.2,
            max=300,
            help="Seconds that the shards of a killed worker wait; 10, or the entry's value.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting for the program; may be given several times.",
        ),
    ] = None,
) -> None:
    """Run trigger workers until Ctrl-C or SIGTERM, which end them after the cells under way: no
    cell is run again because of it.

    Any number of these run at once, on any number of hosts, and share the shards; the configuration
    names their shared settings: the datastore and the coordination. A worker that dies is started
    again.
    """
    checked = config_of(run_dir, config)
    chosen = _chosen(program, checked, _settings(settings or []), name)
    given = {"processes": processes, "threads": threads, "lease_s": lease_s}
    chosen = msgspec.structs.replace(
        chosen, **{name: value for name, value in given.items() if value is not None}
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    names = worker_names(name_prefix, chosen.processes)
    fleet = TriggerFleet(
        config or RunDir(run_dir).config,
        run_dir,
        chosen,
        names,
        lambda line: console.print(line, highlight=False),
    )
    if code := fleet.run(stopping.is_set):
        raise typer.Exit(code)


@app.command("list")
def list_triggers(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """List every trigger that has ever run: the column it follows, its workers, how far it is
    behind, and why it waits."""
    with opened(run_dir, config) as (_, datastore, coordinator):
        reader = LagReader(datastore, coordinator)
        lags = [reader.read(group) for group in reader.groups()]
    if as_json:
        for lag in lags:
            print_json(summary(lag))
        return
    table = Table(
        "group", "column", "workers", "cells behind", "seconds behind", "parked", "", box=None
    )
    for lag in lags:
        table.add_row(lag.group, lag.about.column if lag.about else "", *lag_cells(lag))
    console.print(table if lags else "no trigger has ever run here")


@app.command()
def lag(
    group: GroupArgument,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show how far a trigger is behind, shard by shard: cells, seconds, when it last got on, and
    why it is where it is."""
    with opened(run_dir, config) as instance:
        must_exist(group, instance)
        found = LagReader(instance.datastore, instance.coordinator).read(group)
    if as_json:
        print_json({**summary(found), "shards": [shard_as_json(each) for each in found.shards]})
        return
    print_lag(group, found, place="offset", worker="worker")
    for trouble in filter(None, (found.waits_because, away(found))):
        console.print(f"{group} {trouble}", style="red", highlight=False)


def _chosen(
    program: str, config: Config, settings: dict[str, str], name: str | None
) -> TriggersConfig:
    """The triggers to run: an entry of the configuration by its name, or a program."""
    for entry in config.triggers:
        if (entry.name or UNNAMED) == program:
            if name is not None:
                raise InvalidRequest(f"--name {name}: PROGRAM {program} is an entry with a name")
            return msgspec.structs.replace(entry, settings={**entry.settings, **settings})
    place = program.partition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise InvalidRequest(f"PROGRAM {program}: there is no file {place}")
    made = {"app": program, "settings": dict(settings), "name": name}
    try:
        return msgspec.convert(made, TriggersConfig)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"--name {name!r}: {error}") from error


def _settings(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    if wrong := [key for key, equals, _ in pairs if not (key and equals)]:
        raise InvalidRequest(f"--set {wrong[0]!r}: KEY=VALUE is meant")
    return {key: value for key, _, value in pairs}
