"""When a unit of an export looks for its next cells."""

from __future__ import annotations

import pytest

from cellfeed.bridge.export.pace import Pace

TIMES = 50


def paced(look_s: float, transaction_s: float, pace: Pace | None = None) -> Pace:
    pace = pace or Pace()
    for _ in range(TIMES):
        pace.looked(look_s)
        pace.committed(transaction_s)
    return pace


@pytest.mark.parametrize(
    ("look_s", "transaction_s", "meanwhile"),
    [
        pytest.param(0.000_12, 0.003_7, False, id="embedded"),
        pytest.param(0.001_4, 0.006_5, True, id="one server"),
        pytest.param(0.003, 0.007, True, id="three servers"),
        pytest.param(0.001_4, 0.060, False, id="a broker far away"),
    ],
)
def test_a_unit_looks_while_it_commits_where_looks_take_a_large_part_of_a_transaction(
    look_s: float, transaction_s: float, meanwhile: bool
) -> None:
    assert paced(look_s, transaction_s).looks_meanwhile is meanwhile


def test_a_unit_does_not_look_while_it_commits_before_both_times_were_measured() -> None:
    pace = Pace()
    assert not pace.looks_meanwhile
    pace.looked(1.0)
    assert not pace.looks_meanwhile
    pace.committed(0.004)
    assert pace.looks_meanwhile


def test_a_store_that_becomes_slower_or_faster_is_followed() -> None:
    pace = paced(0.000_1, 0.004)
    assert paced(0.002, 0.004, pace).looks_meanwhile
    assert not paced(0.000_1, 0.004, pace).looks_meanwhile


def test_one_slow_transaction_does_not_change_the_pace() -> None:
    pace = paced(0.001_4, 0.005)
    pace.committed(0.05)
    assert pace.looks_meanwhile
