"""The steps of the demo, on an instance that is up: load, settle, fill the warehouse, prove."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.model import (
    Config,
    ConsoleConfig,
    DatastoreConfig,
    TriggersConfig,
    WarehouseConfig,
    WorkerConfig,
)
from cellfeed.consumers.billing.card_provider import SandboxCardProvider
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.demo.proof import Line, Seen, dollars, proof
from cellfeed.instance.addresses import gateway_address, worker_urls
from cellfeed.loading.taxi import expected_figures, load_taxi, shipped_csv
from cellfeed.processes.signals import raise_if_asked
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound, Unavailable
from cellfeed.store.http.client import Client
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from cellfeed.verify.topic_place import TopicPlace
from cellfeed.verify.warehouse_place import WarehousePlace

DEMO_DATASTORE: Final = "taxi_demo"
"""Not the name that a datastore has by default: a program meant for the one does not write into the
other."""

STEP_TIMEOUT_S: Final = 300.0
"""How long billing or the warehouse may take; on two cores they need a few seconds."""

_CHARGED_CENTS = """
    SELECT coalesce(sum(CAST(json_extract_string(body, '$.amount_cents') AS BIGINT)), 0) AS cents
    FROM latest WHERE column_name = 'STATUS' AND json_extract_string(body, '$.status') = ?
"""


def demo_config(run_dir: RunDir, *, console: bool = False) -> Config:
    """An embedded store with everything that the demo shows, on free ports. ``console``: with one
    in the browser."""
    return Config(
        datastore=DatastoreConfig(name=DEMO_DATASTORE, shards=16),
        workers=[WorkerConfig(port=0)],
        gateways=[GatewayProcessConfig(port=0, registry_port=0, group_initial_delay_s=0.2)],
        triggers=[
            TriggersConfig(
                app="cellfeed.consumers.billing.app:program",
                name="billing",
                settings={"billing_dir": str(run_dir.inside("billing"))},
            ),
        ],
        warehouses=[WarehouseConfig(flush_age_s=1.0)],
        consoles=[ConsoleConfig(port=0)] if console else [],
    )


def run_demo(
    run_dir: RunDir, console: Console, bar_of: Callable[[], Progress], csv: Path | None = None
) -> list[Line]:
    """Loads, waits, proves; prints as it goes, with a bar for each step. Returns the lines of the
    proof. Raises Unavailable when a step does not come to its end."""
    expected = expected_figures(csv)
    provider = SandboxCardProvider(run_dir.inside("billing") / "charges.sqlite3")
    with Client(worker_urls(run_dir.path), DEMO_DATASTORE) as client:
        _load(client, bar_of, csv, expected.cells)
        _settle(client, bar_of, provider, expected.trips, console)
        ends = {shard: head.watermark for shard, head in client.heads().items()}
        table = _fill_warehouse(run_dir, bar_of, ends)
        seen = _look(client, run_dir, table, provider, ends)
    lines = proof(expected, seen)
    _print(lines, console)
    return lines


def _load(client: Client, bar_of: Callable[[], Progress], csv: Path | None, cells: int) -> None:
    with bar_of() as bar:
        task = bar.add_task("load: cells put over HTTP", total=cells)
        report = load_taxi(
            client,
            csv or shipped_csv(),
            on_progress=lambda now: bar.update(task, completed=now.cells),
        )
        bar.update(task, completed=report.cells)
    if not report.complete:
        raise Unavailable(f"the load is not complete: {report.as_json()}")


def _settle(
    client: Client,
    bar_of: Callable[[], Progress],
    provider: SandboxCardProvider,
    trips: int,
    console: Console,
) -> None:
    # Every trip ends with a STATUS cell; they are counted by following the logs, as any reader
    # would.
    locations = dict.fromkeys(range(client.shards), 0)
    settled = 0
    with bar_of() as bar:
        task = bar.add_task("billing: trips settled", total=trips)

        def step() -> bool:
            nonlocal settled
            for shard, piece in client.get_cells_for_shards(locations, 5_000).items():
                locations[shard] = piece.next_location
                settled += sum(cell.column_name == "STATUS" for cell in piece.cells)
            _, cents, _ = provider.totals()
            bar.update(task, completed=settled, description=f"billing: {dollars(cents)} charged")
            return settled >= trips

        _wait(step, "billing has not settled every trip")
    charges, cents, declines = provider.totals()
    console.print(
        f"billing: {settled:,} trips settled, {charges:,} cards charged {dollars(cents)},"
        f" {declines:,} declined the first time",
        highlight=False,
    )


def _fill_warehouse(
    run_dir: RunDir, bar_of: Callable[[], Progress], ends: dict[int, int]
) -> WarehouseTable:
    with bar_of() as bar:
        task = bar.add_task("warehouse: rows in Parquet", total=sum(ends.values()))

        def step() -> bool:
            try:
                table = WarehouseTable(run_dir.inside("warehouse"))
            except NotFound:
                return False
            reached = table.next_ids()
            bar.update(task, completed=sum(reached.values()))
            return all(reached.get(shard, 0) >= end for shard, end in ends.items())

        _wait(step, "the warehouse has not come to the end of the logs")
    return WarehouseTable(run_dir.inside("warehouse"))


def _look(
    client: Client,
    run_dir: RunDir,
    table: WarehouseTable,
    provider: SandboxCardProvider,
    ends: dict[int, int],
) -> Seen:
    by_column: Counter[str] = Counter()
    for shard, end in ends.items():
        location = 0
        while location < end:
            piece = client.get_cells_for_shard(shard, location, 5_000)
            by_column.update(cell.column_name for cell in piece.cells)
            location = piece.next_location
    topic = TopicPlace(gateway_address(run_dir.path), DEMO_DATASTORE, name="Kafka")
    report = verify([StorePlace(client), topic, WarehousePlace(run_dir.inside("warehouse"))])
    charges, cents, _ = provider.totals()
    return Seen(
        cells_by_column=by_column,
        records_by_offset=report.cells("Kafka"),
        warehouse_rows=table.query("SELECT count(*) AS rows FROM cells")[0]["rows"],
        charges=charges,
        charged_cents=cents,
        warehouse_charged_cents=int(table.query(_CHARGED_CENTS, ["charged"])[0]["cents"]),
        cash_cents=int(table.query(_CHARGED_CENTS, ["settled_cash"])[0]["cents"]),
        digests=report,
    )


def _wait(step: Callable[[], bool], otherwise: str) -> None:
    deadline_s = time.monotonic() + STEP_TIMEOUT_S
    while not step():
        raise_if_asked()
        if time.monotonic() > deadline_s:
            raise Unavailable(f"{otherwise} within {STEP_TIMEOUT_S:.0f} s")
        time.sleep(0.1)


def _print(lines: list[Line], console: Console) -> None:
    table = Table("proof", "", "", title=None, box=None)
    for line in lines:
        figures = "   ".join(f"{place} {figure}" for place, figure in line.figures.items())
        table.add_row(
            line.what,
            figures,
            Text("holds", "green") if line.agrees else Text("DOES NOT HOLD", "bold red"),
        )
    console.print()
    console.print(table)
