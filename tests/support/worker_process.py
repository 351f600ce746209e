"""Workers as processes of their own, to be killed (``http_worker_process.py``)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


class WorkerProcess:
    def __init__(self, directory: Path, port: int = 0, failpoints: str = "") -> None:
        command = [
            sys.executable,
            "-m",
            "tests.support.http_worker_process",
            str(directory),
            str(port),
        ]
        environment = {**os.environ, "CELLFEED_FAILPOINTS": failpoints}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@contextlib.contextmanager
def worker_process(directory: Path, port: int = 0, failpoints: str = "") -> Iterator[WorkerProcess]:
    worker = WorkerProcess(directory, port, failpoints)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.end(signal.SIGKILL)
        else:
            worker.wait()
