"""Commands of a test, in its own process or killed in one of their own."""

from __future__ import annotations

import os
import signal
import subprocess

from typer.testing import CliRunner

from cellfeed.cli.main import command_line
from cellfeed.store.errors import CellfeedError
from tests.support.cli_instance import CELLFEED, ROOT


def done(*words: object) -> str:
    """The command's output; it ends well."""
    result = CliRunner().invoke(command_line(str(words[0])), [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(*words: object) -> CellfeedError:
    """Why it did not."""
    result = CliRunner().invoke(command_line(str(words[0])), [str(word) for word in words])
    assert isinstance(result.exception, CellfeedError), result.output
    return result.exception


def killed(failpoint: str, *words: object) -> None:
    ended = subprocess.run(
        [*CELLFEED, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        timeout=180,
        check=False,
        env={**os.environ, "CELLFEED_FAILPOINTS": f"{failpoint}=kill"},
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
