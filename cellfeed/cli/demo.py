"""demo: the whole product on real taxi trips, in under a minute."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from cellfeed.cli.as_typed import program, run_dir_option, shown
from cellfeed.cli.output import console, progress_bar
from cellfeed.demo.run import DEMO_DATASTORE, demo_config, run_demo
from cellfeed.instance.addresses import gateway_address, worker_urls
from cellfeed.instance.config_file import check_config
from cellfeed.instance.supervisor import start_all, stop_all
from cellfeed.processes.signals import end_at_signals
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import InvalidRequest

_MARKER: Final = "made-by-demo"
"""The file by which the demo knows a directory as its own; a name in the configuration proves
nothing. It is there before everything else."""


def demo(
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Leave it running at the end; `cellfeed down --run-dir demo-run` ends it.",
        ),
    ] = False,
    run_dir: Annotated[
        Path, typer.Option("--run-dir", help="Where the demo keeps its files; emptied first.")
    ] = Path("demo-run"),
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", help="Other trips than those that the product ships, in the same columns."
        ),
    ] = None,
) -> None:
    """Load New York taxi trips, bill them, follow them with a Kafka consumer into Parquet, and
    prove that nothing was lost. Exits with 1 on a false proof."""
    directory = RunDir(run_dir)
    _empty(directory)
    began_s = time.monotonic()
    end_at_signals()
    with directory.supervised():
        start_all(
            directory,
            check_config(demo_config(directory, console=keep)),
            lambda line: console.print(line, highlight=False),
        )
        left_running = False
        try:
            lines = run_demo(directory, console, progress_bar, csv)
            left_running = keep
            commands = _while_it_runs(directory) if keep else _once_it_ended(directory)
        finally:
            if not left_running:
                stop_all(directory, lambda _: None)
    console.print()
    console.print("It runs. Try next:" if keep else "It has ended. Try next:", highlight=False)
    width = max(len(command) for command, _ in commands)
    for command, what in commands:
        console.print(f"  {command:<{width}}  {what}", highlight=False, markup=False)
    console.print(f"\n{time.monotonic() - began_s:.1f} s", highlight=False)
    if not all(line.agrees for line in lines):
        raise typer.Exit(1)


def _empty(directory: RunDir) -> None:
    if directory.supervisor_pid() is not None or any(
        directory.alive(entry.name) for entry in directory.processes()
    ):
        raise InvalidRequest(
            f"an instance runs in {directory.path}; end it with: cellfeed down --run-dir"
            f" {directory.path}"
        )
    if directory.path.exists():
        if any(directory.path.iterdir()) and not (directory.path / _MARKER).is_file():
            raise InvalidRequest(
                f"{directory.path} is not empty and is not a run directory of the demo: the demo"
                " does not empty it"
            )
        for path in directory.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _MARKER:  # a killed demo's directory is still the demo's
                path.unlink()
    directory.make()
    (directory.path / _MARKER).touch()


_BOROUGHS: Final = (
    "\"SELECT body->>'pickup_borough' AS borough, count(*) AS trips FROM latest"
    " WHERE column_name = 'BASE' GROUP BY ALL ORDER BY trips DESC\""
)
"""A query with the same answer each time: which rows ``LIMIT`` alone shows is chance."""


def _while_it_runs(directory: RunDir) -> list[tuple[str, str]]:
    kafka, http = gateway_address(directory.path), worker_urls(directory.path)[0]
    where, cellfeed = run_dir_option(directory.path), program()
    console_port = directory.process("console").ports["console"]
    return [
        (f"http://127.0.0.1:{console_port}", "the console in a browser: lag, bills, a row's life"),
        (f"kcat -b {kafka} -C -t {DEMO_DATASTORE}.STATUS -e", "any Kafka client reads the logs"),
        (f"{cellfeed} tail{where} --last 10", "the newest cells, then others as they come"),
        (f"{cellfeed} warehouse query{where} {_BOROUGHS}", "SQL over the Parquet files"),
        (f"{http}/schema", "the HTTP API and its OpenAPI page"),
        (f"{cellfeed} down{where}", "ends it"),
    ]


def _once_it_ended(directory: RunDir) -> list[tuple[str, str]]:
    where, cellfeed = run_dir_option(directory.path), program()
    up = f"{cellfeed} up --detach{where} --config {shown(directory.config)}"
    return [
        (f"{cellfeed} warehouse query{where} {_BOROUGHS}", "SQL over the Parquet files"),
        (up, "starts it again over its files"),
        (f"{cellfeed} status{where}", "where its ports are, and how far each part is"),
        (f"{cellfeed} down{where}", "ends it"),
    ]
