"""A small disk of a test's own (tmpfs), to be filled."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BALLAST = "ballast"


class NoSmallDisk(Exception):
    """None can be mounted here; the message says why."""


@contextmanager
def small_disk(size_bytes: int) -> Iterator[Path]:
    """Its folder; gone at the end, with everything in it. Raises NoSmallDisk."""
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-small-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)],
        check=False,
        capture_output=True,
        timeout=10,
    )
    try:
        if mounted.returncode:
            raise NoSmallDisk(
                f"no small disk: mounting a tmpfs needs root: {mounted.stderr.decode().strip()}"
            )
        directory.chmod(0o755)
        yield directory
    finally:
        subprocess.run(
            ["umount", "--lazy", str(directory)], check=False, capture_output=True, timeout=10
        )
        directory.rmdir()


def fill(disk: Path) -> None:
    """Takes all the room that is left. Raises AssertionError when there is some still: the
    fault did not happen."""
    with (disk / BALLAST).open("ab", buffering=0) as filled:
        try:
            while True:
                filled.write(bytes(1 << 16))
        except OSError:
            pass
    assert shutil.disk_usage(disk).free < 1 << 20


def make_room(disk: Path) -> None:
    """Gives back the room that :func:`fill` took."""
    (disk / BALLAST).unlink()
