"""README, guides and Makefile agree with the program: a test reads both sides, so they cannot drift
apart."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.core import TyperGroup

import cellfeed
from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from tests.support.command_tree import cli, verbs

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    """Every fenced block of a language, with its page's name."""
    return [
        (page.relative_to(ROOT).as_posix(), text)
        for page in PAGES
        for found, text in _FENCE.findall(page.read_text())
        if found == language
    ]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line that a page shows, comments taken off."""
    for page, text in blocks("sh"):
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield page, words


def documented(program: str) -> list[tuple[str, list[str]]]:
    return [(page, words[1:]) for page, words in commands() if Path(words[0]).name == program]


@pytest.mark.parametrize(("page", "words"), documented("cellfeed"))
def test_every_command_in_a_page_is_accepted_by_the_command_line(
    page: str, words: list[str]
) -> None:
    command, rest = cli(), list(words)
    context = command.context_class(command, info_name="cellfeed")
    while isinstance(command, TyperGroup):
        assert rest, f"{page}: cellfeed {words} lacks a verb"
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"{page}: there is no verb {name!r}"
        command, context = found, found.context_class(found, parent=context, info_name=name)
    # Parsed, not run: options, their values and the number of arguments are right.
    command.make_context(context.info_name, rest, parent=context.parent)


def test_every_verb_is_in_a_page() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    missing = [
        " ".join(verb)
        for verb in verbs(cli())
        if verb[0] != "run" and not re.search(rf"\b{' '.join(verb)}\b|`{verb[0]}`", text)
    ]
    assert not missing


@pytest.mark.parametrize("verb", list(verbs(cli())), ids=" ".join)
def test_every_verb_has_help_of_several_words(verb: tuple[str, ...]) -> None:
    command = cli()
    for name in verb:
        assert isinstance(command, TyperGroup)
        command = command.commands[name]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), (
            f"cellfeed {' '.join(verb)}: {parameter.name} has no help"
        )


def test_every_make_target_in_a_page_has_its_line_in_make_help() -> None:
    helped = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = {line.split()[0] for line in helped.splitlines() if line.strip()}
    assert {"help", "setup", "demo", "test", "lint", "bench", "faults", "services"} <= targets
    in_text = {
        target for page in PAGES for target in re.findall(r"`make ([a-z]+)", page.read_text())
    }
    assert {words[0] for _, words in documented("make")} | in_text <= targets


HELM_VALUES = "docs/deploy/kubernetes.md"
"""The page whose YAML has a configuration inside the values of a chart."""


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_every_configuration_in_a_page_is_valid(page: str, text: str, tmp_path: Path) -> None:
    values = yaml.safe_load(text)
    if page == HELM_VALUES:
        text = yaml.safe_dump(values["config"])
    path = tmp_path / "cellfeed.yaml"
    path.write_text(text)
    load_config(path)


def test_every_section_of_the_configuration_is_in_the_operators_pages() -> None:
    shown = set().union(
        *(yaml.safe_load(text) for page, text in blocks("yaml") if page.startswith("docs/operate/"))
    )
    assert shown == set(Config.__struct_fields__)


def test_the_ports_in_the_readme_are_the_defaults() -> None:
    readme, config = (ROOT / "README.md").read_text(), Config()
    for port in (config.workers[0].port, config.gateways[0].port, config.gateways[0].registry_port):
        assert str(port) in readme


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python_in_a_page_is_python_and_uses_public_names(page: str, text: str) -> None:
    for node in ast.walk(ast.parse(text, page)):
        if isinstance(node, ast.ImportFrom) and node.module == "cellfeed":
            assert {name.name for name in node.names} <= set(cellfeed.__all__)


@pytest.mark.parametrize(
    ("page", "text"), [(page, text) for page, text in blocks("python") if "\ndef test_" in text]
)
def test_tests_in_a_page_pass(page: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "cellfeed.testing.plugin",
        "--strict-markers",
        "-W",
        "error",
        str(tmp_path),
    ]
    # Without the options of the run around it: its report would be written to the same file.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment = {**inherited, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{page}: {done.stdout[-3000:]}{done.stderr[-1000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_or_a_path_in_a_page_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(
        r"`((?:cellfeed|consumers|bridge|store|schemas|tests|docs|docker|benchmarks)/[\w./-]*)`",
        text,
    ):
        assert (ROOT / path).exists(), path
