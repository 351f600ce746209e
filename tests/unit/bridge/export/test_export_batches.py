"""Batches and records at their limits: a record of just the largest size, a shard whose turn comes
next, a leader epoch that rose, an erased cell."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from cellfeed.bridge.events.record_headers import LeaderEpochs
from cellfeed.bridge.export import batches as module
from cellfeed.bridge.export.batches import BatchReader, Throttle, Turns
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.records import CLAIM_CHECK, OutRecord, RecordEncoder
from cellfeed.bridge.export.resume import Refusal, Resume, Saved, Tail, decide
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head, LogRange

EXPORT = Export("trips", "broker:9092")
EPOCHS = LeaderEpochs([(0, 0)], 0)
ROW = UUID(int=7)


def put(datastore: Datastore, *sizes: int) -> tuple[int, list[StoredCell]]:
    """Cells of one row with bodies of such sizes: their shard and the cells."""
    for ref_key, size in enumerate(sizes):
        datastore.put_cell(ROW, "BASE", ref_key, {"text": "x" * size})
    shard = datastore.shard_of(ROW)
    return shard, list(datastore.engine.scan(shard, 0, 100))


def encoder(**changed: Any) -> RecordEncoder:
    return RecordEncoder(msgspec.structs.replace(EXPORT, **changed), "trips", 1)


def test_a_record_of_just_the_largest_size_is_exported_and_one_byte_more_is_parked(
    datastore: Datastore,
) -> None:
    shard, cells = put(datastore, 10, 6_000, 20)
    whole = encoder().encode(shard, cells, EPOCHS)
    size = whole.records[1].size
    fits = encoder(record_bytes_max=size).encode(shard, cells, EPOCHS)
    assert fits == whole
    parked = encoder(record_bytes_max=size - 1).encode(shard, cells, EPOCHS)
    assert parked.records == [whole.records[0], whole.records[2]]
    [one] = parked.too_large
    assert (one.partition, one.added_id, one.row_key) == (shard, 1, str(ROW))
    assert f"record has up to {size} bytes" in one.error


def test_a_claim_check_stands_where_the_record_would_and_names_its_body(
    datastore: Datastore,
) -> None:
    shard, cells = put(datastore, 10, 6_000, 20)
    whole = encoder().encode(shard, cells, EPOCHS)
    checked = encoder(record_bytes_max=4_096, too_large=CLAIM_CHECK).encode(shard, cells, EPOCHS)
    assert checked.too_large == []
    assert [record.added_id for record in checked.records] == [0, 1, 2]
    assert [checked.records[0], checked.records[2]] == [whole.records[0], whole.records[2]]
    check = checked.records[1]
    found = datastore.get_cell(ROW, "BASE", 1)
    assert found is not None
    body = json.dumps(found.body, separators=(",", ":")).encode()
    said = json.loads(check.value or b"")
    assert (said["shard"], said["added_id"], said["ref_key"]) == (shard, 1, 1)
    assert (said["body_bytes"], said["body_sha256"]) == (
        len(body),
        hashlib.sha256(body).hexdigest(),
    )
    assert check.headers[-1] == (CLAIM_CHECK, b"%d" % len(body))


def test_an_erased_cell_has_neither_value_nor_type_header_and_other_cells_have_both(
    datastore: Datastore,
) -> None:
    shard, _ = put(datastore, 10)
    other = next(
        row for row in (UUID(int=n) for n in range(8, 999)) if datastore.shard_of(row) == shard
    )
    datastore.put_cell(other, "BASE", 1, {"n": 1})
    datastore.erase_row(ROW)
    cells = datastore.engine.scan(shard, 0, 100)
    records = encoder(format="cloudevents").encode(shard, cells, EPOCHS).records
    kept = [record for record in records if record.value is not None]
    assert [record.key for record in kept] == [str(other).encode()]
    typed = [dict(record.headers) for record in records if "content-type" in dict(record.headers)]
    assert typed == [dict(record.headers) for record in kept]
    assert len(records) > 1


def test_shards_that_did_not_fit_are_first_in_the_next_batch() -> None:
    turns = Turns([0, 1, 2, 3])
    behind = {0: 5, 1: 5, 2: 5}
    assert turns.take(behind, each=5, cells_max=10) == [(0, 5), (1, 5)]
    assert turns.take(behind, each=5, cells_max=7) == [(2, 5), (0, 2)]
    assert turns.take(behind, each=3, cells_max=100) == [(1, 3), (2, 3), (0, 3)]
    assert turns.take({}, each=3, cells_max=100) == []


class Log:
    """An engine whose shards give the cells that a test sets."""

    def __init__(self, cells: dict[int, Sequence[StoredCell]]) -> None:
        self.cells = cells
        self.epochs = [(1, 0)]
        self.asked: list[int] = []

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        return [
            [cell for cell in self.cells.get(each.shard, ()) if cell.added_id >= each.location][
                : each.limit
            ]
            for each in ranges
        ]

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        self.asked.append(shard)
        return self.epochs


def heads_of(*watermarks: int, epoch: int = 1) -> dict[int, Head]:
    return {shard: Head(0, each, each, epoch, 0) for shard, each in enumerate(watermarks)}


def reader(log: Log, shards: int = 3) -> BatchReader:
    return BatchReader(cast("Engine", log), encoder(), range(shards))


def test_a_shard_that_shows_nothing_just_now_keeps_no_other_back(datastore: Datastore) -> None:
    _, cells = put(datastore, 10, 20)
    log = Log({0: [], 1: cells, 2: cells})
    batch = reader(log).read({0: 0, 1: 0, 2: 0}, heads_of(5, 2, 2))
    assert batch is not None
    assert batch.ends == {1: 2, 2: 2}
    assert batch.cells == 4
    assert {shard: len(each) for shard, each in batch.records.items()} == {1: 2, 2: 2}
    assert reader(Log({})).read({0: 0}, heads_of(5), 10) is None


def test_cells_too_large_of_all_shards_are_parked_and_passed_over(datastore: Datastore) -> None:
    _, cells = put(datastore, 6_000, 20, 6_000)
    log = Log({0: cells, 1: cells[:1]})
    small = BatchReader(cast("Engine", log), encoder(record_bytes_max=4_096), range(2))
    batch = small.read({0: 0, 1: 0}, heads_of(3, 1))
    assert batch is not None
    assert [(parked.partition, parked.added_id) for parked in batch.too_large] == [
        (0, 0),
        (0, 2),
        (1, 0),
    ]
    assert batch.ends == {0: 3, 1: 1}
    assert list(batch.records) == [0]


def test_a_batch_ends_behind_the_shard_that_fills_it_and_the_next_is_smaller(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cells = put(datastore, 6_000, 6_000)
    monkeypatch.setattr(module, "TRANSACTION_BYTES_MAX", 10_000)
    log = Log({0: cells, 1: cells})
    batches = reader(log, 2)
    before = batches._cells_max
    batch = batches.read({0: 0, 1: 0}, heads_of(2, 2))
    assert batch is not None
    assert batch.ends == {0: 2}
    assert batches._cells_max == before // 2
    batch = batches.read({0: 2, 1: 0}, heads_of(2, 2))
    assert batch is not None
    assert batch.ends == {1: 2}


def test_a_leader_epoch_that_rose_is_looked_up_again(datastore: Datastore) -> None:
    _, cells = put(datastore, 10, 20)
    log = Log({0: cells})
    batches = reader(log, 1)

    def read(location: int, epoch: int) -> OutRecord:
        batch = batches.read({0: location}, heads_of(2, epoch=epoch), 1)
        assert batch is not None
        return batch.records[0][0]

    first = read(0, epoch=1)
    again = read(0, epoch=1)
    assert log.asked == [0]
    assert first.headers == again.headers
    log.epochs = [(1, 0), (2, 1)]
    risen = read(1, epoch=2)
    assert log.asked == [0, 0]
    assert dict(risen.headers) != {**dict(first.headers), **dict(risen.headers[:1])}


def test_cells_pass_at_the_rate_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=1_000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    waits: list[float] = []
    stop = cast("threading.Event", SimpleNamespace(wait=waits.append))
    Throttle(None).wait(10**9, stop)
    throttle = Throttle(100)
    assert (throttle.cells_max, Throttle(5).cells_max) == (10, 1)
    throttle.wait(50, stop)
    assert waits == []
    throttle.wait(50, stop)
    throttle.wait(50, stop)
    assert waits == [0.5, 1.0]
    clock.now_s += 10
    throttle.wait(50, stop)
    assert waits == [0.5, 1.0]
    throttle.wait(50, stop)
    assert waits == [0.5, 1.0, 0.5], "time that nobody used is not saved up"


@pytest.mark.parametrize(
    ("tail", "saved", "expected"),
    [
        (Tail(None, 0, 3), Saved(7, None), Resume(7, -1)),
        (Tail(None, 0, 3), Saved(3, None), Resume(7, -1)),
        (Tail(None, 0, 3), Saved(100, -1), Resume(100, -1)),
        (Tail(None, 0, 3), Saved(101, -1), None),
        (Tail(None, 0, 3), Saved(8, None), None),
        (Tail(None, 0, 3), Saved(3, 2), None),
        (Tail(40, 0, 90), Saved(41, 40), Resume(41, 40)),
        (Tail(40, 0, 90), Saved(100, 40), Resume(100, 40)),
        (Tail(40, 0, 90), Saved(41, None), Resume(41, 40)),
        (Tail(99, 0, 90), None, None),
    ],
)
def test_an_export_continues_at_the_borders_of_batches(
    tail: Tail, saved: Saved | None, expected: Resume | None
) -> None:
    found = decide(
        tail, saved, start=7, log_end=100 if tail.added_id != 99 else 99, starts_over=False
    )
    if expected is None:
        assert isinstance(found, Refusal)
    else:
        assert found == expected


@pytest.mark.parametrize(("saved", "exported"), [(101, 40), (40, 40), (42, 41)])
def test_an_offset_that_does_not_go_with_the_last_record_is_mended(
    saved: int, exported: int
) -> None:
    found = decide(Tail(40, 0, 90), Saved(saved, exported), start=0, log_end=100, starts_over=False)
    assert isinstance(found, Resume)
    assert found[:2] == (41, 40)
    assert found.differs
