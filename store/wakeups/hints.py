"""The content of a wake-up to another machine: the new ends of logs, or nothing but "look".

It carries no cells. A cell may be shown once the store says that its id is below the watermark,
under the present leader epoch, and not erased. A follower can learn that from the store alone, and
the read that asks for it brings the cell along. A carried cell would save nothing, or be believed
without proof.

It carries heads for one use: a follower that has already read so far passes the hint over, and so
looks once for commits that several workers report. A head is never taken for the store's. One that
is forged or old costs a look too many, or is a lost wake-up, which costs a polling interval.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from cellfeed.store.cells.put_result import Outcome, PutResult

Beyond = Callable[[Mapping[int, int]], object]
"""Takes the new ends of logs, by shard."""

HEADS_MAX: Final = 256
"""Heads in one hint, some 2 KiB; one of more shards says "look"."""

SUBJECTS_MAX: Final = 64
"""Subjects other than the logs in one hint; their followers look every second without one."""


class Hint:
    """A wake-up that waits to be sent, and takes in others meanwhile: bounded, however slow its
    reader is. ``heads``: by shard the next added_id; ``looks``: whether something changed that
    heads do not say; ``subjects``: datagrams of
    :func:`cellfeed.store.wakeups.datagrams.poke_about`."""

    __slots__ = ("heads", "looks", "subjects")

    def __init__(self) -> None:
        self.heads: dict[int, int] = {}
        self.looks = False
        self.subjects: set[bytes] = set()

    def __bool__(self) -> bool:
        return self.looks or bool(self.heads) or bool(self.subjects)

    def add(
        self,
        heads: Mapping[int, int],
        *,
        looks: bool = False,
        subjects: Collection[bytes] = (),
    ) -> None:
        """Takes another one in."""
        self.looks |= looks
        if not self.looks:
            for shard, next_added_id in heads.items():
                if self.heads.get(shard, 0) < next_added_id:
                    self.heads[shard] = next_added_id
            self.looks = len(self.heads) > HEADS_MAX
        if self.looks:
            self.heads.clear()
        for subject in subjects:
            # Other datagrams are between two processes of one machine, by their addresses.
            if subject.startswith(b"?") and len(self.subjects) < SUBJECTS_MAX:
                self.subjects.add(subject)

    def merge(self, other: Hint) -> None:
        self.add(other.heads, looks=other.looks, subjects=other.subjects)


def ends_of(results: Iterable[PutResult]) -> dict[int, int]:
    """The ends of the logs in which these puts wrote, by shard."""
    ends: dict[int, int] = {}
    for result in results:
        shard, added_id = result.shard, result.added_id
        if result.outcome is Outcome.STORED and shard is not None and added_id is not None:
            ends[shard] = max(ends.get(shard, 0), added_id + 1)
    return ends
