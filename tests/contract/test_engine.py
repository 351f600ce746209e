"""The engine contract, promise by promise (E1–E24 in store/engines/contract/engine.py), over every
engine."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import pytest
import zstandard

from cellfeed.store.cells.body_codec import (
    CODEC_JSON_ZSTD,
    CODEC_MSGPACK_ZLIB,
    ERASED_BODY,
    decode_body,
    is_erased,
)
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON, NewCell, Outcome, Triple, new_cell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine, StateTable
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.open import CELLS_FILE
from cellfeed.store.errors import (
    CellConflict,
    DataDamaged,
    InvalidLocation,
    ProtectData,
    RowErased,
    StorageUnavailable,
    Trimmed,
    UnknownShard,
)
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, set_failpoint
from cellfeed.testing.failing_master import FailingMaster

SHARDS = 4

SCANS = {"sqlite": "sqlite.log", "mysql": "mysql.log"}
"""The module of each kind of engine that scans logs."""


class Clock:
    """The storage's clock, set by a test by hand, microseconds."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now_us


EngineMaker = Callable[..., Engine]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "mysql", "test kit"])
def open_engine(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> Iterator[EngineMaker]:
    """Opens engines on the same storage; every one is closed at the end."""
    opened: list[Engine] = []
    url = request.getfixturevalue("empty_mariadb").url if request.param == "mysql" else None

    def open_one(
        datastore: str = "trips", shards: int = SHARDS, codec: int = CODEC_JSON_ZSTD
    ) -> Engine:
        engine: Engine
        if url is not None:
            engine = MySqlEngine(
                MySqlServer(url), datastore, shards, create=True, codec=codec, clock_us=clock
            )
        else:
            engine = SqliteEngine(tmp_path, datastore, shards, codec=codec, clock_us=clock)
            if request.param == "test kit":
                engine = FailingMaster(engine)
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        engine.close()


@pytest.fixture
def kind(open_engine: EngineMaker, request: pytest.FixtureRequest) -> str:
    """The engine under test, as its failpoints name it."""
    return str(request.node.callspec.params["open_engine"]).replace("test kit", "sqlite")


@pytest.fixture
def engine(open_engine: EngineMaker) -> Engine:
    return open_engine()


def cell(
    number: int = 0, column: str = "BASE", ref_key: int = 1, row: UUID | None = None
) -> NewCell:
    return new_cell(row or UUID(int=number), column, ref_key, {"n": number})


def rows_of_shard(shard: int, count: int) -> list[UUID]:
    found: list[UUID] = []
    number = 0
    while len(found) < count:
        if shard_of(UUID(int=number).bytes, SHARDS) == shard:
            found.append(UUID(int=number))
        number += 1
    return found


def log(engine: Engine) -> dict[int, list[tuple[int, bytes, str, int, bytes]]]:
    return {
        shard: [
            (c.added_id, c.row_key, c.column_name, c.ref_key, decode_body(c.body))
            for c in engine.scan(shard, 0, 10_000)
        ]
        for shard in range(engine.shards)
    }


def test_e1_a_put_that_dies_before_its_commit_leaves_nothing_of_any_shard(
    engine: Engine, kind: str
) -> None:
    for name in (name for name in sorted(FAILPOINTS) if name.startswith(f"{kind}.put.before_")):
        set_failpoint(name, "raise")
        with pytest.raises(FailpointReached):
            engine.put([cell(n) for n in range(20)])
    assert all(head.next_added_id == 0 for head in engine.heads().values())
    assert not any(log(engine).values())


def test_e2_ids_of_a_shard_are_gapless_from_zero_in_the_order_given(engine: Engine) -> None:
    given = [cell(n) for n in range(200)]
    results = engine.put(given[:77]) + engine.put(given[77:])
    assert [r.outcome for r in results] == [Outcome.STORED] * 200
    for shard, entries in log(engine).items():
        assert [entry[0] for entry in entries] == list(range(len(entries)))
        assert [entry[1:] for entry in entries] == [
            (*c.triple, c.body_json) for c in given if shard_of(c.row_key, SHARDS) == shard
        ]


def test_e2_writers_with_their_own_connections_never_share_or_skip_an_id(
    open_engine: EngineMaker,
) -> None:
    engines = [open_engine() for _ in range(3)]
    row_keys = [[uuid4() for _ in range(40)] for _ in engines]

    def write(mine: Engine, keys: list[UUID]) -> None:
        for key in keys:
            mine.put([cell(row=key)])

    threads = [
        threading.Thread(target=write, args=pair) for pair in zip(engines, row_keys, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = log(engines[0])
    assert sum(map(len, entries.values())) == 120
    assert all(
        [entry[0] for entry in shard] == list(range(len(shard))) for shard in entries.values()
    )


def test_e3_the_same_cell_again_exists_with_its_first_id_and_uses_up_none(engine: Engine) -> None:
    first = engine.put([cell(n) for n in range(10)])
    again = engine.put([cell(n) for n in range(12)])
    assert [r.outcome for r in again] == [Outcome.EXISTS] * 10 + [Outcome.STORED] * 2
    assert [(r.shard, r.added_id) for r in again[:10]] == [(r.shard, r.added_id) for r in first]
    assert sum(head.next_added_id for head in engine.heads().values()) == 12


def test_e3_another_body_is_a_conflict_and_the_rest_of_the_call_is_written(engine: Engine) -> None:
    engine.put([cell(1)])
    changed = new_cell(UUID(int=1), "BASE", 1, {"n": "another"})
    results = engine.put([cell(2), changed, cell(3)])
    assert [r.outcome for r in results] == [Outcome.STORED, Outcome.CONFLICT, Outcome.STORED]
    assert isinstance(results[1].error, CellConflict)
    assert "00000000-0000-0000-0000-000000000001" in str(results[1].error)
    [found] = engine.get([changed.triple])
    assert found is not None
    assert decode_body(found.cell.body) == b'{"n":1}'


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x00",
        b"\x02\x28\xb5\x2f\xfd",
        b"\x02not zstd",
        b"\x03\x00\x00\x00\x07" + zstandard.compress(b"{}"),
        b"\x63",
    ],
    ids=repr,
)
def test_e24_a_put_that_meets_a_damaged_body_fails_alone(
    open_engine: EngineMaker, request: pytest.FixtureRequest, tmp_path: Path, damaged: bytes
) -> None:
    engine = open_engine()
    hurt = cell(1)
    engine.put([hurt, cell(2)])
    heads, shard = engine.heads(), shard_of(hurt.row_key, SHARDS)
    if "mysql" in request.node.name:
        server = request.getfixturevalue("empty_mariadb")
        server.sql(
            f"UPDATE trips_{shard:04d}.cell SET body = X'{damaged.hex()}' WHERE row_key ="
            f" X'{hurt.row_key.hex()}'"
        )
    else:
        with sqlite3.connect(tmp_path / CELLS_FILE) as connection:
            connection.execute(
                "UPDATE cell SET body = ? WHERE row_key = ?", (damaged, hurt.row_key)
            )
    results = engine.put(
        [cell(3), hurt, cell(2), new_cell(UUID(int=1), "BASE", 1, {"n": "another"}), cell(4), hurt]
    )
    outcomes = [
        Outcome.STORED,
        Outcome.FAILED,
        Outcome.EXISTS,
        Outcome.FAILED,
        Outcome.STORED,
        Outcome.FAILED,
    ]
    assert [r.outcome for r in results] == outcomes
    for refused in (results[1], results[3], results[5]):
        assert isinstance(refused.error, (DataDamaged, ProtectData))
        assert refused.error.definite
        assert not refused.error.retriable
        assert refused.shard == shard
        assert "00000000-0000-0000-0000-000000000001" in str(refused.error)
    assert (
        sum(head.next_added_id for head in engine.heads().values())
        == sum(head.next_added_id for head in heads.values()) + 2
    )
    with pytest.raises(DataDamaged, match=f"added_id 0 of shard {shard}"):
        engine.get([hurt.triple])
    assert engine.put([cell(3), cell(4)])[0].outcome is Outcome.EXISTS


def test_e3_one_triple_twice_in_a_call_is_stored_once(engine: Engine) -> None:
    results = engine.put([cell(1), cell(1), new_cell(UUID(int=1), "BASE", 1, {"n": 2}), cell(2)])
    assert [r.outcome for r in results] == [
        Outcome.STORED,
        Outcome.EXISTS,
        Outcome.CONFLICT,
        Outcome.STORED,
    ]
    assert sum(map(len, log(engine).values())) == 2


def test_e3_columns_that_differ_in_case_or_normal_form_are_different_columns(
    engine: Engine,
) -> None:
    names = ["base", "BASE", "\u00e9", "e\u0301", "a ", "a", "\U0001f695"]
    results = engine.put([cell(column=name) for name in names])
    assert [r.outcome for r in results] == [Outcome.STORED] * len(names)
    [row] = engine.row([UUID(int=0).bytes])
    assert [found.cell.column_name for found in row] == sorted(names, key=str.encode)


def test_e3_bodies_are_compared_across_codecs(open_engine: EngineMaker) -> None:
    open_engine(codec=CODEC_MSGPACK_ZLIB).put([cell(1)])
    newer = open_engine(codec=CODEC_JSON_ZSTD)
    assert newer.put([cell(1)])[0].outcome is Outcome.EXISTS
    assert newer.put([new_cell(UUID(int=1), "BASE", 1, {"n": 1.0})])[0].outcome is Outcome.CONFLICT


def test_e4_created_at_never_goes_back_when_the_clock_does(engine: Engine, clock: Clock) -> None:
    key = UUID(int=5)
    engine.put([cell(row=key, ref_key=1)])
    clock.now_us -= 60_000_000
    engine.put([cell(row=key, ref_key=2)])
    clock.now_us += 90_000_000
    engine.put([cell(row=key, ref_key=3)])
    times = [c.created_at_us for c in engine.scan(shard_of(key.bytes, SHARDS), 0, 10)]
    assert times == [1_700_000_000_000_000, 1_700_000_000_000_000, 1_700_000_030_000_000]


def test_e4_nor_does_it_where_an_erasure_adds_its_entry(engine: Engine, clock: Clock) -> None:
    [row] = rows_of_shard(1, 1)
    engine.put([cell(row=row)])
    clock.now_us -= 60_000_000
    engine.erase(row.bytes)
    engine.put([cell(row=rows_of_shard(1, 2)[1])])
    times = [found.created_at_us for found in engine.scan(1, 0, 10)]
    assert times == [1_700_000_000_000_000] * 3
    assert engine.heads()[1].last_created_at_us == times[-1]


def test_e5_a_returned_put_is_seen_by_another_opening_of_the_storage(
    open_engine: EngineMaker,
) -> None:
    open_engine().put([cell(1)])
    assert open_engine().get([cell(1).triple])[0] is not None


def test_e6_a_failed_put_uses_up_no_id_and_the_engine_goes_on(engine: Engine, kind: str) -> None:
    engine.put([cell(1)])
    set_failpoint(f"{kind}.put.before_commit", "raise")
    with pytest.raises(FailpointReached):
        engine.put([cell(2), cell(3)])
    before = {shard: head.next_added_id for shard, head in engine.heads().items()}
    assert sum(before.values()) == 1
    assert [r.outcome for r in engine.put([cell(2), cell(3)])] == [Outcome.STORED] * 2


def test_e6_the_column_of_a_failed_put_is_there_with_the_next(engine: Engine, kind: str) -> None:
    set_failpoint(f"{kind}.put.before_commit", "raise")
    with pytest.raises(FailpointReached):
        engine.put([cell(1, "NOTES")])
    assert engine.columns() == []
    engine.put([cell(1, "NOTES")])
    assert engine.columns() == ["NOTES"]


def test_e6_a_put_that_dies_after_its_commit_is_found_by_the_retry(
    engine: Engine, kind: str
) -> None:
    set_failpoint(f"{kind}.put.after_commit", "raise")
    with pytest.raises(FailpointReached):
        engine.put([cell(2)])
    [retry] = engine.put([cell(2)])
    assert (retry.outcome, retry.added_id) == (Outcome.EXISTS, 0)


def test_e7_scan_starts_at_the_location_and_stops_at_the_limit(engine: Engine) -> None:
    keys = rows_of_shard(2, 30)
    engine.put([cell(row=key) for key in keys])
    assert [c.added_id for c in engine.scan(2, 10, 5)] == [10, 11, 12, 13, 14]
    assert [c.added_id for c in engine.scan(2, 28, 100)] == [28, 29]
    assert engine.scan(2, 30, 10) == []
    assert engine.scan(2, 10**12, 10) == []
    assert engine.scan(1, 0, 10) == []


def test_e7_scan_stops_after_so_many_bytes_but_always_gives_one_cell(
    engine: Engine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"cellfeed.store.engines.{SCANS[kind]}.SCAN_BYTES_MAX", 1)
    keys = rows_of_shard(0, 3)
    engine.put([cell(row=key) for key in keys])
    assert [c.added_id for c in engine.scan(0, 1, 10)] == [1]


def test_e7_ranges_of_several_logs_are_as_if_each_were_scanned(engine: Engine) -> None:
    engine.put([cell(row=key) for shard in (0, 1, 3) for key in rows_of_shard(shard, 30)])
    ranges = [
        LogRange(3, 10, 5),
        LogRange(0, 28, 100),
        LogRange(0, 3, 1),
        LogRange(2, 0, 10),
        LogRange(1, 30, 10),
        LogRange(1, 0, 10**6),
    ]
    assert engine.scan_many(ranges) == [engine.scan(*each) for each in ranges]
    assert [len(cells) for cells in engine.scan_many(ranges)] == [5, 2, 1, 0, 0, 30]
    assert engine.scan_many([]) == []


def test_e7_each_of_several_ranges_stops_after_so_many_bytes(
    engine: Engine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"cellfeed.store.engines.{SCANS[kind]}.SCAN_BYTES_MAX", 1)
    engine.put([cell(row=key) for shard in (0, 1) for key in rows_of_shard(shard, 3)])
    assert [
        [c.added_id for c in cells]
        for cells in engine.scan_many([LogRange(0, 1, 10), LogRange(1, 0, 10)])
    ] == [[1], [0]]


def test_e7_an_unknown_shard_is_refused(engine: Engine) -> None:
    for shard in (-1, SHARDS, True, "0"):
        with pytest.raises(UnknownShard):
            engine.scan(shard, 0, 1)  # type: ignore[arg-type]
        with pytest.raises(UnknownShard):
            engine.scan_many([LogRange(shard, 0, 1)])  # type: ignore[arg-type]


def test_e8_heads_count_every_shard(engine: Engine) -> None:
    engine.put([cell(row=key) for key in rows_of_shard(3, 7)])
    heads = engine.heads()
    assert sorted(heads) == list(range(SHARDS))
    assert heads[3][:4] == (0, 7, 7, 0)
    assert heads[0][:4] == (0, 0, 0, 0)
    assert engine.heads([3]) == {3: heads[3]}
    assert engine.leader_epochs(3) == [(0, 0)]


def test_e8_acknowledged_ends_are_past_every_cell_that_was_acknowledged(engine: Engine) -> None:
    results = engine.put([cell(row=uuid4()) for _ in range(20)])
    ends = engine.acknowledged_ends()
    assert sorted(ends) == list(range(SHARDS))
    for shard, (epoch, end) in ends.items():
        ids = [each.added_id for each in results if each.shard == shard]
        assert end == len(ids)
        assert epoch == engine.heads()[shard].leader_epoch


def test_e9_locate_finds_the_first_id_at_or_after_a_moment(engine: Engine, clock: Clock) -> None:
    keys = rows_of_shard(1, 40)
    start = clock.now_us
    for index, key in enumerate(keys):
        clock.now_us = start + (index // 4) * 1000
        engine.put([cell(row=key)])
    for step in range(10):
        assert engine.locate(1, start + step * 1000) == step * 4
        assert engine.locate(1, start + step * 1000 + 1) == (step + 1) * 4
    assert engine.locate(1, 0) == 0
    assert engine.locate(0, start) == 0


def test_e10_the_latest_cell_has_the_highest_ref_key_whatever_came_last(engine: Engine) -> None:
    key = UUID(int=9)
    for ref_key in (5, -(2**63), 2**63 - 1, 7):
        engine.put(
            [cell(ref_key, ref_key=ref_key, row=key)]
            if ref_key == 5
            else [cell(0, ref_key=ref_key, row=key)]
        )
    engine.put([cell(0, column="NOTES", ref_key=3, row=key)])
    [latest, nothing] = engine.latest([(key.bytes, "BASE"), (key.bytes, "STATUS")])
    assert latest is not None
    assert latest.cell.ref_key == 2**63 - 1
    assert nothing is None
    [row] = engine.row([key.bytes])
    assert [(found.cell.column_name, found.cell.ref_key) for found in row] == [
        ("BASE", 2**63 - 1),
        ("NOTES", 3),
    ]
    assert engine.row([UUID(int=10).bytes]) == [[]]
    assert engine.get([Triple(key.bytes, "BASE", 6)]) == [None]


def test_e14_columns_names_every_column_once(open_engine: EngineMaker) -> None:
    engine = open_engine()
    assert engine.columns() == []
    engine.put([cell(1), cell(2, column="STATUS"), cell(3)])
    other = open_engine()
    other.put([cell(4, column="base"), cell(5)])
    assert engine.columns() == other.columns() == ["BASE", "STATUS", "base"]


def test_e16_superseded_are_the_cells_of_which_a_newer_one_lies_in_the_given_part_of_the_log(
    engine: Engine,
) -> None:
    """Against all pairs, over random rows, columns, ref keys (newer ones that come first among
    them) and parts of the log."""
    random = Random(15)
    rows = rows_of_shard(1, 5)
    triples = [
        (row, column, ref_key)
        for row in rows
        for column in ("BASE", "base")
        for ref_key in (-(2**63), -1, 0, 1, 2**63 - 1)
    ]
    random.shuffle(triples)
    engine.put([cell(ref_key=ref_key, column=column, row=row) for row, column, ref_key in triples])
    engine.put([cell(ref_key=9, row=row) for row in rows_of_shard(2, 3)])
    end = len(triples)
    for _ in range(40):
        [start, stop], [log_start, watermark] = (
            sorted(random.sample(range(end + 1), 2)) for _ in range(2)
        )
        wanted = {
            older
            for older in range(start, stop)
            if any(
                triples[newer][:2] == triples[older][:2] and triples[newer][2] > triples[older][2]
                for newer in range(log_start, watermark)
            )
        }
        assert engine.superseded(1, start, stop, log_start, watermark) == wanted
    assert len(engine.superseded(1, 0, end, 0, end)) == end - 2 * len(rows)
    assert engine.superseded(2, 0, 3, 0, 3) == set()
    with pytest.raises(UnknownShard):
        engine.superseded(SHARDS, 0, 1, 0, 1)


def logged(engine: Engine, count: int, shard: int = 1) -> list[NewCell]:
    """So many cells, all of one shard, put in this order."""
    cells = [cell(row=row) for row in rows_of_shard(shard, count)]
    engine.put(cells)
    return cells


def test_e15_a_trim_raises_the_log_start_and_what_is_below_is_gone_everywhere(
    engine: Engine,
) -> None:
    cells = logged(engine, 10)
    before = engine.heads()
    token = engine.change_token()
    assert engine.trim(1, 4) == 4
    assert engine.heads() == {**before, 1: before[1]._replace(log_start=4)}
    assert engine.change_token() != token
    assert [found.added_id for found in engine.scan(1, 4, 100)] == [4, 5, 6, 7, 8, 9]
    triples = [each.triple for each in cells]
    assert [found is None for found in engine.get(triples)] == [True] * 4 + [False] * 6
    assert [
        found is None for found in engine.latest([(each.row_key, "BASE") for each in cells])
    ] == [True] * 4 + [False] * 6
    assert [not found for found in engine.row([each.row_key for each in cells])] == [True] * 4 + [
        False
    ] * 6


def test_e15_a_scan_from_below_the_log_start_says_so_and_skips_nothing(engine: Engine) -> None:
    logged(engine, 10)
    engine.trim(1, 4)
    for location in (0, 3):
        with pytest.raises(Trimmed, match=f"location {location} of shard 1 .* begins at 4"):
            engine.scan(1, location, 5)
        with pytest.raises(Trimmed, match="begins at 4"):
            engine.scan_many([LogRange(0, 0, 5), LogRange(1, location, 5)])
    assert engine.scan(0, 0, 5) == []
    assert [len(found) for found in engine.scan_many([LogRange(0, 0, 5), LogRange(1, 4, 5)])] == [
        0,
        5,
    ]
    engine.trim(1, 10)
    with pytest.raises(Trimmed, match="begins at 10"):
        engine.scan(1, 9, 5)
    assert engine.scan(1, 10, 5) == []


def test_e15_a_trim_goes_in_steps_of_so_many_cells_and_bytes(
    engine: Engine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged(engine, 10)
    assert [engine.trim(1, 8, 3) for _ in range(4)] == [3, 6, 8, 8]
    assert engine.trim(1, 2) == 8
    monkeypatch.setattr("cellfeed.store.engines.contract.log_start.TRIM_STEP_BYTES", 1)
    assert engine.trim(1, 10) == 9
    assert engine.trim(1, 10) == 10


def test_e15_an_empty_log_goes_on_where_it_was(engine: Engine, clock: Clock) -> None:
    cells = logged(engine, 5)
    written_us = clock.now_us
    assert engine.trim(1, 5) == 5
    clock.now_us -= 1_000_000
    [again] = engine.put([cells[0]])
    assert (again.outcome, again.shard, again.added_id) == (Outcome.STORED, 1, 5)
    [found] = engine.scan(1, 5, 10)
    assert found.created_at_us == written_us
    assert engine.heads()[1] == (5, 6, 6, engine.heads()[1].leader_epoch, written_us, 0)


def test_e15_a_trimmed_triple_is_put_anew_with_a_new_id_and_then_kept(engine: Engine) -> None:
    cells = logged(engine, 4)
    engine.trim(1, 2)
    changed = new_cell(UUID(bytes=cells[0].row_key), "BASE", 1, {"n": "another"})
    assert [(result.outcome, result.added_id) for result in engine.put([changed, cells[2]])] == [
        (Outcome.STORED, 4),
        (Outcome.EXISTS, 2),
    ]
    assert [result.outcome for result in engine.put([cells[0]])] == [Outcome.CONFLICT]


def test_e15_nothing_beyond_the_end_of_the_log_is_trimmed(engine: Engine) -> None:
    logged(engine, 3)
    assert engine.trim_limits([0, 1]) == {0: 0, 1: 3}
    with pytest.raises(InvalidLocation, match="only cells below 3"):
        engine.trim(1, 4)
    with pytest.raises(UnknownShard):
        engine.trim(SHARDS, 0)
    assert engine.heads()[1].log_start == 0


def test_e15_a_trim_that_dies_is_done_or_not_and_goes_on(engine: Engine, kind: str) -> None:
    logged(engine, 9)
    died = 0
    for name in sorted(name for name in FAILPOINTS if name.startswith(f"{kind}.trim.")):
        start = engine.heads()[1].log_start
        set_failpoint(name, "raise")
        with pytest.raises(FailpointReached):
            engine.trim(1, start + 2)
        died += 1
        now = engine.heads()[1].log_start
        assert now == (start + 2 if name.endswith("after_commit") else start)
        assert [found.added_id for found in engine.scan(1, now, 10)] == list(range(now, 9))
        assert engine.trim(1, start + 2) == start + 2
    assert died == 3


def test_e15_a_moment_that_was_trimmed_is_located_at_the_log_start(
    engine: Engine, clock: Clock
) -> None:
    for row in rows_of_shard(1, 6):
        clock.now_us += 1_000_000
        engine.put([cell(row=row)])
    moments = [found.created_at_us for found in engine.scan(1, 0, 10)]
    engine.trim(1, 3)
    assert [engine.locate(1, at_us) for at_us in moments] == [3, 3, 3, 3, 4, 5]
    engine.trim(1, 6)
    assert [engine.locate(1, at_us) for at_us in moments] == [6] * 6


def test_e15_puts_scans_and_trims_at_once_lose_nothing(open_engine: EngineMaker) -> None:
    """A tail follows a log that is written and trimmed: it sees every cell once or learns that it
    was too late; it never comes to a hole."""
    engines = [open_engine() for _ in range(3)]
    rows = rows_of_shard(1, 300)
    problems: list[str] = []
    written = threading.Event()

    def put() -> None:
        try:
            for start in range(0, len(rows), 10):
                engines[0].put([cell(row=row) for row in rows[start : start + 10]])
        finally:
            written.set()

    def trim() -> None:
        done = False
        while not done:
            done = written.is_set()  # once more after the last cell
            engines[1].trim(1, max(0, engines[1].heads()[1].watermark - 5), 7)

    def tail() -> None:
        location = 0
        while location < len(rows) and not (
            written.is_set() and location >= engines[2].heads()[1].watermark
        ):
            try:
                found = engines[2].scan(1, location, 7)
            except Trimmed:
                location = engines[2].heads()[1].log_start
                continue
            if [each.added_id for each in found] != list(range(location, location + len(found))):
                problems.append(f"from {location}: {[each.added_id for each in found]}")
            location += len(found)

    threads = [threading.Thread(target=each) for each in (put, trim, tail)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    head = engines[0].heads()[1]
    assert head.next_added_id == 300
    assert head.log_start > 0
    assert [each.added_id for each in engines[0].scan(1, head.log_start, 1_000)] == list(
        range(head.log_start, 300)
    )


def erase(engine: Engine, row: UUID, cells_max: int = 1_000) -> tuple[int, int]:
    """The added_id of the entry, and how many bodies were taken, in as many steps as it needs."""
    taken = 0
    while True:
        step = engine.erase(row.bytes, cells_max)
        taken += step.cells
        if step.done:
            return step.added_id, taken


def test_e20_an_erasure_takes_the_bodies_of_a_row_and_leaves_every_place_and_every_other_cell(
    engine: Engine,
) -> None:
    row, *others = rows_of_shard(1, 4)
    engine.put(
        [
            cell(number, row=each, column=column)
            for number, each in enumerate((row, *others))
            for column in ("BASE", "STATUS")
        ]
    )
    engine.put([cell(9, row=row, ref_key=7)])
    before = engine.scan(1, 0, 100)
    heads = engine.heads()
    assert erase(engine, row) == (9, 3)
    after = engine.scan(1, 0, 100)
    assert after[:9] == [
        found._replace(body=ERASED_BODY) if found.row_key == row.bytes else found
        for found in before
    ]
    assert after[9]._replace(created_at_us=0) == (9, row.bytes, ERASED_COLUMN, 0, 0, ERASED_BODY)
    assert after[9].created_at_us >= before[-1].created_at_us
    assert decode_body(after[9].body) == ERASED_JSON
    now = engine.heads()
    assert now[1][:4] == (0, 10, 10, heads[1].leader_epoch)
    assert now[1].erasures != heads[1].erasures
    assert {shard: head for shard, head in now.items() if shard != 1} == {
        shard: head for shard, head in heads.items() if shard != 1
    }
    assert ERASED_COLUMN in engine.columns()


def test_e20_every_cell_of_a_row_can_be_listed(engine: Engine) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(row=each, ref_key=ref_key) for ref_key in range(5) for each in (row, other)])
    assert [found.added_id for found in engine.row_cells(row.bytes)] == [0, 2, 4, 6, 8]
    assert [found.added_id for found in engine.row_cells(row.bytes, 2, 2)] == [4, 6]
    assert engine.row_cells(UUID(int=1 << 100).bytes) == []


def test_e20_again_there_is_nothing_to_do(engine: Engine) -> None:
    [row] = rows_of_shard(1, 1)
    engine.put([cell(row=row)])
    assert erase(engine, row) == (1, 1)
    log_then, heads, token = log(engine), engine.heads(), engine.change_token()
    assert erase(engine, row) == (1, 0)
    assert (log(engine), engine.heads(), engine.change_token()) == (log_then, heads, token)


def test_e20_a_long_row_goes_in_steps_and_the_first_adds_the_entry(engine: Engine) -> None:
    [row] = rows_of_shard(1, 1)
    engine.put([cell(row=row, ref_key=ref_key) for ref_key in range(5)])
    steps = [engine.erase(row.bytes, 2) for _ in range(3)]
    assert [(step.added_id, step.cells, step.done) for step in steps] == [
        (5, 2, False),
        (5, 2, False),
        (5, 1, True),
    ]
    assert all(is_erased(found.body) for found in engine.scan(1, 0, 100))
    assert engine.heads()[1].next_added_id == 6


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_e20_the_cells_of_a_row_come_page_by_page_each_once(engine: Engine, limit: int) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(row=row, ref_key=ref_key) for ref_key in range(5)])
    engine.put([cell(row=other, ref_key=ref_key) for ref_key in range(5)])
    found: list[int] = []
    while page := engine.row_cells(row.bytes, found[-1] if found else -1, limit):
        assert len(page) <= limit
        found += [each.added_id for each in page]
    assert found == [0, 1, 2, 3, 4]


def test_e20_the_log_may_be_told_before_any_body_goes(engine: Engine) -> None:
    [row] = rows_of_shard(1, 1)
    engine.put([cell(row=row, ref_key=ref_key) for ref_key in range(3)])
    counts = [engine.heads()[1].erasures]
    for cells_max, taken in (
        (0, (3, 0, False)),
        (0, (3, 0, False)),
        (2, (3, 2, False)),
        (2, (3, 1, True)),
        (0, (3, 0, True)),
    ):
        step = engine.erase(row.bytes, cells_max)
        assert (step.added_id, step.cells, step.done) == taken
        counts.append(engine.heads()[1].erasures)
    assert len(set(counts)) == 4, (
        "once told, and with each step that took bodies, readers drop what they kept"
    )
    [refused] = engine.put([cell(row=row, ref_key=9)])
    assert refused.outcome is Outcome.FAILED


def test_e20_an_erasure_that_dies_is_done_or_not_and_goes_on(engine: Engine, kind: str) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(row=each, ref_key=ref_key) for ref_key in range(4) for each in (row, other)])
    died = 0
    for name in sorted(
        (name for name in FAILPOINTS if name.startswith(f"{kind}.erase.")), reverse=True
    ):  # the one before the commit first
        left = [
            found
            for found in engine.scan(1, 0, 100)
            if found.row_key == row.bytes and not is_erased(found.body)
        ]
        set_failpoint(name, "raise")
        with pytest.raises(FailpointReached):
            engine.erase(row.bytes, 2)
        died += 1
        now = [
            found
            for found in engine.scan(1, 0, 100)
            if found.row_key == row.bytes and not is_erased(found.body)
        ]
        assert len(now) == len(left) - 2 * name.endswith("after_commit")
    assert died == 2
    erase(engine, row, 2)
    assert engine.heads()[1].next_added_id == 9
    assert [is_erased(found.body) for found in engine.scan(1, 0, 100)] == [True, False] * 4 + [True]


def test_e21_puts_to_an_erased_row_are_refused_and_the_others_of_the_call_are_written(
    engine: Engine,
) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(1, row=row)])
    erase(engine, row)
    results = engine.put(
        [cell(1, row=row), cell(2, row=other), cell(3, row=row, column="NEW"), cell(2, row=other)]
    )
    assert [(result.outcome, result.shard, result.added_id) for result in results] == [
        (Outcome.FAILED, 1, None),
        (Outcome.STORED, 1, 2),
        (Outcome.FAILED, 1, None),
        (Outcome.EXISTS, 1, 2),
    ]
    assert decode_body(engine.scan(1, 2, 1)[0].body) == cell(2, row=other).body_json
    for refused in (results[0], results[2]):
        assert isinstance(refused.error, RowErased)
        assert (refused.error.definite, refused.error.retriable, refused.acknowledged) == (
            True,
            False,
            False,
        )
    assert [result.outcome for result in engine.put([cell(1, row=row)])] == [Outcome.FAILED]
    assert engine.heads()[1].next_added_id == 3


def test_e21_a_row_without_cells_can_be_erased_and_puts_are_refused_from_then_on(
    open_engine: EngineMaker,
) -> None:
    [row] = rows_of_shard(2, 1)
    assert erase(open_engine(), row) == (0, 0)
    assert [result.outcome for result in open_engine().put([cell(row=row)])] == [Outcome.FAILED]


def test_e21_a_trim_beyond_the_entry_ends_it(engine: Engine) -> None:
    row, other = rows_of_shard(1, 2)
    engine.put([cell(row=row)])
    erase(engine, row)
    engine.put([cell(row=other)])
    engine.trim(1, 1)
    assert [result.outcome for result in engine.put([cell(row=row)])] == [Outcome.FAILED]
    engine.trim(1, 2)
    assert [(result.outcome, result.added_id) for result in engine.put([cell(row=row)])] == [
        (Outcome.STORED, 3)
    ]


def test_e11_state_writes_all_or_none_and_only_when_versions_hold(engine: Engine) -> None:
    state = engine.state
    first = state.commit({"a/1": b"x", "a/2": b"y"}, expect={"a/1": None})
    assert first is not None
    assert state.commit({"a/1": b"z"}, expect={"a/1": None}) is None
    assert state.commit({"a/1": b"z", "a/3": b"q"}, expect={"a/2": first + 1}) is None
    assert [(e.key, e.value) for e in state.list("a/")] == [("a/1", b"x"), ("a/2", b"y")]
    second = state.commit({"a/1": None}, expect={"a/1": first})
    assert second is not None
    assert second > first
    assert state.get("a/1") is None
    third = state.commit({"a/1": b"x"})
    assert third is not None
    assert third > second
    entry = state.get("a/1")
    assert entry is not None
    assert entry.version == third


def test_e11_state_keys_are_listed_by_prefix_only(engine: Engine) -> None:
    engine.state.commit({"ab": b"", "a/": b"", "a/é": b"", "b": b"", "a/\U0001f695": b""})
    assert [e.key for e in engine.state.list("a/")] == ["a/", "a/é", "a/\U0001f695"]


def test_e11_one_of_many_racing_writers_wins_each_version(open_engine: EngineMaker) -> None:
    states = [open_engine().state for _ in range(3)]
    states[0].commit({"counter": b"0"})

    def raise_it(state: StateTable) -> None:
        done = 0
        while done < 20:
            entry = state.get("counter")
            assert entry is not None
            if state.commit(
                {"counter": str(int(entry.value) + 1).encode()}, expect={"counter": entry.version}
            ):
                done += 1

    threads = [threading.Thread(target=raise_it, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entry = states[0].get("counter")
    assert entry is not None
    assert entry.value == b"60"


def test_change_token_differs_after_a_commit_by_anyone_and_only_then(
    open_engine: EngineMaker,
) -> None:
    mine, other = open_engine(), open_engine()
    before = mine.change_token()
    assert mine.change_token() == before
    mine.put([cell(1)])
    after_own = mine.change_token()
    assert after_own != before
    other.put([cell(2)])
    assert mine.change_token() != after_own


def test_e12_a_closed_engine_says_so(open_engine: EngineMaker) -> None:
    engine = open_engine()
    engine.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        engine.put([cell(1)])
    with pytest.raises(StorageUnavailable, match="closed"):
        engine.heads()


def test_e12_a_forked_child_is_refused_and_leaves_the_parents_connections_alone(
    engine: Engine,
) -> None:
    engine.put([cell(1)])
    engine.state.commit({"a": b"1"})
    calls: list[Callable[[], object]] = [
        lambda: engine.put([cell(2)]),
        lambda: engine.get([cell(1).triple]),
        lambda: engine.scan(0, 0, 10),
        engine.heads,
        engine.change_token,
        lambda: engine.state.get("a"),
        lambda: engine.state.commit({"a": b"2"}),
    ]
    pid = os.fork()
    if pid == 0:
        try:
            for call in calls:
                with pytest.raises(StorageUnavailable, match="forked"):
                    call()
            engine.close()
            gc.collect()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"the child: {error!r}\n".encode())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert engine.put([cell(1), cell(2)])[0].outcome is Outcome.EXISTS
    assert sum(head.next_added_id for head in engine.heads().values()) == 2
    entry = engine.state.get("a")
    assert entry is not None
    assert entry.value == b"1"


def test_e25_a_history_has_one_identity_for_everybody_who_opens_it(
    open_engine: EngineMaker, kind: str
) -> None:
    identity = open_engine().history.history_id
    if kind == "mysql":
        assert (
            identity == ""
        )  # a server has the identity of its cluster: tests/integration/cli/test_histories.py
        return
    assert (len(identity), int(identity, 16) > 0) == (32, True)
    assert open_engine().history.history_id == identity


def test_e13_storage_of_another_shape_is_refused(open_engine: EngineMaker, kind: str) -> None:
    open_engine().close()
    with pytest.raises(ProtectData, match="4 shards"):
        open_engine(shards=8)
    if kind == "sqlite":  # a file holds one datastore; a server may hold several
        with pytest.raises(ProtectData, match="'trips'"):
            open_engine(datastore="rides")
    open_engine().put([cell(1)])


LARGE = "x" * 1_000_000


def large(number: int, row: UUID, column: str = "BASE") -> NewCell:
    return new_cell(row, column, 1, {"n": number, "text": LARGE})


def test_e7_a_scan_ends_early_where_bodies_that_compress_well_are_large(engine: Engine) -> None:
    rows = [rows_of_shard(shard, 40) for shard in (0, 1)]
    engine.put([large(n, row) for some in rows for n, row in enumerate(some)])
    first = engine.scan(0, 0, 100)
    assert [c.added_id for c in first] == list(range(16))
    assert [c.added_id for c in engine.scan(0, 16, 3_000)] == list(range(16, 32))
    together = engine.scan_many([LogRange(0, 0, 100), LogRange(1, 5, 100), LogRange(1, 5, 300)])
    assert [[c.added_id for c in cells] for cells in together] == [
        list(range(16)),
        [*range(5, 21)],
        [5],
    ]


def test_e26_a_read_of_many_keys_ends_with_the_cell_that_fills_it(engine: Engine) -> None:
    rows = [UUID(int=number) for number in range(40)]
    engine.put([large(n, row) for n, row in enumerate(rows)])
    assert len(engine.get([Triple(row.bytes, "BASE", 1) for row in rows])) == 17
    assert len(engine.latest([(row.bytes, "BASE") for row in rows])) == 17
    assert len(engine.row([row.bytes for row in rows])) == 17
    found = engine.get([Triple(row.bytes, "BASE", 1) for row in rows[17:]])
    assert [decode_body(each.cell.body) for each in found if each] == [
        large(n, rows[n]).body_json for n in range(17, 34)
    ]


def test_e26_a_row_ends_with_the_column_that_fills_the_answer_and_goes_on_behind_it(
    engine: Engine,
) -> None:
    row, other = UUID(int=1), UUID(int=2)
    engine.put([large(n, row, f"C{n:02}") for n in range(40)])
    engine.put([large(0, other)])
    names: list[str] = []
    for _ in range(3):
        names += [
            each.cell.column_name
            for each in engine.row(
                [row.bytes, other.bytes], after_column=names[-1] if names else ""
            )[0]
        ]
    assert names == [f"C{n:02}" for n in range(40)]
    [rest, whole] = engine.row([row.bytes, other.bytes], after_column="C37")
    assert ([each.cell.column_name for each in rest], len(whole)) == (["C38", "C39"], 1)


def test_e26_large_bodies_that_do_not_compress_are_read_whole(engine: Engine) -> None:
    rows = rows_of_shard(0, 5)
    cells = [
        new_cell(row, "BASE", 1, {"n": number, "text": Random(number).randbytes(200_000).hex()})
        for number, row in enumerate(rows)
    ]
    engine.put(cells)
    found = engine.get([cell.triple for cell in [*cells, new_cell(UUID(int=99), "BASE", 1, {})]])
    assert [each and decode_body(each.cell.body) for each in found] == [
        *(cell.body_json for cell in cells),
        None,
    ]
    for limit in (3, 300, 3_000):
        assert [decode_body(cell.body) for cell in engine.scan(0, 0, limit)] == [
            cell.body_json for cell in cells[:limit]
        ]
