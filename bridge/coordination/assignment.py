"""Dividing partitions over members, evenly and moving as few as possible; and the one entry that
an assignment is kept in.

**One entry for any number of partitions.** It names each partition once, behind its member: 65,536
partitions are at most 393 kB, beside one name for each member. So an entry of 1 MiB and a znode of
1 MiB hold it. It is written by one compare-and-set: no reader sees half of an assignment, and no
writer dies between two halves.

**The older form** named the member again for each partition, and had no room for some 40,000 of
them. It is read as ever, and the next change of the assignment replaces it. A process of the older
version cannot read the new form, and ends. Its claims stay its own until its lease has run out;
then the others take them. So no partition has two owners: claims see to that (C4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

RETURN_S: Final = 3.0
"""For how long a leader that has just connected to the coordination leaves absent members their
partitions: no longer than a lease, besides the time between two renewals. When a coordinator was
away all members return, one after the other: up to 1.4 s pass between two tries to connect
(``zookeeper/connection.py``); then a member connects, notices at its next renewal that its session
has ended, and joins again. Without that time the first one back would take everything, and give
half of it back a moment later; a partition that changes hands stands still meanwhile, twice."""


def balance(
    partitions: int,
    members: Sequence[str],
    current: Mapping[int, str],
    awaited: Collection[str] = (),
) -> dict[int, str]:
    """Partition to member. Every member gets ``partitions // len(members)`` or one more; a
    partition stays where it is wherever that allows it.

    ``awaited``: absent members that keep their partitions; the rest is divided over the others.

    Deterministic: the same arguments give the same answer on every machine. No members: only kept
    partitions are assigned.
    """
    names = sorted(set(members))
    kept = {
        partition: member
        for partition, member in current.items()
        if partition < partitions and member in awaited and member not in names
    }
    if not names:
        return kept
    divided = [partition for partition in range(partitions) if partition not in kept]
    floor, larger = divmod(len(divided), len(names))
    owned: dict[str, list[int]] = {name: [] for name in names}
    for partition in divided:
        if current.get(partition) in owned:
            owned[current[partition]].append(partition)
    # The larger shares go to those that hold most: partitions that they keep do not move.
    by_load = sorted(names, key=lambda name: (-len(owned[name]), name))
    quota = {name: floor + (place < larger) for place, name in enumerate(by_load)}
    result = kept | {partition: name for name in names for partition in owned[name][: quota[name]]}
    free = [partition for partition in divided if partition not in result]
    for name in names:
        room = quota[name] - min(len(owned[name]), quota[name])
        result.update(dict.fromkeys(free[:room], name))
        free = free[room:]
    return dict(sorted(result.items()))


def is_awaited(absent_s: float, in_touch_s: float, lease_s: float, renewed_every_s: float) -> bool:
    """Whether an absent member keeps its partitions: the leader has seen it absent for ``absent_s``
    seconds. ``in_touch_s``: for how long the leader had been in touch with the coordination at its
    first sight of that, in one session and without a failure; ``renewed_every_s``: how often
    sessions of ``lease_s`` are renewed. A leader that was in touch for longer than a lease has seen
    that the member was not."""
    return max(absent_s, in_touch_s) < min(RETURN_S, lease_s) + renewed_every_s


def encode_assignment(assignment: Mapping[int, str]) -> bytes:
    """See the module: ``{member: [partition]}``."""
    shares: dict[str, list[int]] = {}
    for partition, member in sorted(assignment.items()):
        shares.setdefault(member, []).append(partition)
    return msgspec.json.encode(shares)


class ReadAssignments:
    """Assignments as they were last read, by group: one that has not changed is not decoded again.
    Safe to use from several threads."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[bytes, Mapping[int, str]]] = {}

    def decoded(self, group: str, value: bytes) -> Mapping[int, str]:
        """Partition to member; the same object as long as the value is the same."""
        known = self._last.get(group)
        if known is None or known[0] != value:
            known = self._last[group] = value, _decoded(value)
        return known[1]


def _decoded(value: bytes) -> dict[int, str]:
    if not value:
        return {}
    shares = msgspec.json.decode(value, type=dict[str, list[int] | str])
    found: dict[int, str] = {}
    for name, share in shares.items():
        if isinstance(share, str):  # the older form
            found[int(name)] = share
        else:
            found |= dict.fromkeys(share, name)
    return found
