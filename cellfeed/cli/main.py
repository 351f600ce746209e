"""The command line. Exit codes: 0 well, 1 failed, 2 used wrongly, 3 refused to protect data."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from cellfeed import __version__
from cellfeed.cli import (
    access,
    cells,
    cluster,
    demo,
    dictionary,
    export,
    export_control,
    index,
    index_check,
    lifecycle,
    offsets,
    offsets_translate,
    parked,
    status,
    trigger_control,
    triggers,
    trim,
    verify,
    warehouse,
)
from cellfeed.cli.output import fail
from store.errors import CellfeedError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A sharded store of immutable cells whose every shard is a Kafka partition.",
)
app.command()(lifecycle.up)
app.command()(lifecycle.down)
app.command()(lifecycle.start)
app.command()(status.status)
app.command()(cells.load)
app.command()(cells.put)
app.command()(cells.get)
app.command()(cells.scan)
app.command()(cells.tail)
app.command()(verify.verify)
app.command()(trim.trim)
triggers.app.command()(trigger_control.pause)
triggers.app.command()(trigger_control.resume)
triggers.app.command()(trigger_control.reset)
triggers.app.command()(trigger_control.forget)
triggers.app.command("history")(trigger_control.show_history)
app.add_typer(triggers.app, name="triggers")
export.app.command()(export_control.pause)
export.app.command()(export_control.resume)
export.app.command()(export_control.verify)
export.app.command("parked")(export_control.list_parked)
app.add_typer(export.app, name="export")
offsets.app.command()(offsets_translate.translate)
app.add_typer(parked.app, name="parked")
app.add_typer(offsets.app, name="offsets")
app.add_typer(cluster.app, name="cluster")
app.add_typer(dictionary.app, name="dictionary")
app.add_typer(access.users_app, name="users")
app.add_typer(access.acls_app, name="acls")
app.add_typer(warehouse.app, name="warehouse")
index.app.command()(index_check.verify)
index.app.command()(index_check.repair)
app.add_typer(index.app, name="index")
app.command()(demo.demo)
app.command()(lifecycle.run)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cellfeed {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False) -> None:
    del version


def main() -> None:
    """Entry point: an error that a user can act on is one line, never a traceback."""
    # A command says once that ZooKeeper is away; its client would tell the terminal of every attempt. In the logs of processes its lines are as before.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    try:
        app()
    except CellfeedError as error:
        sys.exit(fail(error, "--json" in sys.argv).exit_code)
    except BrokenPipeError:
        sys.exit(1)  # whoever read our output has gone


if __name__ == "__main__":
    main()
