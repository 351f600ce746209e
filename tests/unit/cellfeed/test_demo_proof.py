"""The demo's proof: every figure that is off, in any place, makes its own line false, and no
other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cellfeed.demo.proof import Line, Seen, dollars, proof
from cellfeed.loading.taxi import TaxiFigures
from cellfeed.verify.report import ShardVerdict, VerifyReport

EXPECTED = TaxiFigures(
    trips=100,
    base_cells=100,
    notes_cells=7,
    fare_adjustment_cells=9,
    card_trips=70,
    card_cents=123_456,
    cash_trips=29,
    cash_cents=65_432,
    other_trips=1,
)
PLACES = ["store", "Kafka", "warehouse"]


def verdict(shard: int, **changes: Any) -> ShardVerdict:
    same: dict[str, Any] = {
        "shard": shard,
        "from_id": 0,
        "below_id": 54,
        "digests": dict.fromkeys(PLACES, "d1"),
        "cells": dict.fromkeys(PLACES, 54),
        "next_ids": dict.fromkeys(PLACES, 54),
    }
    return ShardVerdict(**{**same, **changes})


SEEN = Seen(
    cells_by_column={"BASE": 100, "NOTES": 7, "FARE_ADJUSTMENT": 9, "STATUS": 100},
    records_by_offset=216,
    warehouse_rows=216,
    charges=70,
    charged_cents=123_456,
    warehouse_charged_cents=123_456,
    cash_cents=65_432,
    digests=VerifyReport(PLACES, [verdict(shard) for shard in range(4)]),
)


def false_lines(seen: Seen) -> list[str]:
    return [line.what for line in proof(EXPECTED, seen) if not line.agrees]


def test_the_proof_of_an_expected_demo_passes_in_every_line() -> None:
    assert len(proof(EXPECTED, SEEN)) == 9
    assert false_lines(SEEN) == []


@pytest.mark.parametrize(
    ("changes", "false"),
    [
        ({"records_by_offset": 215}, ["cells, records, rows"]),
        ({"warehouse_rows": 217}, ["cells, records, rows"]),
        ({"charges": 71}, ["card charges"]),
        ({"charged_cents": 123_457}, ["charged"]),
        ({"warehouse_charged_cents": 123_455}, ["charged"]),
        ({"cash_cents": 65_431}, ["paid in cash"]),
    ],
)
def test_one_figure_that_is_off_by_one_makes_its_line_false(
    changes: dict[str, Any], false: list[str]
) -> None:
    assert false_lines(replace(SEEN, **changes)) == false


@pytest.mark.parametrize(
    ("column", "false"),
    [
        ("BASE", "trips (BASE cells)"),
        ("NOTES", "NOTES cells"),
        ("FARE_ADJUSTMENT", "FARE_ADJUSTMENT cells"),
        ("STATUS", "settled trips (STATUS cells)"),
    ],
)
@pytest.mark.parametrize("by", [-1, 1])
def test_one_cell_more_or_less_of_a_column_makes_two_lines_false(
    column: str, false: str, by: int
) -> None:
    counts = {**SEEN.cells_by_column, column: SEEN.cells_by_column[column] + by}
    assert false_lines(replace(SEEN, cells_by_column=counts)) == [false, "cells, records, rows"]


def test_a_cell_for_another_is_found_although_the_sum_is_right() -> None:
    counts = {**SEEN.cells_by_column, "NOTES": 8, "FARE_ADJUSTMENT": 8}
    assert false_lines(replace(SEEN, cells_by_column=counts)) == [
        "NOTES cells",
        "FARE_ADJUSTMENT cells",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"digests": {"store": "d1", "Kafka": "d1", "warehouse": "d2"}},
        {"cells": {"store": 54, "Kafka": 53, "warehouse": 54}},
        {"next_ids": {"store": 55, "Kafka": 54, "warehouse": 54}},
    ],
)
def test_one_shard_that_differs_or_lags_in_one_place_makes_the_digests_false(
    changes: dict[str, Any],
) -> None:
    report = VerifyReport(PLACES, [verdict(0), verdict(1, **changes), verdict(2), verdict(3)])
    assert false_lines(replace(SEEN, digests=report)) == ["shards with one digest everywhere"]


def test_a_proof_over_no_shard_fails_for_cells_that_must_be_there() -> None:
    empty = replace(
        SEEN,
        digests=VerifyReport(PLACES),
        cells_by_column={},
        records_by_offset=0,
        warehouse_rows=0,
    )
    assert "cells, records, rows" in false_lines(empty)


@pytest.mark.parametrize(
    ("cents", "text"), [(0, "$0.00"), (5, "$0.05"), (123_456_789, "$1,234,567.89")]
)
def test_amounts_are_printed_to_the_cent(cents: int, text: str) -> None:
    assert dollars(cents) == text


def test_a_proof_line_with_one_differing_figure_fails() -> None:
    assert Line("cells", {"a": "1", "b": "1"}).agrees
    assert not Line("cells", {"a": "1", "b": "1", "c": "2"}).agrees


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_the_command_exits_with_the_verdict_of_its_proof(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, holds: bool, code: int
) -> None:
    from typer.testing import CliRunner

    from cellfeed.cli.main import command_line

    lines = [
        Line("right", {"a": "1", "b": "1"}),
        Line("cells", {"a": "1", "b": "1" if holds else "2"}),
    ]
    ended: list[str] = []
    for name, stand_in in (
        ("cellfeed.cli.demo.end_at_signals", list),
        ("cellfeed.cli.demo.start_all", lambda *_: None),
        ("cellfeed.cli.demo.run_demo", lambda *_: lines),
        ("cellfeed.cli.demo._once_it_ended", lambda _: [("true", "nothing")]),
        ("cellfeed.cli.demo.stop_all", lambda *_: ended.append("all")),
    ):
        monkeypatch.setattr(name, stand_in)
    assert (
        CliRunner()
        .invoke(command_line("demo"), ["demo", "--run-dir", str(tmp_path / "demo-run")])
        .exit_code
        == code
    )
    assert ended == ["all"]
