"""How much an instance keeps on disk, for ``up`` and ``down``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir

_WRITE_AHEAD: Final = "-wal"
"""How the name of SQLite's write-ahead log ends."""


def sizes(directory: RunDir, config: Config) -> dict[str, int]:
    """Bytes by purpose; missing places are left out. Cells of clusters are on their servers: those
    that are processes of the instance count here; ``status`` asks the others."""
    found = {}
    if not config.datastore.clusters:
        store = directory.inside(config.datastore.directory) / config.datastore.name
        found["store"] = _bytes_below(store)
        found["of it write-ahead logs"] = _bytes_below(store, _WRITE_AHEAD)
    found["servers"] = sum(
        _bytes_below(directory.inside(server.directory or f"servers/{server.name}"))
        for server in config.servers
    )
    found["warehouses"] = sum(
        _bytes_below(directory.inside(each.directory)) for each in config.warehouses
    )
    found["lakes"] = sum(_bytes_below(directory.inside(each.storage)) for each in config.lakes)
    found["kept blocks"] = sum(
        _bytes_below(directory.inside(each.blocks.directory)) for each in config.gateways
    )
    found["logs"] = _bytes_below(directory.path / "logs")
    return {name: size for name, size in found.items() if size or name == "store"}


def _bytes_below(folder: Path, ending: str = "") -> int:
    """Bytes of the files; those that go meanwhile, or are another account's, do not count."""
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that it cannot read
        for name in names:
            if name.endswith(ending):
                with suppress(OSError):
                    total += os.lstat(Path(parent, name)).st_size
    return total
