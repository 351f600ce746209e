"""verify: one digest per shard, in every place that holds the cells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from cellfeed.cli.instance import (
    DEFAULT_RUN_DIR,
    DatastoreOption,
    RunDirOption,
    UrlOption,
    client_of,
)
from cellfeed.cli.output import JsonOption, console, errors, print_json
from cellfeed.store.cells.log_gaps import named
from cellfeed.verify.place import Place
from cellfeed.verify.report import ShardVerdict, VerifyReport
from cellfeed.verify.report import verify as compare
from cellfeed.verify.store_place import StorePlace


def verify(
    gateway: Annotated[
        str | None,
        typer.Option(
            "--gateway", help="Compare with this gateway's, or Kafka cluster's, topic: HOST:PORT."
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="The topic; the datastore's own when left out.")
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", help="Compare with the warehouse table in this folder."),
    ] = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a digest per shard; with --gateway or --parquet compare it there, up to where all have
    come.

    Exits with 1 when they differ, and when the store's own log lacks cells, or has damaged ones:
    each is named. Ids have no gaps but those that a restore left out. `cellfeed check` looks at
    every file and every node instead, without comparing places.
    """
    # Start-up: these places load Kafka's client and Parquet.
    from cellfeed.verify.topic_place import TopicPlace, check_reachable
    from cellfeed.verify.warehouse_place import WarehousePlace

    if gateway is not None:
        check_reachable(gateway)
    with client_of(run_dir, url, datastore) as client:
        places: list[Place] = [StorePlace(client)]
        if gateway is not None:
            places.append(TopicPlace(gateway, topic or client.name))
        if parquet is not None:
            places.append(WarehousePlace(parquet))
        with errors.status(f"reading {', '.join(place.name for place in places)}"):
            report = compare(places)
    print_verdict(report, as_json=as_json)


def print_verdict(report: VerifyReport, *, as_json: bool) -> None:
    """Prints a comparison. Exits with 1 where places differ, or the log lacks cells."""
    if as_json:
        print_json(report.as_json())
    else:
        print_report(report)
    if not (report.equal and report.whole):
        raise typer.Exit(1)


def print_report(report: VerifyReport) -> None:
    """One line for each shard, damage, and the verdict."""
    table = Table(
        "shard", "cells", *(f"digest in {place}" for place in report.places), "", box=None
    )
    for verdict in report.shards:
        digests = [verdict.digests[place][:16] for place in report.places]
        table.add_row(
            str(verdict.shard), str(verdict.cells[report.places[0]]), *digests, _remark(verdict)
        )
    console.print(table)
    for verdict in report.shards:
        for line in _damage(verdict):
            console.print(Text(line, "red"), soft_wrap=True)
    if len(report.places) > 1:
        console.print(_verdict(report), soft_wrap=True)


def _verdict(report: VerifyReport) -> Text:
    differing = [verdict.shard for verdict in report.shards if not verdict.equal]
    if differing:
        return Text(f"shards {differing} differ", "red")
    store = report.places[0]
    behind = {
        place: sum(max(0, each.next_ids[store] - each.next_ids[place]) for each in report.shards)
        for place in report.places[1:]
    }
    lacking = [f"{place} lacks the {cells} newest" for place, cells in behind.items() if cells]
    if lacking:
        return Text(f"equal only as far as every place has come: {', '.join(lacking)}", "yellow")
    return Text("all equal")


def _damage(verdict: ShardVerdict) -> Iterator[str]:
    if verdict.missing:
        yield named(verdict.shard, verdict.missing)
    if verdict.damaged:
        yield (
            f"shard {verdict.shard} has damaged cells at added_id"
            f" {', '.join(str(each.start) for each in verdict.damaged[:10])}"
            + (f", and {len(verdict.damaged) - 10} more" if len(verdict.damaged) > 10 else "")
        )
    if verdict.unread_from is not None:
        yield (
            f"shard {verdict.shard} is read no further than added_id {verdict.unread_from}: so much"
            " before it is damaged. cellfeed check looks at all of it"
        )


def _remark(verdict: ShardVerdict) -> Text:
    if verdict.missing:
        return Text("lacks cells", "red")
    if not verdict.whole:
        return Text("damaged", "red")
    if not verdict.equal:
        return Text("differs", "red")
    furthest = max(verdict.next_ids.values())
    behind = [
        f"{place} is {furthest - reached} behind"
        for place, reached in verdict.next_ids.items()
        if reached < furthest
    ]
    return Text(", ".join(behind), "yellow")
