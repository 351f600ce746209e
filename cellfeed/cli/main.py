"""The command line. Exit codes: 0 well, 1 failed, 2 used wrongly, 3 refused to protect data.

Only the modules of the verb that is asked for are imported: a process of an instance is a command,
too (``run``), and starts in two thirds of the time.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Annotated, Final

import typer

from cellfeed import __version__
from cellfeed.store.errors import CellfeedError

_VERBS: Final = {
    "up": "lifecycle",
    "down": "lifecycle",
    "start": "lifecycle",
    "status": "status",
    "load": "cells",
    "put": "cells",
    "get": "cells",
    "scan": "cells",
    "tail": "cells",
    "verify": "verify",
    "check": "check",
    "trim": "trim",
    "restore": "restore",
    "erase": "erase",
    "scrub": "scrub",
    "rebalance": "shard",
    "demo": "demo",
    "run": "lifecycle",
}
"""Verb to the module of this package that has a function of its name."""

_GROUPS: Final = {
    "triggers": ("app", ("triggers", "trigger_control")),
    "export": ("app", ("export", "export_control")),
    "parked": ("app", ("parked",)),
    "offsets": ("app", ("offsets", "offsets_translate")),
    "cluster": ("app", ("cluster",)),
    "shard": ("app", ("shard",)),
    "dictionary": ("app", ("dictionary",)),
    "backup": ("app", ("backup",)),
    "users": ("users_app", ("access",)),
    "acls": ("acls_app", ("access",)),
    "warehouse": ("app", ("warehouse",)),
    "index": ("app", ("index", "index_check")),
    "schemas": ("app", ("schemas",)),
}
"""First word of several verbs to the Typer that they belong to and its modules; the first one has
it, all of them add verbs to it."""


def command_line(first: str | None = None) -> typer.Typer:
    """The whole command line; with ``first``, the first word of a command, only as much of it as
    that one needs."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="A sharded store of immutable cells whose every shard is a Kafka partition.",
    )
    app.callback()(_options)
    is_one = first in _VERBS or first in _GROUPS
    for verb, module in _VERBS.items():
        if verb == first or not is_one:
            app.command()(getattr(import_module(f"cellfeed.cli.{module}"), verb))
    for group, (name, modules) in _GROUPS.items():
        if group == first or not is_one:
            owner, *_ = [import_module(f"cellfeed.cli.{module}") for module in modules]
            app.add_typer(getattr(owner, name), name=group)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cellfeed {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Entry point: an error that a user can act on is one line, never a traceback."""
    # A command says once that ZooKeeper is away; its client would tell the terminal of every
    # attempt. In the logs of processes its lines are as before.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    try:
        command_line(sys.argv[1] if len(sys.argv) > 1 else None)()
    except CellfeedError as error:
        from cellfeed.cli.output import fail

        sys.exit(fail(error, "--json" in sys.argv).exit_code)
    except BrokenPipeError:
        sys.exit(1)  # whoever read our output has gone


if __name__ == "__main__":
    main()
