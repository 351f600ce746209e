"""Reads of logs, heads, moments and single cells (E7 to E10, E14, E16, E26)."""

from __future__ import annotations

from random import Random
from uuid import UUID, uuid4

import pytest

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import NewCell, Triple, new_cell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import UnknownShard
from tests.support.engine_steps import SCANS, SHARDS, Clock, EngineMaker, cell, rows_of_shard


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


def test_e10_the_latest_cell_has_the_highest_ref_key_in_any_order_of_puts(engine: Engine) -> None:
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


def test_e16_superseded_are_the_cells_with_a_newer_one_in_the_given_part_of_the_log(
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


def test_e26_a_row_ends_with_the_column_that_fills_the_answer_and_continues_behind_it(
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
