"""Every command with its arguments and options, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import typer
from typer.core import TyperGroup

from cellfeed.cli.main import command_line, verb_alone
from docs.site.markdown import cell, code, prose, table

HIDDEN = {"run"}
"""A command that ``up`` runs, and no user does."""


def commands() -> Iterator[str]:
    """Markdown, a heading for each command."""
    listed = cast("TyperGroup", typer.main.get_command(command_line()))
    for name in sorted(set(listed.commands) - HIDDEN):
        yield from _described(verb_alone(name).commands[name], ("cellfeed", name))


def _described(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    if command.hidden:
        return
    name = " ".join(words)
    yield f"{'#' * len(words)} `{name}`\n"
    if isinstance(command, TyperGroup):
        yield f"{prose(command.help or '')}\n"
        for verb, child in sorted(command.commands.items()):
            yield from _described(child, (*words, verb))
        return
    context = command.context_class(command, info_name=name)
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    yield f"{prose(command.help or '')}\n"
    records = [each.get_help_record(context) for each in command.params]
    yield from table(
        ("argument or option", "what"),
        ((code(record[0]), cell(record[1])) for record in records if record),
    )
