"""A command that a signal ends leaves no process behind, whenever the signal comes, and ends even
where its exception was swallowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

STARTING = """
import os, signal, subprocess, sys
from pathlib import Path
from cellfeed.instance import supervisor
from cellfeed.processes.signals import end_at_signals
from cellfeed.run_dir import RunDir

start = subprocess.Popen

def interrupted(*_, **__):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = start(command, stdout=subprocess.DEVNULL)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    return process

subprocess.Popen = interrupted
directory = RunDir(Path(sys.argv[1]))
directory.make()
end_at_signals()
supervisor.start_one(directory, "worker", "worker")
"""

SWALLOWED = """
import os, signal
from cellfeed.processes.signals import end_at_signals, raise_if_asked

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

end_at_signals()
Dropped()
print("continues", flush=True)
raise_if_asked()
print("continued")
"""


def run(program: str, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and the lines that were printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.integration
def test_a_process_that_is_being_started_is_ended_with_the_command(tmp_path: Path) -> None:
    code, [pid] = run(STARTING, str(tmp_path))
    assert code == 128 + 15
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(int(pid))


@pytest.mark.integration
def test_a_signal_whose_exception_was_swallowed_is_answered_at_the_next_question() -> None:
    assert run(SWALLOWED) == (128 + 2, ["continues"])
