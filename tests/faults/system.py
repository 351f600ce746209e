"""A whole instance under test, from outside: its own configuration, ``cellfeed up``, and kill -9,
pauses and starts of single processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.model import (
    Config,
    DatastoreConfig,
    IndexWorkersConfig,
    TriggersConfig,
    WarehouseConfig,
    WorkerConfig,
)
from cellfeed.instance.config_file import write_config
from cellfeed.kinds.known import process_names
from cellfeed.run_dir import RunDir

ROOT = Path(__file__).parents[2]
SHARDS = 8
LEASE_S = 2.0


class System:
    """Two workers, a gateway, two trigger processes with billing, an index worker, a warehouse
    loader."""

    def __init__(self, directory: Path) -> None:
        self.run_dir = RunDir(directory / "run")
        self.billing = directory / "billing"
        self._config_file = directory / "config.yaml"
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.write(self._whole())

    def write(self, config: Config) -> None:
        """The processes that run from the next :meth:`up` on."""
        self.config = config
        write_config(config, self._config_file)

    def _whole(self) -> Config:
        return Config(
            datastore=DatastoreConfig(shards=SHARDS),
            workers=[WorkerConfig(name="worker-1", port=0), WorkerConfig(name="worker-2", port=0)],
            gateways=[GatewayProcessConfig(port=0, registry_port=0, group_initial_delay_s=0)],
            triggers=[
                TriggersConfig(
                    app="cellfeed.consumers.billing.app:program",
                    name="billing",
                    processes=2,
                    lease_s=LEASE_S,
                    settings={"billing_dir": str(self.billing)},
                )
            ],
            indexes=[IndexWorkersConfig(lease_s=LEASE_S)],
            warehouses=[WarehouseConfig(flush_rows=200, flush_age_s=0.5)],
        )

    def up(self) -> None:
        log = (self._config_file.parent / "supervisor.log").open("ab")
        arguments = [
            sys.executable,
            "-m",
            "cellfeed.cli.main",
            "up",
            "--config",
            str(self._config_file),
            "--run-dir",
            str(self.run_dir.path),
        ]
        self._supervisor = subprocess.Popen(
            arguments, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        deadline_s = time.monotonic() + 60
        while len(self.run_dir.processes()) < len(process_names(self.config)):
            if self._supervisor.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError((self._config_file.parent / "supervisor.log").read_text())
            time.sleep(0.05)

    def down(self) -> None:
        """Ends everything, also processes that do not want to end."""
        for entry in self.run_dir.processes():
            if psutil.pid_exists(entry.pid):
                os.kill(entry.pid, signal.SIGCONT)
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.terminate()
            self._supervisor.wait(90)

    def pid(self, name: str) -> int:
        return self.run_dir.process(name).pid

    def names(self, kind: str) -> list[str]:
        return [name for name, each in process_names(self.config) if each == kind]

    def urls(self) -> list[str]:
        return [
            f"http://127.0.0.1:{self.run_dir.process(name).ports['http']}"
            for name in self.names("worker")
        ]

    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.run_dir.process('gateway').ports['kafka']}"

    def kill(self, name: str) -> int:
        """kill -9; returns the pid that is gone when this returns."""
        process = psutil.Process(self.pid(name))
        process.kill()
        process.wait(10)
        return process.pid

    def pause(self, name: str, seconds: float) -> int:
        """SIGSTOP for so long, then SIGCONT."""
        process = psutil.Process(self.pid(name))
        process.suspend()
        time.sleep(seconds)
        stopped = process.status() == psutil.STATUS_STOPPED
        process.resume()
        if not stopped:
            raise RuntimeError(f"{name} was not stopped: the fault did not happen")
        return process.pid

    def start(self, name: str) -> int:
        """``cellfeed start``, as its operator would; the new pid."""
        arguments = [
            sys.executable,
            "-m",
            "cellfeed.cli.main",
            "start",
            name,
            "--run-dir",
            str(self.run_dir.path),
        ]
        done = subprocess.run(
            arguments, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{name} did not start: {done.stderr}")
        return self.pid(name)
