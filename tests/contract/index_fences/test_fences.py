"""A write under a raised fence is refused, on every storage (X6)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from cellfeed.store.engines.contract.index_fences import Fences
from cellfeed.store.engines.contract.index_values import Entry
from cellfeed.store.errors import StaleView, StorageUnavailable
from tests.support.fenced_index import OTHER, ROW, Index, base


class _Storage:
    """A storage of fences that may be away."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.away = False

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]:
        return {shard: self.numbers[shard] for shard in shards if shard in self.numbers}

    def set_fences(self, numbers: Mapping[int, int]) -> None:
        if self.away:
            raise StorageUnavailable("away")
        for shard, number in numbers.items():
            self.numbers[shard] = max(number, self.numbers.get(shard, 0))


def test_a_fence_is_the_same_on_every_storage_once_it_was_read_also_after_a_broken_raise() -> None:
    first, second, third = _Storage(), _Storage(), _Storage()
    fences = Fences([first, second])
    before = fences.read(range(3))
    assert first.numbers == second.numbers == before
    second.away = True
    with pytest.raises(StorageUnavailable):
        fences.raise_([1])
    assert first.numbers[1] > second.numbers[1] == before[1]
    with pytest.raises(StorageUnavailable):
        fences.read([0, 1])
    second.away = False
    after = fences.read([0, 1])
    assert after == {0: before[0], 1: first.numbers[1]}
    assert first.numbers == second.numbers
    assert Fences([first, second, third]).read(range(3)) == third.numbers == first.numbers, (
        "one that is new has the highest number from the first look on"
    )
    raised = fences.raise_([2])[2]
    assert raised == first.numbers[2] == second.numbers[2] > third.numbers[2]


def test_a_write_under_a_fence_that_was_raised_is_refused(index: Index) -> None:
    [entry] = _entry_of(index)
    table, old = index.version.table, index.store.fences([0])[0]
    new = index.store.raise_fences([0])[0]
    assert new > old
    for write_late in (index.store.apply, index.store.remove):
        with pytest.raises(StaleView, match="shard 0 were trimmed or erased"):
            write_late(table, {0: [entry]}, {0: old})
    index.store.remove(table, {0: [entry]}, {0: new})
    index.store.apply(table, {0: [entry._replace(row_key=OTHER.bytes)]}, {0: new})
    assert index.entries() == [("ann", 2, True)]


def test_a_process_that_raises_a_fence_sees_every_entry_written_under_lower_numbers(
    index: Index,
) -> None:
    """Writers write a new entry each time, with the number that they write under as its ref key; a
    remover raises and looks."""
    [entry] = _entry_of(index)
    table, done, rows = index.version.table, threading.Event(), itertools.count(10)
    refused: list[int] = []

    def write() -> None:
        while not done.is_set():
            fence = index.store.fences([0])[0]
            row_key = UUID(int=next(rows)).bytes
            try:
                index.store.apply(
                    table, {0: [entry._replace(row_key=row_key, refs=(fence, None))]}, {0: fence}
                )
            except StaleView:
                refused.append(fence)

    def written_below(number: int) -> set[bytes]:
        return {
            each.row_key
            for each in index.store.walk(table, 0, None, 100_000)
            if each.refs[0] is not None and each.refs[0] < number
        }

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        seen: list[tuple[int, set[bytes]]] = []
        deadline_s = time.monotonic() + 60
        while len(seen) < 20 or (not refused and time.monotonic() < deadline_s):
            number = index.store.raise_fences([0])[0]
            seen.append((number, written_below(number)))
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert refused
    assert [written_below(number) for number, _ in seen] == [found for _, found in seen]


def _entry_of(index: Index) -> list[Entry]:
    index.keeper.apply(0, index.put(base(ROW, 1, "ann")))
    return index.store.walk(index.version.table, 0, None, 1)
