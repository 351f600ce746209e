"""The command line. Exit codes: 0 well, 1 failed, 2 used wrongly, 3 refused to protect data.

Only the modules of the verb that runs are imported, and for ``--help`` those of none. A process of
an instance is a command, too (``run``).
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from cellfeed.cli import credentials
from cellfeed.cli.summaries import SUMMARIES
from cellfeed.extras import missing_extra
from cellfeed.store.errors import CellfeedError, InvalidRequest

_VERBS: Final = {
    "up": "lifecycle",
    "down": "lifecycle",
    "start": "lifecycle",
    "status": "status",
    "doctor": "doctor",
    "top": "top",
    "load": "load",
    "put": "cells",
    "get": "cells",
    "scan": "cells",
    "tail": "cells",
    "wait": "wait",
    "verify": "verify",
    "check": "check",
    "trim": "trim",
    "restore": "restore",
    "erase": "erase",
    "scrub": "scrub",
    "rebalance": "rebalance",
    "demo": "demo",
    "run": "lifecycle",
}
"""Verb to the module of this package that has a function of its name."""

_GROUPS: Final = {
    "triggers": ("app", ("triggers", "trigger_control")),
    "export": ("app", ("export", "export_control")),
    "parked": ("app", ("parked",)),
    "offsets": ("app", ("offsets", "offsets_translate")),
    "cluster": ("app", ("cluster", "cluster_rejoin")),
    "config": ("app", ("config",)),
    "shard": ("app", ("shard",)),
    "dictionary": ("app", ("dictionary", "dictionary_kept")),
    "backup": ("app", ("backup",)),
    "users": ("users_app", ("access",)),
    "tokens": ("app", ("tokens",)),
    "acls": ("acls_app", ("access",)),
    "warehouse": ("app", ("warehouse",)),
    "lake": ("app", ("lake",)),
    "index": ("app", ("index", "index_query", "index_check")),
    "schemas": ("app", ("schemas", "schemas_unfit")),
}
"""First word of several verbs to the Typer that they belong to and its modules; the first one has
it, all of them add verbs to it."""


_WRONG_PATH: Final = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""Errors of a mistyped path. A full or failing disk is no mistake of a person."""


class _Listed(TyperGroup):
    """Knows every verb by its summary, and imports the one that runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=SUMMARIES[name]) for name in (*_VERBS, *_GROUPS)
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        if name is not None and name in self.commands:
            listed = verb_alone(name).commands[name]
        return name, listed, rest


def command_line(first: str | None = None) -> typer.Typer:
    """The command line. With ``first``, the first word of a command, it has that verb alone; else
    it lists all, and imports a verb when it runs."""
    if first not in _VERBS and first not in _GROUPS:
        return _typer(_Listed)
    app = _typer(TyperGroup)
    if first in _VERBS:
        app.command()(getattr(import_module(f"cellfeed.cli.{_VERBS[first]}"), first))
    else:
        name, modules = _GROUPS[first]
        owner, *_ = [import_module(f"cellfeed.cli.{module}") for module in modules]
        app.add_typer(getattr(owner, name), name=first)
    return app


def verb_alone(name: str) -> TyperGroup:
    """The command line with the verb ``name`` alone, as a group of commands."""
    return cast("TyperGroup", typer.main.get_command(command_line(name)))


def _typer(group: type[TyperGroup]) -> typer.Typer:
    app = typer.Typer(
        cls=group,
        no_args_is_help=True,
        add_completion=group is _Listed,  # it knows every verb
        pretty_exceptions_enable=False,
        help="A sharded store of immutable cells whose every shard is a Kafka partition.",
    )
    app.callback()(_options)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from cellfeed.cli.versions import version_lines  # the engines, for this option alone

        for line in version_lines():
            typer.echo(line)
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version, and the formats on disk that it reads and writes.",
        ),
    ] = False,
    token_file: credentials.TokenFileOption = None,
    ssl_ca: credentials.CaOption = None,
    ssl_certificate: credentials.CertificateOption = None,
    ssl_key: credentials.KeyOption = None,
) -> None:
    del version
    credentials.choose(token_file, ssl_ca, ssl_certificate, ssl_key)


def main() -> None:
    """Entry point: an error that a user can act on is one line, never a traceback."""
    # A command says once that ZooKeeper is away; its client would print every attempt on the
    # terminal. In the logs of processes its lines are as before.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    try:
        _check_arguments()
        command_line(sys.argv[1] if len(sys.argv) > 1 else None)()
    except CellfeedError as error:
        _end(error)
    except ModuleNotFoundError as error:
        sentence = missing_extra(error)
        if sentence is None:
            raise
        _end(InvalidRequest(sentence))
    except BrokenPipeError:
        sys.exit(1)  # the reader of our output has gone
    except _WRONG_PATH as error:
        if error.filename is None:
            raise  # not about a path that somebody gave
        _end(
            InvalidRequest(
                f"{error.filename}: {error.strerror}. Give a path that is there, of the right kind,"
                " and that you may use"
            )
        )


def _check_arguments() -> None:
    for number, argument in enumerate(sys.argv[1:], 1):
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"argument {number} is not UTF-8: {argument.encode(errors='replace')!r}"
            ) from error


def _end(error: CellfeedError) -> NoReturn:
    from cellfeed.cli.output import fail  # start-up: loads rich

    sys.exit(fail(error, "--json" in sys.argv).exit_code)


if __name__ == "__main__":
    main()
