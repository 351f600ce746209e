"""Which side of a ``fork()`` this process is on.

A child inherits copies of everything, and threads of none: sockets that its parent still reads,
database connections that may be used by one process only, locks that nobody will release. So the
holder of such things remembers :data:`generation`, and compares it before each use.
"""

from __future__ import annotations

import os

generation = 0
"""Another number in every child, and in every child of a child. Read it as ``forks.generation``: a
comparison costs less than asking for the pid."""


def _in_child() -> None:
    global generation
    generation += 1


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)
