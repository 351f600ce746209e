"""The commands of examples/README.md, as they stand there, at an instance on other ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.cli_instance import ROOT
from tests.support.waiting import wait_until

PAGE: Final = ROOT / "examples" / "README.md"
_SECTION: Final = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END_TIMEOUT_S: Final = 60.0


def commands(section: str) -> list[str]:
    """The blocks of commands of a section of the page."""
    sections = dict(_SECTION.findall(PAGE.read_text()))
    return blocks(sections[section])


def blocks(text: str) -> list[str]:
    return list(_BLOCK.findall(text))


@dataclass
class Running:
    """A command under way; ``output`` is the file of its output."""

    process: subprocess.Popen[bytes]
    output: Path

    def lines(self, count: int, timeout_s: float) -> list[str]:
        """The whole lines of the output, once there are so many."""
        wait_until(
            lambda: len(self._whole()) >= count or self.process.poll() is not None,
            f"{count} lines of {self.output.stem}",
            timeout_s,
        )
        assert self.process.poll() is None, f"it ended: {self._errors().read_text()[-2_000:]}"
        return self._whole()

    def _whole(self) -> list[str]:
        return self.output.read_text().split("\n")[:-1]

    def _errors(self) -> Path:
        return self.output.with_suffix(".errors")


@dataclass(frozen=True)
class Shell:
    """Runs a page's commands with other words for its addresses and folders."""

    words: Mapping[str, str]
    environment: Mapping[str, str]

    def with_environment(self, **more: str) -> Shell:
        return Shell(self.words, {**self.environment, **more})

    def text(self, command: str) -> str:
        longest_first = sorted(self.words, key=len, reverse=True)
        known = re.compile("|".join(map(re.escape, longest_first)))
        return known.sub(lambda found: self.words[found[0]], command)

    def run(self, command: str, timeout_s: float) -> str:
        """Its standard output. It ends well."""
        done = subprocess.run(
            ["bash", "-ec", self.text(command)],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        return done.stdout

    @contextmanager
    def running(self, command: str, output: Path) -> Iterator[Running]:
        """The command, which Ctrl-C ends when the block ends; ``output`` gets its output."""
        with output.open("wb") as file, output.with_suffix(".errors").open("wb") as errors:
            process = subprocess.Popen(
                ["env", "--default-signal=INT", "bash", "-ec", self.text(command)],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdout=file,
                stderr=errors,
                start_new_session=True,
            )
        try:
            yield Running(process, output)
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_END_TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(_END_TIMEOUT_S)
