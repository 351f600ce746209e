"""Starts gateways for tests: as a process that can be killed and started again on the same port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import psutil

from tests.support.trips_log import FORMATS

REPOSITORY = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S = 20.0


class GatewayProcess:
    """One gateway over the datastore in ``store``; its standard error goes to ``log``."""

    def __init__(self, store: Path, log: Path, **settings: Any) -> None:
        self._store = store
        self._log = log
        # A tenth of Kafka's own wait for more members, which has tests of its own. Without any,
        # kafka-python's group leader divided a topic whose metadata it did not have yet, once on a
        # busy machine; it read nothing for the rest of the test.
        self._settings = {"group_initial_delay_s": 0.3, "formats": FORMATS, **settings}
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.registry_port = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None, "the gateway is not running"
        return psutil.Process(self._process.pid)

    def start(self) -> Self:
        """Starts it, on the same port as before if it ran before, and waits until it serves."""
        command = [
            sys.executable,
            "-m",
            "tests.support.gateway_process",
            str(self._store),
            str(self.port),
            json.dumps(self._settings),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the gateway did not start: {self._log.read_text()}"
        ports = json.loads(line)
        self.port, self.registry_port = ports["port"], ports["registry_port"]
        return self

    def kill(self) -> None:
        """``kill -9``, and proof that the process is gone."""
        self._end(signal.SIGKILL)
        assert self.returncode == -signal.SIGKILL

    def stop(self) -> None:
        """Asks it to end."""
        self._end(signal.SIGTERM)

    @property
    def returncode(self) -> int | None:
        return self._returncode

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        assert process is not None, "the gateway is not running"
        os.kill(process.pid, number)
        try:
            self._returncode = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()

    def end_by_force(self) -> None:
        """``kill -9``, when it runs."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        if self._process is not None:
            self.stop()
