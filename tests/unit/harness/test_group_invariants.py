"""Each check of a group under kills finds its own violation, so none is a check that cannot
fail."""

from __future__ import annotations

from tests.faults.group_members import GroupLedger, Resumed, check_group


def found(ledger: GroupLedger, ends: dict[int, int]) -> set[str]:
    return {name for name, violations in check_group(ledger, ends).items() if violations}


def good() -> GroupLedger:
    """Partition 0 read to 4: committed at 2, begun again there by another member."""
    resumed = [Resumed("first", 0, 0, 0, 0), Resumed("second", 0, 2, 2, 2)]
    return GroupLedger(
        handled={0: [0, 1, 2, 2, 3]}, resumed=resumed, acknowledged={0: 4}, attempted={0: 4}
    )


def test_a_group_that_resumed_from_its_commits_has_no_violation() -> None:
    assert found(good(), {0: 4, 1: 0}) == set()


def test_an_unanswered_commit_may_stand_or_not() -> None:
    for offset in (2, 3):
        ledger = good()
        ledger.resumed.append(Resumed("first", 0, offset, 2, 3))
        assert found(ledger, {0: 4}) == set()


def test_a_lost_commit_is_found() -> None:
    ledger = good()
    ledger.resumed.append(Resumed("first", 0, 1, 2, 2))
    assert found(ledger, {0: 4}) == {"I20"}


def test_a_start_behind_every_commit_is_found() -> None:
    ledger = good()
    ledger.resumed.append(Resumed("first", 0, 3, 2, 2))
    assert found(ledger, {0: 4}) == {"I14"}


def test_a_position_over_records_that_nobody_handled_is_found() -> None:
    ledger = good()
    ledger.handled[0].remove(1)
    assert found(ledger, {0: 4}) == {"I14", "I8"}


def test_an_unread_and_a_skipped_cell_are_found() -> None:
    assert found(good(), {0: 5}) == {"I8"}
    ledger = good()
    ledger.gaps.append("first: 0 went from 1 to 3")
    assert found(ledger, {0: 4}) == {"I7"}
