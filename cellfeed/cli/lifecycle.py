"""up, down, start, run: the life of an instance."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from cellfeed.cli.as_typed import run_dir_option
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, console, left_out_line, print_json
from cellfeed.cli.up_options import UpOptions
from cellfeed.config.host_port import parsed_host_port
from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from cellfeed.instance.other_names import refuse_fresh_store_beside
from cellfeed.instance.shared_files import files_used
from cellfeed.instance.sizes import sizes
from cellfeed.instance.supervisor import (
    start_again,
    start_all,
    stop_all,
    stop_instance,
    supervise,
)
from cellfeed.processes.child import START_TIMEOUT_S, launch
from cellfeed.processes.signals import end_at_signals, raise_if_asked
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import Unavailable

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="YAML configuration; the built-in embedded one when left out."),
]


def up(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once everything serves, and leave it running.")
    ] = False,
    datastore: Annotated[
        str | None,
        typer.Option("--datastore", help="The datastore's name, instead of the configuration's."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65_535,
            help="The HTTP worker's port, instead of the configuration's; 0: a free one.",
        ),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option("--kafka-port", min=0, max=65_535, help="Likewise the gateway's."),
    ] = None,
    registry_port: Annotated[
        int | None,
        typer.Option("--registry-port", min=0, max=65_535, help="Likewise its schema registry's."),
    ] = None,
    share_files: Annotated[
        bool,
        typer.Option(
            "--share-files",
            help="Start even where an instance of another run directory has the same files.",
        ),
    ] = False,
) -> None:
    """Start an instance: HTTP workers, Kafka gateway, and everything else the configuration names.
    Ctrl-C ends it."""
    directory = RunDir(run_dir)
    options = UpOptions(datastore, port, kafka_port, registry_port)
    checked = options.applied(load_config(config))
    if datastore is None:
        refuse_fresh_store_beside(directory, checked)
    if detach:
        _detach(directory, config, [*options.words(), *["--share-files"] * share_files])
        return
    directory.make()
    stopping = threading.Event()
    signals = end_at_signals()

    def say(line: str) -> None:
        console.print(line, highlight=False)

    with directory.supervised(), files_used(directory, checked, share_files, say):
        start_all(directory, checked, say)
        for number in signals:
            signal.signal(number, lambda *_: stopping.set())
        _say_sizes(directory, checked)
        _say_left_out(directory, checked)
        console.print(
            f"up: run directory {directory.path}; Ctrl-C or"
            f" `cellfeed down{run_dir_option(directory.path)}` ends it",
            highlight=False,
        )
        try:
            raise_if_asked()
            supervise(directory, checked, say, stopping.is_set)
        finally:
            stop_all(directory, say)


def down(run_dir: RunDirOption = DEFAULT_RUN_DIR) -> None:
    """End an instance: every process drains and stops."""
    directory = RunDir(run_dir)
    if not directory.processes() and directory.supervisor_pid() is None:
        console.print(f"nothing runs in {run_dir}", highlight=False)
        return
    stop_instance(directory, lambda line: console.print(line, highlight=False))
    if directory.config.exists():
        _say_sizes(directory, load_config(directory.config))
    console.print("down", highlight=False)


def _say_sizes(directory: RunDir, config: Config) -> None:
    found = ", ".join(f"{name} {decimal(size)}" for name, size in sizes(directory, config).items())
    console.print(f"on disk: {found}", highlight=False)


def _say_left_out(directory: RunDir, config: Config) -> None:
    """A typed topic may leave out most of its column, and nobody who reads it would see that."""
    if not config.datastore.schemas:
        return
    from cellfeed.assembly.datastore import opened  # up opens no store but for this
    from cellfeed.bridge.gateway.groups.slot_owners import slots_by_gateway
    from cellfeed.status.care import left_out_of_topics

    with suppress(Unavailable), opened(config, directory.path) as (_, datastore, coordinator):
        for each in left_out_of_topics(datastore, slots_by_gateway(coordinator)):
            console.print(left_out_line(each), highlight=False)


def start(
    name: Annotated[str, typer.Argument(help="A process's name, as `cellfeed status` shows it.")],
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Bring back one process of an instance, on the ports that it had."""
    entry = start_again(RunDir(run_dir), name)
    if as_json:
        print_json(
            {
                "name": entry.name,
                "kind": entry.kind,
                "pid": entry.pid,
                "ports": entry.ports,
                "log": entry.log,
            }
        )
    else:
        console.print(f"{entry.name} started (pid {entry.pid})", highlight=False)


def run(
    name: Annotated[str, typer.Argument(help="The process's name in the configuration.")],
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    health: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            envvar="CELLFEED_HEALTH",
            help=(
                "Where `/livez` and `/readyz` listen; port 0: the port of the last run, or a free"
                " one. Peers of other hosts see the verdict without its reasons."
            ),
        ),
    ] = "127.0.0.1:0",
) -> None:
    """Run one process of an instance in the foreground (as `up` does; for other
    supervisors)."""
    from cellfeed.instance.process import run_process  # up and down open no store

    run_process(run_dir, name, parsed_host_port(health))


def _detach(directory: RunDir, config: Path | None, options: list[str]) -> None:
    directory.make()
    arguments = [sys.executable, "-m", "cellfeed.cli.main", "up", "--run-dir", str(directory.path)]
    arguments += options
    if config is not None:
        arguments += ["--config", str(config)]
    log_path = directory.log("supervisor")
    start = log_path.stat().st_size if log_path.exists() else 0
    process = launch(arguments, {"COLUMNS": "500"}, log=log_path)
    try:
        _wait_until_up(process, log_path, start)
    except BaseException:
        process.terminate()
        raise


def _wait_until_up(process: subprocess.Popen[bytes], log_path: Path, start: int) -> None:
    deadline_s = time.monotonic() + 4 * START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        said = log_path.read_bytes()[start:].decode(errors="replace")
        if process.poll() is not None:
            if process.returncode in (2, 3):
                sys.stderr.write(said)
                raise typer.Exit(process.returncode)
            raise Unavailable(f"it did not start:\n{said.strip()}")
        if "up: run directory" in said:
            console.print(said.strip().replace("Ctrl-C or ", ""), highlight=False)
            return
        time.sleep(0.05)
    raise Unavailable(f"it did not start in time; see {log_path}")
