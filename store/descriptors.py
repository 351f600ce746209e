"""How many files and connections a process may open."""

from __future__ import annotations

import selectors
from typing import Final

_UNLIMITED: Final = 1 << 20
"""In place of no limit: more than any limit of this product."""


def descriptors_max() -> int:
    """The limit of descriptors of this process (``ulimit -n``)."""
    try:
        import resource  # not on every system
    except ImportError:
        return _UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_descriptors_max() -> None:
    """Raises the limit to the system's own (``ulimit -Hn``): a service of thousands of connections
    must not end at the 1,024 of a shell. Where that is refused the limit stays."""
    try:
        import resource  # not on every system
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Waits until something can be read. Unlike ``select`` also of a process with more than 1,024
    descriptors."""
    kind = getattr(selectors, "PollSelector", selectors.SelectSelector)
    with kind() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))
