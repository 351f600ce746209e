"""verify: one digest per shard, in every place that holds the cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cellfeed.cli.instance import DEFAULT_RUN_DIR, DatastoreOption, RunDirOption, UrlOption, client_of
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.verify import Digests, VerifyReport, store_digests, topic_digests, warehouse_digests
from consumers.warehouse.table import WarehouseTable


def verify(
    gateway: Annotated[str | None, typer.Option("--gateway", help="Compare with this gateway's, or Kafka cluster's, topic: HOST:PORT.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic; the datastore's own when left out.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Compare with the warehouse table in this folder, up to where it has come.")] = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    url: UrlOption = None,
    datastore: DatastoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a digest per shard; with --gateway or --parquet compare it there. Exits with 1 when they differ."""
    with client_of(run_dir, url, datastore) as client, progress_bar() as bar:
        ends = {shard: head.watermark for shard, head in client.heads().items()}
        table = WarehouseTable(parquet) if parquet else None
        if table is not None:
            reached = table.next_ids()
            ends = {shard: min(end, reached.get(shard, 0)) for shard, end in ends.items()}
        task = bar.add_task("store", total=sum(ends.values()))
        places: dict[str, Digests] = {"store": store_digests(client, ends, lambda cells: bar.advance(task, cells))}
        if gateway:
            task = bar.add_task("topic", total=sum(ends.values()))
            places["topic"] = topic_digests(gateway, topic or client.name, ends, lambda cells: bar.advance(task, cells))
        if table is not None:
            places["warehouse"] = warehouse_digests(table, ends)
    report = VerifyReport(ends, places)
    if as_json:
        print_json(report.as_json())
    else:
        _print(report)
    if not report.equal:
        raise typer.Exit(1)


def _print(report: VerifyReport) -> None:
    table = Table("shard", "cells", *(f"digest in {place}" for place in report.places), "", box=None)
    differing = set(report.differing_shards())
    for shard, end in report.ends.items():
        digests = [places[shard].hexdigest()[:16] if shard in places else "-" for places in report.places.values()]
        table.add_row(str(shard), str(end), *digests, "[red]differs[/red]" if shard in differing else "")
    console.print(table)
    if len(report.places) > 1:
        console.print("all equal" if report.equal else f"[red]shards {sorted(differing)} differ[/red]")
