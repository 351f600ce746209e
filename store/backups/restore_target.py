"""The storage that a restore writes to, as the restore sees it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.restore_plan import Plan
from cellfeed.store.cells.cell import StoredCell


class LogReader(Protocol):
    """Reads a restored log back."""

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]: ...


class Target(Protocol):
    """Storage that is restored into, by one process at a time."""

    def begun_epoch(self, backup: Backup) -> int | None:
        """The leader epoch of an unfinished restore of this backup, which must keep it; None where
        a restore begins. Raises Unavailable."""
        ...

    def begun_history(self, backup: Backup) -> str:
        """The id of the history that an unfinished restore of this backup has begun; empty where
        none was. Raises Unavailable."""
        ...

    def begin(self, plan: Plan) -> None:
        """Makes sure that it is empty, or half-restored from the same backup, and that nobody opens
        it; then writes the dictionaries. Raises ProtectData."""
        ...

    def loaded(self, shard: int) -> int:
        """The id that is to be loaded next; 0 when none was."""
        ...

    def load(self, shard: int, cells: Sequence[StoredCell]) -> None:
        """The next cells of a log, in order."""
        ...

    def complete(self, plan: Plan) -> None:
        """Counters, epochs, columns, notes, and the state."""
        ...

    def reader(self) -> AbstractContextManager[LogReader]:
        """Reads the storage as it is now."""
        ...

    def open(self) -> None:
        """From now on it is a datastore like any other."""
        ...

    def is_open(self, shard: int) -> bool:
        """Whether the shard was opened by an earlier run, which was killed before it had opened
        all. It was whole and read back then, and has been used since: puts, trims and erasures are
        as they should be."""
        ...

    def not_erased(self, plan: Plan) -> list[bytes]:
        """Row keys that the plan erases, and that the storage still has, for their shard was opened
        before a backup recorded it."""
        ...
