"""The file systems below an instance: do synced bytes survive a power cut, and is room left?"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import psutil

from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.status.disks import by_device, folders_written

_GIB: Final = 1 << 30

ROOM_MIN: Final = 0.05
"""Of a file system: below this part it is full within hours, and a put fails when it is."""

ROOM_LOW: Final = 0.15
"""Below this part it is time to grow it."""

ROOM_ENOUGH_BYTES: Final = 100 * _GIB
"""With so many bytes left no part is too small."""

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})

_SHARED: Final = frozenset({"9p", "cifs", "fuse.sshfs", "nfs", "nfs4", "smb3", "smbfs", "virtiofs"})
"""File systems of another host. SQLite's write-ahead log needs memory that all its processes share,
and locks that such systems give only sometimes."""

_UNSAFE_OPTIONS: Final = frozenset({"nobarrier", "barrier=0", "eatmydata"})

SYNCS: Final = 9
"""Syncs that are measured: enough for a median that one slow one does not move."""

SYNC_FAST_S: Final = 20e-6
"""A sync that is faster reached no disk: the fastest NVMe drives with protected caches need 20 to
30 µs."""

SYNC_SLOW_S: Final = 0.05
"""A put waits for one sync at least; from here on every put is slow."""


class Mount(NamedTuple):
    """Of one file system: its type, its options, its place."""

    kind: str
    options: frozenset[str]
    at: str


def examine_disks(instance: Instance) -> Iterator[Finding]:
    """Looks at the file system of each folder that the instance writes, once each."""
    mounts = present_mounts()
    folders = by_device(folders_written(instance.directory, instance.config))
    for subject, folder in folders.items():
        name = f"{subject} ({folder})"
        mount = mount_of(folder, mounts)
        yield kept(name, mount, embedded=not instance.config.datastore.clusters)
        usage = psutil.disk_usage(str(folder))
        yield room(name, usage.free, usage.total)
        files = os.statvfs(folder)
        if files.f_files and files.f_favail < files.f_files * ROOM_MIN:
            yield Finding(
                "disk",
                name,
                Level.PROBLEM,
                f"{files.f_favail} of {files.f_files} inodes are left",
                "remove small files there, or make the file system with more inodes",
            )
        if mount.kind not in _IN_MEMORY:
            yield sync_time(name, measured_sync_s(folder))


def present_mounts() -> list[Mount]:
    """The file systems of this host."""
    return [
        Mount(each.fstype, frozenset(each.opts.split(",")), each.mountpoint)
        for each in psutil.disk_partitions(all=True)
    ]


def mount_of(folder: Path, mounts: list[Mount]) -> Mount:
    """The file system of ``folder``: of the mounts above it the nearest, and the last one there."""
    real = folder.resolve()
    above = [each for each in mounts if real.is_relative_to(each.at)]
    return max(
        enumerate(above),
        key=lambda each: (len(Path(each[1].at).parts), each[0]),
        default=(0, Mount("unknown", frozenset(), "/")),
    )[1]


def kept(name: str, mount: Mount, *, embedded: bool) -> Finding:
    """Whether synced bytes are there after a power cut."""
    if mount.kind in _IN_MEMORY:
        return Finding(
            "disk",
            name,
            Level.PROBLEM,
            f"{mount.at} is in memory ({mount.kind}): acknowledged cells are gone when the host"
            " restarts",
            "put the instance on a disk",
        )
    if embedded and mount.kind in _SHARED:
        return Finding(
            "disk",
            name,
            Level.PROBLEM,
            f"{mount.at} is on another host ({mount.kind}): SQLite's locks and shared memory do"
            " not hold there",
            "put an embedded store on a disk of this host, or use clusters of MariaDB servers",
        )
    if unsafe := sorted(mount.options & _UNSAFE_OPTIONS):
        return Finding(
            "disk",
            name,
            Level.PROBLEM,
            f"{mount.at} is mounted with {', '.join(unsafe)}: a power cut loses synced bytes",
            f"mount it without {', '.join(unsafe)}",
        )
    return Finding("disk", name, Level.WELL, f"{mount.kind} at {mount.at}")


def room(name: str, free: int, total: int) -> Finding:
    """Bytes that are left, and all."""
    part = free / max(1, total)
    found = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are left ({part:.0%})"
    if free >= ROOM_ENOUGH_BYTES or part >= ROOM_LOW:
        return Finding("disk", name, Level.WELL, found)
    remedy = "grow the file system, trim logs, or move folders to another one"
    return Finding("disk", name, Level.PROBLEM if part < ROOM_MIN else Level.ADVICE, found, remedy)


def measured_sync_s(folder: Path) -> float:
    """The median time of a sync of a few bytes there, in seconds. Raises OSError."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        for _ in range(SYNCS):
            file.write(b"0" * 64)
            file.flush()
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
    return median(times)


def sync_time(name: str, sync_s: float) -> Finding:
    """A disk whose sync takes ``sync_s`` seconds."""
    found = f"a sync takes {sync_s * 1000:.2f} ms"
    if sync_s < SYNC_FAST_S:
        return Finding(
            "disk",
            name,
            Level.ADVICE,
            f"{found}: it reaches no disk, so a power cut may lose acknowledged cells",
            "check that nothing swallows syncs (libeatmydata, a virtual disk with cache=unsafe)",
        )
    if sync_s > SYNC_SLOW_S:
        return Finding(
            "disk",
            name,
            Level.ADVICE,
            f"{found}, and every put waits for one",
            "use a faster disk, or keep other writers off it",
        )
    return Finding("disk", name, Level.WELL, found)
