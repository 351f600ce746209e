"""Where the processes of a running instance are reached."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cellfeed.config.host_port import host_port
from cellfeed.config.model import Config, WorkerConfig
from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound
from cellfeed.store.security.loopback import is_loopback

_REACHED: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (what it stands for)
"""Where this machine reaches a listener at every address."""


def worker_urls(run_dir: Path) -> list[str]:
    """The workers that the run directory names: those on loopback that ask for no credentials,
    where there are any. Raises NotFound when there is no worker."""
    config = load_config(RunDir(run_dir).config) if RunDir(run_dir).config.exists() else Config()
    known = {worker.name: worker for worker in config.workers}
    entries = [entry for entry in RunDir(run_dir).processes() if entry.kind == "worker"]
    if not entries:
        # Without its own configuration `up` takes the built-in one, which is another datastore's.
        own = RunDir(run_dir).config
        config_option = f" --config {own}" if own.exists() else ""
        raise NotFound(
            f"no instance runs in {run_dir}; start one with: cellfeed up --run-dir"
            f" {run_dir}{config_option}"
        )
    found: dict[str, bool] = {}
    for entry in entries:
        worker = known.get(entry.name, WorkerConfig())
        address = host_port(_REACHED.get(worker.host, worker.host), entry.ports["http"])
        is_open = is_loopback(worker.host) and worker.tls is None and not worker.authentication
        found[f"{'http' if worker.tls is None else 'https'}://{address}"] = is_open
    return [url for url, is_open in found.items() if is_open] or list(found)


def gateway_address(run_dir: Path) -> str:
    """``host:port`` of the first gateway. Raises NotFound."""
    directory = RunDir(run_dir)
    hosts = {gateway.name: gateway.host for gateway in load_config(directory.config).gateways}
    for entry in directory.processes():
        if entry.kind == "gateway":
            return host_port(hosts.get(entry.name, "127.0.0.1"), entry.ports["kafka"])
    raise NotFound(f"no gateway runs in {run_dir}")
