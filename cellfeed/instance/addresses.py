"""Where the processes of a running instance are reached."""

from __future__ import annotations

from pathlib import Path

from cellfeed.config.host_port import host_port
from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound


def worker_urls(run_dir: Path) -> list[str]:
    """The workers that the run directory names. Raises NotFound when there is none."""
    config = load_config(RunDir(run_dir).config) if RunDir(run_dir).config.exists() else Config()
    hosts = {worker.name: worker.host for worker in config.workers}
    entries = [entry for entry in RunDir(run_dir).processes() if entry.kind == "worker"]
    if not entries:
        # Without its own configuration `up` takes the built-in one, which is another datastore's.
        own = RunDir(run_dir).config
        config_option = f" --config {own}" if own.exists() else ""
        raise NotFound(
            f"no instance runs in {run_dir}; start one with: cellfeed up --run-dir"
            f" {run_dir}{config_option}"
        )
    return [
        f"http://{host_port(hosts.get(entry.name, '127.0.0.1'), entry.ports['http'])}"
        for entry in entries
    ]


def gateway_address(run_dir: Path) -> str:
    """``host:port`` of the first gateway. Raises NotFound."""
    directory = RunDir(run_dir)
    hosts = {gateway.name: gateway.host for gateway in load_config(directory.config).gateways}
    for entry in directory.processes():
        if entry.kind == "gateway":
            return host_port(hosts.get(entry.name, "127.0.0.1"), entry.ports["kafka"])
    raise NotFound(f"no gateway runs in {run_dir}")
