"""Each check of a fault run finds its own violation, and passes when there is none."""

from __future__ import annotations

from uuid import UUID

from tests.faults.invariants import (
    Seen,
    check_definite,
    check_gapless,
    check_log,
    check_once_per_cell,
    check_reader,
    check_run_or_parked,
    check_watermarks,
    merge,
)
from tests.faults.ledger import Ledger, Put


def put(
    number: int,
    added_id: int | None,
    begun_s: float,
    answered_s: float | None,
    outcome: str = "stored",
) -> Put:
    return Put(UUID(int=number), "BASE", 1, b"{}", begun_s, outcome, 0, added_id, answered_s)


def seen(number: int, added_id: int, body: bytes = b"{}") -> Seen:
    return Seen(added_id, UUID(int=number), "BASE", 1, body)


GOOD = Ledger([put(0, 0, 0.0, 1.0), put(1, 1, 0.5, 2.0), put(2, None, 1.5, None, "unknown")])
LOG = {0: [seen(0, 0), seen(1, 1)]}


def found(violations: dict[str, list[str]]) -> set[str]:
    return {name for name, sentences in violations.items() if sentences}


def test_a_right_log_has_no_violation_with_or_without_the_unknown_cell() -> None:
    assert found(check_log(GOOD, LOG)) == set()
    assert found(check_log(GOOD, {0: [*LOG[0], seen(2, 2)]})) == set()


def test_each_violation_of_the_log_is_found() -> None:
    assert found(check_log(GOOD, {0: LOG[0][:1]})) == {"I1"}
    assert found(check_log(GOOD, {0: [*LOG[0], seen(9, 2)]})) == {"I2"}
    assert found(check_log(GOOD, {0: [seen(0, 0), seen(1, 1, b'{"a":1}')]})) == {"I2"}
    assert found(check_log(GOOD, {0: [seen(0, 0), seen(1, 2)]})) == {"I4"}
    assert found(check_log(GOOD, {0: LOG[0], 1: [seen(0, 0)]})) == {"I4", "I5"}
    refused = Ledger([put(3, None, 1.5, 2.0, "failed")])
    assert (
        found(check_definite(refused, LOG))
        == found(check_definite(GOOD, {0: [*LOG[0], seen(2, 2)]}))
        == set()
    )
    assert found(check_definite(refused, {0: [*LOG[0], seen(3, 2)]})) == {"E6"}
    late = Ledger([put(0, 1, 0.0, 1.0), put(1, 0, 2.0, 3.0)])
    assert found(check_log(late, {0: [seen(1, 0), seen(0, 1)]})) == {"I12"}


def test_each_violation_of_a_reader_is_found() -> None:
    assert found(check_reader(LOG, LOG, "r")) == set()
    assert found(check_reader(LOG, {0: [seen(1, 1), seen(0, 0)]}, "r")) == {"I6", "I7"}
    assert found(check_reader(LOG, {0: [seen(1, 1)]}, "r")) == {"I7", "I8"}
    assert found(check_reader(LOG, {0: [seen(0, 0)]}, "r")) == {"I8"}
    assert found(check_reader(LOG, {0: [seen(0, 0), seen(2, 1)]}, "r")) == {"I3"}
    assert found(check_reader(LOG, {}, "r")) == {"I8"}


def test_holes_falls_and_effects_that_are_missing_or_double_are_found() -> None:
    assert found(check_gapless(LOG)) == set()
    assert found(check_gapless({0: [seen(0, 0), seen(1, 2)]})) == {"I7"}
    assert found(check_watermarks([{0: 1}, {0: 2}, {0: 2}])) == set()
    assert found(check_watermarks([{0: 2}, {0: 1}])) == {"I9"}
    assert found(check_once_per_cell(["a", "b"], ["b", "a"], "charge")) == set()
    for effects in (["a"], ["a", "b", "b"], ["a", "b", "c"]):
        assert found(check_once_per_cell(["a", "b"], effects, "charge")) == {"I16"}
    assert found(check_run_or_parked(["a", "b"], ["a"], ["b"])) == set()
    assert found(check_run_or_parked(["a", "b"], ["a"], [])) == {"I14"}
    assert found(check_run_or_parked(["a", "b"], ["a", "b"], ["b"])) == {"I14"}
    assert merge({"I1": ["x"]}, {"I1": ["y"], "I2": []}) == {"I1": ["x", "y"], "I2": []}
