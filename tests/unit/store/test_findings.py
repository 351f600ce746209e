"""Findings of a check: many of one place are counted, and none is forgotten."""

from __future__ import annotations

from cellfeed.store.engines.contract.findings import NAMED_MAX, Finding, Findings


def test_findings_beyond_the_named_ones_are_counted_and_fail_the_check() -> None:
    part = Findings()
    for number in range(NAMED_MAX + 3):
        part.add("gap", "c1/a", f"hole {number}", 1)
    assert (len(part.found), part.unnamed) == (NAMED_MAX, 3)
    whole = Findings()
    whole.take(part)
    assert whole.unnamed == 3
    whole.found.clear()  # as when each of them was mended
    assert not whole.well
    assert Findings().well


def test_each_place_shard_and_kind_has_names_of_its_own() -> None:
    found = Findings()
    for _ in range(NAMED_MAX):
        found.add("gap", "c1/a", "hole", 1)
    found.add("gap", "c1/a", "hole", 2)
    found.add("gap", "c1/b", "hole", 1)
    found.add("key", "c1/a", "lost", 1)
    assert (len(found.found), found.unnamed) == (NAMED_MAX + 3, 0)


def test_the_last_id_of_a_finding_is_one_of_its_cells() -> None:
    found = Finding("gap", "c1/a", "holes", 1, range(3, 6)).as_json()
    assert (found["from"], found["to"]) == (3, 5)
