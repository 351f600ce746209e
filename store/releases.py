"""Which releases may work on one storage at the same time.

Processes speak to each other through entries of the state table, datagrams, and the coordination:
leases, assignments, reports, offsets, wake-ups, heads. The version of these messages is a number.
A release knows a range of them, and the storage has the range of its fleet:

    fleet/messages      {"oldest", "newest", "release"}

A process whose range does not meet it is refused before it serves or writes anything else. A newer
release widens the range upwards, and raises the lower end once it no longer knows the oldest
messages. Releases before 0.1.0 wrote no such entry; they speak version 1.

The tables have a version of their own, which the engine compares when it opens a storage.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import ProtectData, Unavailable

KEY: Final = "fleet/messages"
_TRIES_MAX: Final = 20


class Spoken(msgspec.Struct, frozen=True):
    """The versions of messages that a release knows. ``release``: its name."""

    oldest: int
    newest: int
    release: str

    def meets(self, other: Spoken) -> bool:
        """Whether both know a version."""
        return self.oldest <= other.newest and other.oldest <= self.newest

    def joined(self, other: Spoken) -> Spoken:
        """The range of a fleet of both: old messages end with the first release that does not know
        them, and new ones begin with the first that does."""
        newer = other if other.newest > self.newest else self
        return Spoken(max(self.oldest, other.oldest), newer.newest, newer.release)


OURS: Final = Spoken(1, 1, "0.1.0")
"""Raise ``newest`` with a message that the release before does not read; raise ``oldest`` one
release later."""


def join_fleet(state: StateTable, ours: Spoken = OURS) -> None:
    """Notes the messages that this process speaks. Raises ProtectData, with nothing written, where
    the fleet speaks none of them; Unavailable."""
    for _ in range(_TRIES_MAX):
        entry = state.get(KEY)
        if entry is None:
            wanted = ours
        else:
            found = msgspec.json.decode(entry.value, type=Spoken)
            if not found.meets(ours):
                raise ProtectData(
                    f"release {ours.release} cannot work beside the processes of this storage: it"
                    f" speaks versions {ours.oldest} to {ours.newest} of their messages, and they"
                    f" {found.oldest} to {found.newest} (release {found.release}). End them, and"
                    " upgrade through a release that speaks both"
                )
            wanted = found.joined(ours)
            if wanted == found:
                return
        expect = {KEY: None if entry is None else entry.version}
        if state.commit({KEY: msgspec.json.encode(wanted)}, expect) is not None:
            return
        # Another process joins at the same moment: the next look sees its range.
    raise Unavailable("the fleet's release could not be noted: others are faster")
