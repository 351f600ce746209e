"""The JSON of wake-ups, between a worker and a follower on another machine."""

from __future__ import annotations

import msgspec

from cellfeed.store.wakeups.hints import Hint


class WakeupsMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request to be woken. ``worker``: the identity of the worker that the follower means, as its
    address in the state table says."""

    worker: str


class WakeupLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of the answer; pass over lines and fields that you do not know. The first has
    ``worker``, the identity of the one that answers. ``heads``: pairs of a shard and its new end.
    ``looks``: something else changed. ``subjects``: of other pokes, in hexadecimal. A line without
    any of them is a heartbeat."""

    worker: str = ""
    heads: list[tuple[int, int]] = []
    looks: bool = False
    subjects: list[str] = []

    def hint(self) -> Hint:
        """Raises ValueError for subjects that are none."""
        hint = Hint()
        subjects = [bytes.fromhex(subject) for subject in self.subjects]
        hint.add(dict(self.heads), looks=self.looks, subjects=subjects)
        return hint


def line_of(hint: Hint) -> WakeupLine:
    """As it is sent."""
    return WakeupLine(
        heads=list(hint.heads.items()),
        looks=hint.looks,
        subjects=[subject.hex() for subject in sorted(hint.subjects)],
    )
