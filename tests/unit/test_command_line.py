"""One verb needs no more than its own modules, and is the same with them as in the whole command
line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from cellfeed.cli.main import command_line

ROOT = Path(__file__).parents[2]
OF_OTHERS = [
    "kio",
    "confluent_kafka",
    "pyarrow",
    "duckdb",
    "litestar",
    "cellfeed.cli.demo",
    "cellfeed.cli.index",
    "cellfeed.cli.status",
]


def group(first: str | None = None) -> TyperGroup:
    made = typer.main.get_command(command_line(first))
    assert isinstance(made, TyperGroup)
    return made


def test_a_process_of_an_instance_starts_without_what_other_verbs_and_processes_need() -> None:
    code = (
        "import json, sys; from cellfeed.cli.main import command_line; command_line('run');"
        " print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    )
    assert "cellfeed.assembly.processes" in loaded
    assert not set(loaded) & set(OF_OTHERS)


@pytest.mark.parametrize("first", sorted(group().commands))
def test_a_verb_alone_is_what_it_is_among_the_others(first: str) -> None:
    alone, among = group(first).commands, group().commands
    assert set(alone) == {first}
    assert (alone[first].help, [each.opts for each in alone[first].params]) == (
        among[first].help,
        [each.opts for each in among[first].params],
    )
    if isinstance(among[first], TyperGroup):
        assert list(alone[first].commands) == list(among[first].commands)


@pytest.mark.parametrize("first", [None, "--version", "--help", "no-such-verb"])
def test_whatever_else_comes_first_is_answered_by_the_whole(first: str | None) -> None:
    assert len(group(first).commands) > 15
