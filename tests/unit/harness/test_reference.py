"""The generated parts of the reference have every command, field and message."""

from __future__ import annotations

import re

import pytest

from cellfeed.config.json_schema import config_schema
from docs.site.commands import commands
from docs.site.configuration import configuration
from docs.site.markdown import cell, prose
from tests.support.command_tree import cli, verbs


def sections(lines: list[str]) -> dict[str, str]:
    """Text by its heading."""
    parts = re.split(r"^#+ (.*)$", "\n".join(lines), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_has_a_heading_and_its_options() -> None:
    found = sections(list(commands()))
    for verb in verbs(cli()):
        if verb == ("run",):
            continue
        command = cli()
        for name in verb:
            command = command.commands[name]
        section = found[f"`cellfeed {' '.join(verb)}`"]
        options = [max(each.opts, key=len) for each in command.params if each.opts]
        assert [each for each in options if each.startswith("-") and each not in section] == [], (
            verb
        )


def test_every_field_of_the_configuration_is_in_its_section() -> None:
    found = sections(list(configuration()))
    for name, schema in config_schema()["$defs"].items():
        assert [each for each in schema["properties"] if f"| `{each}` |" not in found[name]] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("``a*`` and 'trips*'", r"`a*` and 'trips\*'"),
        ("as :class:`~x.Y` says", "as `x.Y` says"),
        ("one <name> [default: 1]", r"one \<name> \[default: 1\]"),
    ],
)
def test_signs_of_markdown_in_a_description_are_shown(text: str, shown: str) -> None:
    assert prose(text) == shown


def test_a_place_of_a_table_is_one_line_without_bars() -> None:
    assert cell("a\n | b") == r"a \| b"
