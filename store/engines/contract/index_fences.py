"""The fences of an index's writers: a number for each shard of the log, on every storage that holds
entries.

Entries may be merged in any order and any number of times (X1). So a late writer with an old view
does no harm, even one that another writer has overtaken. **Removing** entries is different: once an
entry was removed because cells were trimmed or erased, an earlier view must not be merged any more.
So

    a writer    reads the number of its shard, then the cells, and writes under that number: the
                transaction checks that it still holds, and keeps it from
                being raised until it has committed (X6)
    a remover   has the cells go, raises the number on every storage, then looks at entries and
                removes them

A transaction under the old number either commits before the raise, and the remover sees its
entries, or is refused. A transaction under the new number read its cells after the raise, when
those were gone. It makes no difference whether the writer still has its shard, was paused, or sent
a packet that reaches the server late. When shards change hands, nothing needs to be done.

**A new version of an index** has no entries yet. A remover need not know of it, provided that the
version's writers read no cell that had gone before they began. So its writers first raise the
numbers of all shards: they read from no node that is behind that (X3).

Numbers only need to differ. Two raises at once take different numbers; the higher stays, and the
other writer is refused and raises again.

Crash points: a raise that died between two storages leaves different numbers, or, on a new storage,
none. Writers are refused there until somebody reads the numbers (:meth:`Fences.read`) and brings
all to the highest. That number was written after the cells had gone, so it is as good as the raise
itself. A promotion that falls back behind a raise takes away only one that was reported to nobody,
as with any commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import randint
from typing import Final, Protocol

_STEP_MAX: Final = 1 << 20
"""A raise goes up by a random number to this: two at once hardly take the same. 63 bits are enough
for eight million million raises of a shard."""


class FencedStorage(Protocol):
    """A node, or the master of a cluster."""

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]:
        """As they are there now; a shard that has none is left out."""
        ...

    def set_fences(self, numbers: Mapping[int, int]) -> None:
        """Returns when the numbers, or higher ones, are on disk and every transaction under
        lower ones has ended. X2."""
        ...


class Fences:
    """See the module. Any number of threads."""

    def __init__(self, storages: Sequence[FencedStorage]) -> None:
        self._storages = storages

    def read(self, shards: Sequence[int]) -> dict[int, int]:
        """The number of each shard, the same everywhere. Raises Unavailable when a storage does not
        answer."""
        found = [storage.fence_numbers(shards) for storage in self._storages]
        highest = {shard: max(1, *(each.get(shard, 0) for each in found)) for shard in shards}
        for storage, here in zip(self._storages, found, strict=True):
            if lower := {
                shard: number for shard, number in highest.items() if here.get(shard) != number
            }:
                storage.set_fences(lower)
        return highest

    def raise_(self, shards: Sequence[int]) -> dict[int, int]:
        """A new number for each shard, once the cells are gone; the remover's writes carry it.
        Raises Unavailable: then it is repeated."""
        found = [storage.fence_numbers(shards) for storage in self._storages]
        numbers = {
            shard: max(each.get(shard, 0) for each in found) + randint(1, _STEP_MAX)
            for shard in shards
        }
        for storage in self._storages:
            storage.set_fences(numbers)
        return numbers
