"""offsets translate: a consumer group changes from the gateway to an exported topic, or back."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from confluent_kafka import KafkaException
from rich.table import Table

from cellfeed.bridge.export.kafka_errors import error_of, words
from cellfeed.bridge.export.translate import to_gateway, to_kafka
from cellfeed.bridge.groups.definition import belongs_to_cellfeed, definition_of
from cellfeed.cli.export import chosen
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.offsets import app
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.store.errors import Refused, Unavailable


@app.command()
def translate(
    group: Annotated[
        str,
        typer.Argument(
            help="The consumer group; its consumers must have ended on the side that it goes to."
        ),
    ],
    export: Annotated[
        str, typer.Option("--export", help="The export, as the configuration names it.")
    ],
    to: Annotated[
        Literal["kafka", "gateway"],
        typer.Option(
            "--to",
            help="Where the group resumes: on the exported topic (kafka), or on the gateway's.",
        ),
    ],
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Set a consumer group's offsets on one side to where it is on the other: the next cell that it
    gets there is the next one here."""
    with opened(run_dir, config) as (checked, datastore, coordinator):
        [declared] = chosen(checked, export)
        if belongs_to_cellfeed(group) or definition_of(datastore.state, group) is not None:
            raise Refused(
                f"group {group!r} is a trigger, export or index, no consumer group: see cellfeed"
                " triggers reset"
            )
        with progress_bar() as bar:
            task = bar.add_task("translating", total=datastore.shards)
            try:
                move = to_kafka if to == "kafka" else to_gateway
                moved = move(
                    declared, datastore.name, coordinator, group, lambda: bar.advance(task)
                )
            except KafkaException as error:
                raise Unavailable(
                    f"the Kafka cluster at {declared.bootstrap}: {words(error_of(error))}"
                ) from error
    if as_json:
        print_json({"group": group, "to": to, "partitions": [each._asdict() for each in moved]})
        return
    table = Table("partition", "before", "after", box=None)
    for each in moved:
        table.add_row(str(each.partition), str(each.before), str(each.after))
    console.print(table)
    console.print(
        f"{group} resumes at these offsets on"
        f" {'the exported topic' if to == 'kafka' else 'the topic of the gateway'}",
        highlight=False,
    )
