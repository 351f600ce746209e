"""The terminal of a new user: prints each command and its output, and looks at the exit code."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.waiting import wait_until

COMMAND_TIMEOUT_S: Final = 120
WAIT_S: Final = 60.0
"""For events that come by themselves: a trigger, an index, a file of the warehouse."""


class Terminal:
    """In ``home``, a directory of its own; ``cellfeed`` and ``python`` are those of this
    environment."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "100",
        }

    def chapter(self, title: str) -> None:
        print(f"\n=== {title} ===", flush=True)

    def file(self, name: str, text: str) -> None:
        """Saves a file, as an editor does."""
        print(f"\n--- {name} ---\n{text.rstrip()}", flush=True)
        (self.home / name).write_text(text)

    def run(self, command: str, *, code: int = 0, sees: str = "") -> str:
        """Types a command; its output. ``code``: how it must end; ``sees``: the text that it
        must have. No command may print a traceback."""
        print(f"\n$ {command}", flush=True)
        done = self._done(command)
        print(done.stdout.rstrip(), flush=True)
        assert done.returncode == code, f"{command} ended with {done.returncode}: {done.stdout}"
        assert sees in done.stdout, f"{command} does not say {sees!r}: {done.stdout}"
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def mistake(self, command: str, *, code: int = 1, sees: str) -> None:
        """Types something wrong: the answer is short, and names the next step."""
        said = self.run(command, code=code, sees=sees)
        assert len(said.splitlines()) <= 12, f"{command} answers at length: {said}"

    def wait(self, command: str, sees: str) -> None:
        """Types a command again until it prints the expected words; prints the last answer."""
        said = ""

        def is_there() -> bool:
            nonlocal said
            said = self._done(command).stdout
            return sees in said

        print(f"\n$ {command}", flush=True)
        try:
            wait_until(is_there, f"{command} says {sees!r}", WAIT_S)
        finally:
            print(said.rstrip(), flush=True)

    def _done(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command),
            cwd=self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # records are bytes
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
