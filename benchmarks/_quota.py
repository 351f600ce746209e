"""A limit of the processor time of single processes, by Linux' control groups (version 1): each
gets the same part of a core on a busy machine and on a quiet one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup/cpu")
_PERIOD_US: Final = 20_000


@contextmanager
def quota(pid: int, part: float) -> Iterator[None]:
    """The process has at most this part of a core until the end of the block, all threads together.
    It must have ended when the block does. Raises OSError where no control groups can be made."""
    group = _GROUPS / f"cellfeed-benchmark-{pid}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(part * _PERIOD_US)))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with suppress(OSError):  # the process is still there: the group stays, with its limit
            group.rmdir()


def can_limit() -> bool:
    """Whether this process may make control groups."""
    probe = _GROUPS / "cellfeed-benchmark-probe"
    try:
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError:
        return False
    return True
