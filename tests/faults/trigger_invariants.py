"""The invariants of a trigger group as functions of outside observations: the calls of its
function, and the content of its coordination from time to time.

Pure, as those in ``invariants.py``; ``tests/unit/harness/test_trigger_invariants.py`` shows for
each that it finds its own violation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from tests.faults.invariants import Violations

Place = tuple[int, int]
"""A cell: shard and added_id."""


class Call(NamedTuple):
    """A call of the function by one process. Times are the machine's monotonic clock; ``ended_ns``
    is None for one that did not end well."""

    shard: int
    added_id: int
    pid: int
    begun_ns: int
    ended_ns: int | None

    @property
    def place(self) -> Place:
        return self.shard, self.added_id


class Holder(NamedTuple):
    """Whose a shard's claim is. ``birth`` and ``version`` are its generation: the group's birth,
    and the version of the claim."""

    birth: int
    version: int
    member: str


class Sample(NamedTuple):
    """The state of the coordination at a moment between ``begun_ns`` and ``at_ns``. ``members``:
    the epochs of each name."""

    begun_ns: int
    at_ns: int
    offsets: Mapping[int, int]
    holders: Mapping[int, Holder]
    members: Mapping[str, Collection[int]]


def check_offsets_behind_work(
    samples: Iterable[Sample],
    cells: Collection[Place],
    calls: Iterable[Call],
    parked: Collection[Place],
) -> Violations:
    """I14: whenever an offset was seen, each of the trigger's cells below it had been run, or is
    parked."""
    ended: dict[Place, int] = {}
    for call in calls:
        if call.ended_ns is not None:
            ended[call.place] = min(call.ended_ns, ended.get(call.place, call.ended_ns))
    by_shard: dict[int, list[int]] = {}
    for shard, added_id in sorted(cells):
        by_shard.setdefault(shard, []).append(added_id)
    found: list[str] = []
    looked_at: dict[int, int] = {}
    for sample in samples:
        for shard, offset in sample.offsets.items():
            # A cell that was run before the first sample that is past it was run before all later
            # ones.
            for added_id in by_shard.get(shard, ()):
                if looked_at.get(shard, 0) <= added_id < offset and (shard, added_id) not in parked:
                    at_ns = ended.get((shard, added_id))
                    if at_ns is None or at_ns > sample.at_ns:
                        found.append(
                            f"shard {shard}: the offset was {offset} before cell {added_id} was run"
                            " or parked"
                        )
            looked_at[shard] = max(offset, looked_at.get(shard, 0))
    return {"I14": found}


def check_offsets_rise(samples: Iterable[Sample]) -> Violations:
    """I20: no offset falls. One that is gone for a time (a wiped ZooKeeper) is no lower when it is
    back."""
    found: list[str] = []
    last: dict[int, int] = {}
    for sample in samples:
        for shard, offset in sample.offsets.items():
            if offset < last.get(shard, 0):
                found.append(f"shard {shard}: the offset fell from {last[shard]} to {offset}")
            last[shard] = offset
    return {"I20": found}


def check_generations(samples: Iterable[Sample]) -> Violations:
    """I20: a generation of a shard's claim has one holder, and generations only rise."""
    found: list[str] = []
    holders: dict[tuple[int, int, int], str] = {}
    last: dict[int, tuple[int, int]] = {}
    for sample in samples:
        for shard, holder in sample.holders.items():
            generation = holder.birth, holder.version
            first = holders.setdefault((shard, *generation), holder.member)
            if first != holder.member:
                found.append(
                    f"shard {shard}: generation {generation} belonged to {first!r} and to"
                    f" {holder.member!r}"
                )
            if generation < last.get(shard, generation):
                found.append(
                    f"shard {shard}: its generation fell from {last[shard]} to {generation}"
                )
            last[shard] = generation
    return {"I20": found}


def check_run_by_one(calls: Sequence[Call], afflicted: Collection[int]) -> Violations:
    """I20: processes that nothing has happened to (those not ``afflicted``) never run a cell that
    another such one has run; nor a shard at the same time."""
    well = [call for call in calls if call.pid not in afflicted]
    runs: dict[Place, list[int]] = {}
    for call in well:
        if call.ended_ns is not None:
            runs.setdefault(call.place, []).append(call.pid)
    found = [
        f"cell {shard}/{added_id} was run {len(pids)} times, by {pids}"
        for (shard, added_id), pids in sorted(runs.items())
        if len(pids) > 1
    ]
    for shard, in_shard in groupby(
        sorted(well, key=lambda call: (call.shard, call.begun_ns)), key=lambda call: call.shard
    ):
        found += [
            f"shard {shard}: pid {later.pid} began {later.added_id} while pid {earlier.pid} ran"
            f" {earlier.added_id}"
            for earlier, later in pairwise(in_shard)
            if earlier.pid != later.pid and (earlier.ended_ns or earlier.begun_ns) > later.begun_ns
        ]
    return {"I20": found}


def check_overtaken(calls: Sequence[Call], pid: int, since_ns: int, back_ns: int) -> Violations:
    """I20: a process that was stopped or cut off at ``since_ns`` begins at most one more cell of
    its shard once another has begun on it: the one that it was about to.

    ``back_ns``: when it was last seen to be no member; later acts are those of the shard's owner.
    """
    found: list[str] = []
    for shard in sorted({call.shard for call in calls if call.pid == pid}):
        in_shard = sorted(
            (call for call in calls if call.shard == shard), key=lambda call: call.begun_ns
        )
        before = [call for call in in_shard if call.begun_ns <= since_ns]
        taken_ns = min(
            (
                call.begun_ns
                for call in in_shard
                if call.pid != pid and since_ns < call.begun_ns <= back_ns
            ),
            default=None,
        )
        if not before or before[-1].pid != pid or taken_ns is None:
            continue
        count = sum(call.pid == pid and taken_ns < call.begun_ns <= back_ns for call in in_shard)
        if count > 1:
            found.append(
                f"shard {shard}: pid {pid} began {count} cells after another had begun on it"
            )
    return {"I20": found}
