"""Puts: atomic, durable, in order and once for each triple (E1 to E6, E24)."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import zstandard

from cellfeed.store.cells.body_codec import CODEC_JSON_ZSTD, CODEC_MSGPACK_ZLIB, decode_body
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import CellConflict, DataDamaged, ProtectData
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, set_failpoint
from tests.support.engine_steps import SHARDS, Clock, EngineMaker, cell, log, rows_of_shard
from tests.support.local_mysql import EMPTY


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


def test_e3_a_repeated_cell_gets_its_first_id_and_uses_up_no_new_one(engine: Engine) -> None:
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
def test_e24_a_put_that_meets_a_damaged_body_fails_without_failing_others(
    open_engine: EngineMaker, request: pytest.FixtureRequest, tmp_path: Path, damaged: bytes
) -> None:
    engine = open_engine()
    hurt = cell(1)
    engine.put([hurt, cell(2)])
    heads, shard = engine.heads(), shard_of(hurt.row_key, SHARDS)
    if fixture := EMPTY.get(request.node.callspec.params["open_engine"]):
        server = request.getfixturevalue(fixture)
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


def test_e4_created_at_of_an_erasures_entry_never_goes_back(engine: Engine, clock: Clock) -> None:
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


def test_e6_a_failed_put_uses_up_no_id_and_the_engine_continues(engine: Engine, kind: str) -> None:
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
