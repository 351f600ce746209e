"""Dividing partitions and groups over gateways, so that every gateway computes the same answer by
itself. Pure functions.

Rendezvous hashing (Thaler and Ravishankar, 1998) with a bound on each node's share: every partition
ranks all nodes by a hash of both, and goes to the first that is not full. A node that comes or goes
moves little else than its own share.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

SLOTS: Final = 50
"""Groups are coordinated in so many parts, as Kafka's ``__consumer_offsets`` has partitions."""


def slot_of(group_id: str) -> int:
    """The slot of a group: Java's ``String.hashCode``, as Kafka finds the partition of
    ``__consumer_offsets``, so its tools name the same number."""
    value = 0
    data = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (value * 31 + (data[at] << 8 | data[at + 1])) & 0xFFFF_FFFF
    signed = value - (1 << 32) if value & 0x8000_0000 else value
    return (abs(signed) if signed != -(1 << 31) else 0) % SLOTS


def spread(what: str, count: int, nodes: Collection[int]) -> tuple[int, ...]:
    """The node of each of ``count`` things, hashed by the name ``what``. A node gets at most
    ``count / nodes`` of them, rounded up. Empty without nodes."""
    if not nodes:
        return ()
    if len(nodes) == 1:
        return (next(iter(nodes)),) * count
    room = dict.fromkeys(nodes, -(-count // len(nodes)))
    placed: list[int] = []
    for number in range(count):
        node = max(
            (node for node, left in room.items() if left),
            key=lambda node: (_rank(what, number, node), node),
        )
        room[node] -= 1
        placed.append(node)
    return tuple(placed)


def _rank(what: str, number: int, node: int) -> bytes:
    return blake2b(f"{what}/{number}/{node}".encode(), digest_size=8).digest()
