"""The whole command line, every verb imported."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup

from cellfeed.cli.main import command_line, verb_alone


def verbs(command: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every verb of the command line, for example ``("parked", "list")``."""
    if isinstance(command, TyperGroup):
        for name, child in command.commands.items():
            yield from verbs(child, (*prefix, name))
    else:
        yield prefix


@cache
def cli() -> Any:
    """The command line with every verb imported."""
    whole = typer.main.get_command(command_line())
    assert isinstance(whole, TyperGroup)
    for name in list(whole.commands):
        whole.commands.update(verb_alone(name).commands)
    return whole
