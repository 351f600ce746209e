"""A verb imports its own modules alone, and the list of verbs imports none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from cellfeed.cli.main import command_line, verb_alone
from cellfeed.cli.summaries import SUMMARIES

ROOT = Path(__file__).parents[3]
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
HEAVY = [
    *OF_OTHERS,
    "asyncio",
    "fastavro",
    "kazoo",
    "numpy",
    "pymysql",
    "sqlite3",
    "uvloop",
    "yaml",
    "cellfeed.assembly",
    "cellfeed.bridge",
    "cellfeed.cli.cells",
    "cellfeed.config",
    "cellfeed.store.datastore",
]


def loaded_by(code: str) -> set[str]:
    """The modules of a process after ``code``."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import json, sys\n{code}\nprint(json.dumps(list(sys.modules)))",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.integration
def test_a_process_of_an_instance_imports_nothing_of_other_verbs_and_processes() -> None:
    loaded = loaded_by(
        "from cellfeed.cli.main import command_line; command_line('run')\n"
        "import cellfeed.instance.process, cellfeed.kinds.known"
    )
    assert not loaded & set(OF_OTHERS)


@pytest.mark.integration
def test_verbs_that_speak_to_processes_import_no_store() -> None:
    loaded = loaded_by(
        "from cellfeed.cli.main import verb_alone\n"
        "for verb in 'put get scan tail erase verify up down'.split(): verb_alone(verb)"
    )
    assert {"cellfeed.cli.cells", "cellfeed.cli.verify", "cellfeed.cli.lifecycle"} <= loaded
    assert not loaded & {*OF_OTHERS, "cellfeed.assembly", "cellfeed.store.datastore"}


@pytest.mark.integration
def test_status_opens_a_store_without_clients_of_kafka_or_tables() -> None:
    loaded = loaded_by("from cellfeed.cli.main import verb_alone; verb_alone('status')")
    assert {"cellfeed.cli.status", "cellfeed.store.datastore"} <= loaded
    heavy = {*OF_OTHERS, "kazoo", "numpy", "uvloop"} - {"cellfeed.cli.status"}
    assert not loaded & heavy


@pytest.mark.integration
def test_the_list_of_verbs_imports_no_verb() -> None:
    loaded = loaded_by(
        "from contextlib import suppress\n"
        "from cellfeed.cli import main\n"
        "for words in (['--help'], [], ['no-such-verb']):\n"
        "    sys.argv = ['cellfeed', *words]\n"
        "    with suppress(SystemExit):\n"
        "        main.main()"
    )
    assert "cellfeed.cli.summaries" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.integration
def test_the_version_imports_the_formats_that_it_names_and_no_verb() -> None:
    loaded = loaded_by(
        "from contextlib import suppress\n"
        "from cellfeed.cli import main\n"
        "sys.argv = ['cellfeed', '--version']\n"
        "with suppress(SystemExit):\n"
        "    main.main()"
    )
    assert "cellfeed.cli.versions" in loaded
    assert not loaded & (set(HEAVY) - {"pymysql", "sqlite3"})


def listed() -> TyperGroup:
    made = typer.main.get_command(command_line())
    assert isinstance(made, TyperGroup)
    return made


@pytest.mark.parametrize("name", sorted(listed().commands))
def test_the_list_of_verbs_has_the_first_line_of_each_help(name: str) -> None:
    (verb,) = verb_alone(name).commands.values()
    assert " ".join((verb.help or "").split()).startswith(SUMMARIES[name])
    assert listed().commands[name].help == SUMMARIES[name]


def test_every_summary_is_of_a_verb() -> None:
    assert set(SUMMARIES) == set(listed().commands)


@pytest.mark.parametrize("words", [["down"], ["--", "down"]])
def test_a_listed_verb_is_imported_when_it_runs(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(command_line(), [*words, "--run-dir", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, f"nothing runs in {tmp_path}\n")


def test_a_mistyped_verb_is_answered_with_those_alike() -> None:
    done = CliRunner().invoke(command_line("statsu"), ["statsu"])
    assert done.exit_code == 2
    assert "Did you mean 'status'" in done.output
