"""The file systems below an instance: are any of them full?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import psutil

from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir

_GIB: Final = 1 << 30

FULL_PART: Final = 0.01
FULL_BYTES: Final = 1 * _GIB
"""A disk with less than both of these left is full: MariaDB and SQLite need room for their logs
before they can even make some."""


class Room(msgspec.Struct, frozen=True):
    """The file system of a folder, in bytes. ``subject``: the folder's use. ``free``: for this
    account."""

    subject: str
    folder: str
    free: int
    total: int

    @property
    def is_full(self) -> bool:
        return self.free < min(FULL_BYTES, self.total * FULL_PART)

    def words(self) -> str:
        part = self.free / max(1, self.total)
        return f"{self.free / _GIB:.1f} of {self.total / _GIB:.1f} GiB are left ({part:.0%})"


def folders_written(directory: RunDir, config: Config) -> Mapping[str, Path]:
    """The folders of this host that the instance writes, by their use."""
    folders = {"run directory": directory.path}
    if not config.datastore.clusters:
        folders["store"] = directory.inside(config.datastore.directory)
    for server in config.servers:
        folders[server.name] = directory.inside(server.directory or f"servers/{server.name}")
    for loader in config.warehouses:
        folders[loader.name] = directory.inside(loader.directory)
    for gateway in config.gateways:
        if gateway.blocks.disk_bytes:
            folders[f"blocks of {gateway.name}"] = directory.inside(gateway.blocks.directory)
    for backups in config.backups:
        if "://" not in backups.directory:
            folders[backups.name] = directory.inside(backups.directory)
    return folders


def by_device(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Of each file system the first folder that is there."""
    seen: set[int] = set()
    found = {}
    for subject, folder in folders.items():
        try:
            device = folder.stat().st_dev
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            found[subject] = folder
    return found


def rooms(directory: RunDir, config: Config) -> list[Room]:
    """The room that is left on each file system."""
    found = []
    for subject, folder in by_device(folders_written(directory, config)).items():
        usage = psutil.disk_usage(str(folder))
        found.append(Room(subject, str(folder), usage.free, usage.total))
    return found
