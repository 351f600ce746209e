"""The leader epoch that a restored log begins with.

Two restores of one backup know nothing of each other, and both count from the same last epoch. If
they took the same one, OffsetForLeaderEpoch would report a whole log to a Kafka client that changed
from one to the other. But the ids behind the backup are other cells there. So the epoch is
**drawn**, as state revisions are: a client of the one asks the other for an epoch that the other
never had. The answer is where the backup ended, or that there is no such epoch.

Kafka's leader epochs have 31 bits. So the draw is small enough for at least 511 restores of
restores. It is large enough that two restores with a hundred promotions each share an epoch once in
20,000 times.
"""

from __future__ import annotations

import secrets
from typing import Final

from cellfeed.store.errors import ProtectData

EPOCHS_LEFT_OUT: Final = 1_000
"""Leader epochs that a restore leaves out at least: more promotions than there can have been
between a backup and the loss of its datastore."""

EPOCHS_DRAWN: Final = 1 << 22
"""From how many leader epochs behind those a restore draws its own."""

EPOCH_MAX: Final = (1 << 31) - 1 - (1 << 20)
"""The highest leader epoch that a restore may begin with. A million promotions can follow it below
Kafka's highest (2^31 - 1), which MariaDB servers under restore have."""


def epoch_of_next_history(last: int) -> int:
    """The first leader epoch of a history that begins where another one, whose promotions may be
    lost, was at ``last`` or beyond. Random. Raises ProtectData where 31 bits have no room for it.
    """
    lowest = last + EPOCHS_LEFT_OUT
    if lowest + EPOCHS_DRAWN > EPOCH_MAX + 1:
        raise ProtectData(
            f"nothing restored: leader epoch {last} was seen, and Kafka's have 31 bits: a restore"
            f" begins with at most {EPOCH_MAX}. Put the cells into a datastore of another name"
            " (cellfeed scan, cellfeed put)"
        )
    return lowest + secrets.randbelow(EPOCHS_DRAWN)
