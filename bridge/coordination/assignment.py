"""Dividing partitions over members: evenly, and moving as few as possible. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def balance(partitions: int, members: Sequence[str], current: Mapping[int, str]) -> dict[int, str]:
    """Partition to member. Every member gets ``partitions // len(members)`` or one more; a partition stays where it is wherever that allows it.

    Deterministic: the same arguments give the same answer on every machine. No members: an empty assignment.
    """
    if not members:
        return {}
    names = sorted(set(members))
    floor, larger = divmod(partitions, len(names))
    held: dict[str, list[int]] = {name: [] for name in names}
    for partition in range(partitions):
        if current.get(partition) in held:
            held[current[partition]].append(partition)
    # The larger shares go to those that hold most: what they keep does not move.
    by_load = sorted(names, key=lambda name: (-len(held[name]), name))
    quota = {name: floor + (place < larger) for place, name in enumerate(by_load)}
    result = {partition: name for name in names for partition in held[name][: quota[name]]}
    free = [partition for partition in range(partitions) if partition not in result]
    for name in names:
        room = quota[name] - min(len(held[name]), quota[name])
        result.update(dict.fromkeys(free[:room], name))
        free = free[room:]
    return dict(sorted(result.items()))
