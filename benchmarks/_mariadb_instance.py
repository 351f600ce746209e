"""A whole instance over a cluster of MariaDB servers: ``cellfeed cluster init`` and
``cellfeed up``, as an operator starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks._processes import STOP_TIMEOUT_S
from cellfeed.run_dir import RunDir
from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import bare_servers

SHARDS = 16


@dataclass
class Instance:
    """``servers``: the first one is the master. ``url``, ``bootstrap``: of its worker and its first
    gateway; ``gateways``: their names."""

    servers: list[MariaDB]
    config: Path
    url: str
    bootstrap: str
    run_dir: RunDir
    gateways: tuple[str, ...]

    @property
    def master(self) -> psutil.Process:
        """The process of the first server."""
        process = self.servers[0].process
        assert process is not None
        return psutil.Process(process.pid)

    def end_gateways(self) -> None:
        """By SIGTERM; returns when they are gone."""
        for name in self.gateways:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(self.run_dir.process(name).pid)
                process.terminate()
                psutil.wait_procs([process], timeout=STOP_TIMEOUT_S)

    def start_gateway(self, name: str) -> tuple[str, psutil.Process]:
        """Its bootstrap address and its process."""
        _cellfeed("start", name, "--run-dir", str(self.run_dir.path))
        entry = self.run_dir.process(name)
        return f"127.0.0.1:{entry.ports['kafka']}", psutil.Process(entry.pid)


@contextmanager
def mariadb_instance(
    *,
    nodes: int = 3,
    failover: str = "manual",
    semi_sync: bool = True,
    gateways: tuple[str, ...] = ("gateway",),
) -> Iterator[Instance]:
    """A master and the other ``nodes`` its minions. Started, empty; all gone at the end. Raises
    RuntimeError, with the reason, where no MariaDB can be had."""
    if reason := local_mariadb.why_not():
        raise RuntimeError(reason)
    options = (
        "--innodb-buffer-pool-size=256M",
        "--innodb-log-file-size=256M",
        "--max-connections=300",
    )
    with bare_servers(nodes, options) as servers, tempfile.TemporaryDirectory() as directory:
        listed_nodes = [
            {"name": f"c1-{number}", "url": server.url} for number, server in enumerate(servers, 1)
        ]
        config, run_dir = Path(directory) / "config.yaml", Path(directory) / "run"
        cluster = {
            "name": "c1",
            "nodes": listed_nodes,
            "failover": failover,
            "semi_sync": semi_sync and nodes > 1,
        }
        listed = [
            {"name": name, "port": 0, "registry_port": 0, "group_initial_delay_s": 0}
            for name in gateways
        ]
        config.write_text(
            json.dumps(
                {
                    "datastore": {"shards": SHARDS, "clusters": [cluster]},
                    "workers": [{"port": 0}],
                    "gateways": listed,
                }
            )
        )
        _cellfeed("cluster", "init", "--config", str(config))
        _cellfeed("up", "--config", str(config), "--run-dir", str(run_dir), "--detach")
        try:
            running = RunDir(run_dir)
            url = f"http://127.0.0.1:{running.process('worker').ports['http']}"
            yield Instance(
                servers,
                config,
                url,
                f"127.0.0.1:{running.process(gateways[0]).ports['kafka']}",
                running,
                gateways,
            )
        finally:
            _cellfeed("down", "--run-dir", str(run_dir))


def _cellfeed(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cellfeed.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"cellfeed {' '.join(arguments)}: {done.stderr or done.stdout}")
