"""The model of a disk that tears writes: parts of a write are units of the file, and a tear leaves
some of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.durability.disk import Disk, torn_cuts
from tests.durability.recorded import Opened, Said, Step, Synced, Written
from tests.durability.torn import SECTOR_BYTES, UNITS, tears, torn_by_chance, units_of

WRITE = Written(1, 700, bytes(range(1, 251)) * 40)


@pytest.mark.parametrize("unit_bytes", UNITS)
def test_units_are_the_write_and_end_where_units_of_the_file_end(unit_bytes: int) -> None:
    units = units_of(WRITE, unit_bytes)
    assert b"".join(each.content for each in units) == WRITE.content
    assert units[0].offset == WRITE.offset
    assert all(each.offset % unit_bytes == 0 for each in units[1:])
    assert all(len(each.content) <= unit_bytes for each in units)


def test_every_tear_leaves_something_and_not_all() -> None:
    for left in tears(WRITE):
        assert 0 < sum(len(each.content) for each in left) < len(WRITE.content)
    assert list(tears(Written(1, 0, bytes(SECTOR_BYTES)))) == []


def test_a_torn_write_leaves_earlier_bytes_or_zeros(tmp_path: Path) -> None:
    before, after = b"b" * 600, b"a" * 1_200
    file = str(tmp_path / "file")
    steps: list[Step] = [
        Opened(file, 1, creates=True, empties=False),
        Synced(-1, str(tmp_path)),
        Written(1, 0, before),
        Synced(1, None),
        Said("said"),
        Written(1, 0, after),
    ]
    seen = {
        (cut.place / "file").read_bytes(): cut.said
        for cut in torn_cuts(steps, tmp_path, _made(tmp_path / "cuts"))
    }
    assert {
        after[:512] + before[512:],
        before[:512] + after[512:],
        after[:1_024],
        before[:600] + bytes(424) + after[1_024:],
        after[:512] + before[512:] + bytes(424) + after[1_024:],
    } <= set(seen)
    assert len(seen) == 5, "only the write behind the spoken line is torn"
    assert all(said == ["said"] for said in seen.values())


def test_tears_by_chance_repeat_with_their_seed_and_differ() -> None:
    drawn = [[torn_by_chance([WRITE], random.Random(seed)) for seed in range(40)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert [] in drawn[0]
    assert len({str(each) for each in drawn[0]}) > 10


def test_a_disk_knows_whether_there_is_anything_to_tear(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    known = []
    for event in (
        Opened(str(tmp_path / "file"), 1, creates=True, empties=False),
        WRITE,
        Synced(1, None),
    ):
        disk.apply(event)
        known.append(disk.has_unsynced_writes)
    assert known == [False, True, False]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
