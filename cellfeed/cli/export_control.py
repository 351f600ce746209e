"""export pause|resume|forget|verify|parked: control of an export by hand, and its comparison with
the store."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from confluent_kafka import KafkaException
from rich.table import Table
from rich.text import Text

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.export.forgetting import forget_export
from cellfeed.bridge.export.kafka_errors import error_of, words
from cellfeed.bridge.export.verify import verify_export
from cellfeed.bridge.groups.control import EXPORTS, Control, when
from cellfeed.bridge.groups.history import operator
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.cli.export import NameArgument, app, chosen
from cellfeed.cli.group_control import done, resume_group
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.store.errors import NotFound, Unavailable


@app.command()
def pause(
    name: NameArgument,
    reason: Annotated[
        str,
        typer.Option("--reason", help="Why; shown with every shard as long as it lasts, and kept."),
    ],
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Have an export's processes, on all hosts, stop after the transactions under way, until
    `resume`."""
    with opened(run_dir, config) as instance:
        _must_be_known(name, instance)
        Control(instance.datastore.state, EXPORTS + name).pause(operator(reason))
    done(
        as_json,
        {"paused": name},
        f"{name} is paused: its exporters give their shards back after the transactions under way",
    )


@app.command()
def resume(
    name: NameArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; kept.")
    ] = "the reason for the pause is gone",
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Resume a paused export behind the last records of its partitions."""
    with opened(run_dir, config) as instance:
        resume_group(name, EXPORTS + name, instance, reason, as_json=as_json)


@app.command()
def forget(
    name: NameArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the history.")],
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Forget an export that is not to run any more: its terms, its offsets, its parked
    cells.

    Trims do not wait for it any longer, and its name is free for another view, format or topic. The
    topic and its records stay. Stop its exporters first; take it out of the configuration first
    if its cluster is gone for good.
    """
    by = operator(reason)
    with opened(run_dir, config) as instance:
        configured = next(
            (export for export in instance.config.exports if export.name == name), None
        )
        found = forget_export(instance.datastore, instance.coordinator, name, configured, by)
    done(
        as_json,
        {
            "forgotten": name,
            "units": found.units,
            "offsets": found.offsets,
            "parked": found.parked,
        },
        f"{name} is forgotten: offsets of {found.offsets} shards, {found.parked} parked cells;"
        " its topic is as it was",
    )


@app.command()
def verify(
    name: NameArgument,
    shard: Annotated[
        list[int] | None,
        typer.Option("--shard", min=0, help="Only this shard; may be given several times."),
    ] = None,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Compare every record of the exported topic with its cell, and print a digest of each side,
    per shard. Exits with 1 where they differ."""
    with opened(run_dir, config) as (checked, datastore, _):
        [export] = chosen(checked, name)
        if beyond := [each for each in shard or () if each >= datastore.shards]:
            raise NotFound(f"there is no shard {beyond[0]}: the datastore has {datastore.shards}")
        verdicts = []
        with progress_bar() as bar:
            task = bar.add_task("comparing", total=len(shard or range(datastore.shards)))
            try:
                for verdict in verify_export(export, datastore, shard):
                    verdicts.append(verdict)
                    bar.advance(task)
            except KafkaException as error:
                raise Unavailable(
                    f"the Kafka cluster at {export.bootstrap}: {words(error_of(error))}"
                ) from error
    table = Table(
        "shard", "records", "until", "digest in the partition", "digest in the log", "", box=None
    )
    for each in verdicts:
        if as_json:
            print_json(msgspec.to_builtins(each) | {"equal": each.equal})
        said = (
            Text("")
            if each.equal
            else Text(f"differs from cell {each.differs_at} on: {each.what}", "red")
        )
        table.add_row(
            str(each.shard),
            str(each.cells),
            str(each.until),
            each.partition_digest[:16],
            each.log_digest[:16],
            said,
        )
    differing = [each.shard for each in verdicts if not each.equal]
    if not as_json:
        console.print(table)
        console.print(Text(f"shards {differing} differ", "red") if differing else Text("all equal"))
    if differing:
        raise typer.Exit(1)


@app.command("parked")
def list_parked(
    name: NameArgument,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """List the cells that have no record in the topic because theirs would be too large."""
    with opened(run_dir, config) as instance:
        _must_be_known(name, instance)
        cells = ParkedCells(instance.datastore.state).all(EXPORTS + name)
    table = Table("cell", "row key", "column", "parked since", "why", box=None)
    for cell in cells:
        if as_json:
            print_json(msgspec.to_builtins(cell))
        table.add_row(
            cell.cell_id, cell.row_key, cell.column_name, when(cell.parked_at_us), cell.error
        )
    if not as_json:
        console.print(table if cells else "nothing is parked")


def _must_be_known(name: str, instance: Opened) -> None:
    """A name with a slip in it must not be paused in silence."""
    known = {export.name for export in instance.config.exports}
    known |= {
        group.removeprefix(EXPORTS)
        for group in LagReader(instance.datastore, instance.coordinator).exports()
    }
    if name not in known:
        raise NotFound(
            f"no export {name!r} is configured here or has ever run; there are"
            f" {', '.join(sorted(known)) or 'none'}"
        )
