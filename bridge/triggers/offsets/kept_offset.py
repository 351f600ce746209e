"""One shard's kept offset: how far its owner has come, in the datastore, while the coordination is
elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import OutcomeUnknown, StaleWriter, Unavailable

NONE_SAVED: Final = -1
"""Stands for a shard without an offset."""

_DOUBTFUL_SAVES_MAX: Final = 16
"""Saves with a lost answer that are remembered for a shard. There is one for each time that the
connection breaks during a save before one succeeds; beyond this many, cells may run again, none is
left out."""


class Kept(msgspec.Struct, frozen=True):
    """``saved``: the offsets that the coordination may have, as far as the owner knows.
    ``location``: how far it has come without having saved that."""

    token: int
    saved: list[int]
    location: int | None = None


class KeptOffset:
    """One owner's stay on one shard. Used by one thread at a time."""

    def __init__(self, state: StateTable, key: str, kept: Kept, version: int, start: int) -> None:
        self._state = state
        self.key = key
        self.kept = kept
        self.version = version
        self.start = start
        """Where the work continues."""

    def check(self) -> None:
        """Raises StaleWriter when another worker has begun on the shard."""
        entry = self._state.get(self.key)
        if entry is None or entry.version != self.version:
            raise self._overtaken()

    def keep(
        self,
        location: int,
        entries: Mapping[str, bytes | None] | None = None,
        *,
        failed: Unavailable | None = None,
    ) -> None:
        """Keeps how far the work has come, and writes ``entries`` in the same commit. ``failed``:
        why the same was not saved. Raises StaleWriter."""
        saved = self.kept.saved
        if isinstance(failed, OutcomeUnknown) and location not in saved:
            saved = [*saved, location][-_DOUBTFUL_SAVES_MAX:]
        self._write(Kept(self.kept.token, saved, location), entries or {})

    def saved(self, location: int) -> None:
        """Notes that the coordination has the offset."""
        settled = Kept(self.kept.token, [location])
        if self.kept.location is None:
            self.kept = settled  # nothing of it is needed in the store until something is kept
        else:
            self._write(settled, {})

    def _write(self, kept: Kept, entries: Mapping[str, bytes | None]) -> None:
        version = self._state.commit(
            {**entries, self.key: msgspec.json.encode(kept)}, expect={self.key: self.version}
        )
        if version is None:
            raise self._overtaken()
        self.kept, self.version = kept, version

    def _overtaken(self) -> StaleWriter:
        return StaleWriter(f"another worker has begun on {self.key.partition('/')[2]}")


def decode_kept(value: bytes) -> Kept:
    """The value of a state entry."""
    return msgspec.json.decode(value, type=Kept)
