"""The binary logs of the nodes: a tree of transactions, and the contents of each log.

A log is a number. Two nodes have the same log exactly when they have the same number, so states
compare and hash as small integers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Transaction = tuple[Any, ...]
"""``("raise", epoch, master, minions, semi_sync, revision)``, ``("join", node, semi_sync)``,
``("put", cell)``, ``("state", commit)``, ``("copy",)``, ``("accept",)``, ``("drop",)``,
``("erase",)``."""


class Role(NamedTuple):
    """The master, as a state entry in the log names it."""

    epoch: int
    master: int
    minions: tuple[int, ...]
    semi_sync: bool

    @property
    def age(self) -> tuple[int, int]:
        """Processes believe the highest: minions only grow within an epoch."""
        return self.epoch, len(self.minions)


class View(NamedTuple):
    """The contents of a log. ``path``: the logs that it grew from, itself last. ``masters``: all
    that ever were one. ``raises``: each epoch with the length of the log before its promotion.
    ``lease``: version and commit of the one state entry that processes write."""

    path: tuple[int, ...]
    last: Transaction
    role: Role
    masters: frozenset[int]
    raises: tuple[tuple[int, int], ...]
    revision: int
    lease: tuple[int, int]
    cells: tuple[int, ...]
    copy: bool
    accepted: bool
    erased: bool

    @property
    def length(self) -> int:
        return len(self.path)


_EMPTY = View((), (), Role(0, -1, (), False), frozenset(), (), 0, (0, 0), (), False, False, False)


class Logs:
    """All logs of one search."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self._grown: dict[tuple[int, Transaction], int] = {}

    def append(self, log: int, transaction: Transaction) -> int:
        """The log with one more transaction; ``log`` is -1 for an empty one."""
        found = self._grown.get((log, transaction))
        if found is None:
            found = self._grown[log, transaction] = len(self.views)
            self.views.append(_with(self.views[log] if log >= 0 else _EMPTY, found, transaction))
        return found

    def is_prefix(self, log: int, of: int) -> bool:
        path = self.views[of].path
        length = len(self.views[log].path)
        return length <= len(path) and path[length - 1] == log


def _with(view: View, log: int, transaction: Transaction) -> View:
    kind = transaction[0]
    grown = view._replace(path=(*view.path, log), last=transaction)
    if kind == "raise":
        _, epoch, master, minions, semi_sync, revision = transaction
        role = Role(epoch, master, minions, semi_sync)
        masters = view.masters | {master}
        return grown._replace(
            role=role,
            masters=masters,
            raises=(*view.raises, (epoch, len(view.path))),
            revision=revision,
        )
    if kind == "join":
        minions = tuple(sorted({*view.role.minions, transaction[1]}))
        return grown._replace(
            role=view.role._replace(minions=minions, semi_sync=transaction[2]),
            revision=view.revision + 1,
        )
    if kind == "put":
        return grown._replace(cells=(*view.cells, transaction[1]))
    if kind == "state":
        return grown._replace(revision=view.revision + 1, lease=(view.revision + 1, transaction[1]))
    if kind == "copy":
        return grown._replace(copy=True, accepted=False)
    if kind == "accept":
        return grown._replace(accepted=True)
    if kind == "drop":
        return grown._replace(copy=False, accepted=False)
    return grown._replace(erased=True)
