"""Every command with wrong paths, and with text that is none: no traceback, and no silence."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pytest

from cellfeed.cli.main import main
from tests.support.cli_instance import running
from tests.support.command_tree import cli, verbs

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("wrong values")]

PATIENCE_S: Final = 30.0
"""A command that says nothing for so long is silent. Machines are busy; most take a tenth."""

NO_TEXT: Final = "\udcff"
"""Python's form of an argument that is not UTF-8."""

GOOD: Final = {
    "row_key": "00000000-0000-4000-8000-000000000000",
    "column": "BASE",
    "ref_key": "1",
    "body": "{}",
    "datastore": "trips",
    "table": "trips",
    "sql": "SELECT 1",
    "shard": "0",
    "at": "2026-01-01T00:00:00Z",
}
"""Values for required arguments while another value is wrong."""


WRONG: Final = {
    "max_errors": ("-1", "many"),
    "datastore": ("Trips", "a/b"),
    "port": ("-1", "65536", "x"),
    "kafka_port": ("-1", "65536", "x"),
    "registry_port": ("-1", "65536", "x"),
    "field_types": ("fare", "fare:decimal", "nobody:int"),
}
"""More wrong values of options, by their names."""


class Asked(NamedTuple):
    words: tuple[str, ...]
    code: int | None
    output: str

    @property
    def fault(self) -> str | None:
        if self.code is None:
            return f"said nothing for {PATIENCE_S:.0f} s"
        if "Traceback (most recent call last)" in self.output:
            return self.output.strip().splitlines()[-1]
        if self.code not in (0, 1, 2, 3):
            return f"exit code {self.code}"
        return None if self.output.strip() else f"silent, exit code {self.code}"


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running(tmp_path_factory.mktemp("wrong-values")) as run_dir:
        yield run_dir


def parameters(verb: tuple[str, ...]) -> list[Any]:
    command: Any = cli()
    for word in verb:
        command = command.commands[word]
    return [each for each in command.params if each.name != "help"]


def wrong_values(parameter: Any, folder: Path) -> list[str]:
    if getattr(parameter, "is_flag", False):
        return []
    if "Path" in str(parameter.type_descriptor.annotation):
        return [str(folder / "file"), str(folder / "file" / "below"), "/proc/none/such"]
    return [NO_TEXT, *WRONG.get(parameter.name, ())]


def commands(verb: tuple[str, ...], run_dir: Path, folder: Path) -> Iterator[tuple[str, ...]]:
    """The command with each wrong value in turn."""
    asked = parameters(verb)
    for wrong in asked:
        for value in wrong_values(wrong, folder):
            words = list(verb)
            for each in asked:
                given = value if each is wrong else GOOD.get(each.name, "missing")
                if each is not wrong and each.name == "run_dir":
                    words += ["--run-dir", str(run_dir)]
                elif each.param_type_name == "option" and (each is wrong or each.required):
                    words += [max(each.opts, key=len), given]
            words.append("--")
            words += [
                value if each is wrong else GOOD.get(each.name, "missing")
                for each in asked
                if each.param_type_name == "argument" and (each is wrong or each.required)
            ]
            yield tuple(words)


def ask(words: tuple[str, ...], log: Path, folder: Path) -> Asked:
    """Runs the command in a fork of this process, which has imported every verb."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            os.chdir(folder)
            said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(said, 1)
            os.dup2(said, 2)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in enumerate("rww"))
            sys.argv = ["cellfeed", *words]
            try:
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                code = 98
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return Asked(words, os.waitstatus_to_exitcode(status), log.read_text(errors="replace"))
        if time.monotonic() > deadline_s:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Asked(words, None, log.read_text(errors="replace"))
        time.sleep(0.005)


@pytest.mark.parametrize(
    "verb", sorted(verbs(cli()), key=lambda verb: verb == ("down",)), ids=" ".join
)
def test_a_wrong_value_gets_an_error_in_plain_words(
    verb: tuple[str, ...], instance: Path, tmp_path: Path
) -> None:
    folder = tmp_path / str(uuid4())
    folder.mkdir()
    (folder / "file").write_text("of a person\n")
    faults = {}
    for words in commands(verb, instance, folder):
        asked = ask(words, tmp_path / "said", folder)
        if asked.fault:
            faults[" ".join(word[:60] for word in words)] = asked.fault
    assert not faults
