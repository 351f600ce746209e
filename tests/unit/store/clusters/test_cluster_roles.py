"""The role: its memory of promotions, and which of two is believed."""

from __future__ import annotations

from cellfeed.store.clusters.model.roles import PROMOTIONS_KEPT, Role, newest

FIRST = Role("c1", "a", 0, ["b", "c"])


def test_a_node_shares_history_up_to_the_first_promotion_that_it_missed() -> None:
    role = (
        FIRST.promoted("b", ["c"], "0-1-10", 1)
        .promoted("c", ["b"], "0-2-50", 4)
        .promoted("b", ["c"], "0-3-70", 5)
    )
    assert (role.master, role.epoch, role.minions) == ("b", 5, ["c"])
    assert [role.promotion_after(epoch) for epoch in (0, 1, 4, 5)] == [
        "0-1-10",
        "0-2-50",
        "0-3-70",
        None,
    ]


def test_an_epoch_that_was_raised_and_followed_by_nobody_shares_nothing_with_the_role() -> None:
    """Epochs 2 and 3 were raised on nodes that died; their positions say nothing about the cells
    that they have in common with the others."""
    role = FIRST.promoted("b", ["c"], "0-1-10", 1).promoted("c", ["b"], "0-2-50", 4)
    assert [role.promotion_after(epoch) for epoch in (2, 3, 7)] == ["", "", ""]
    restored = Role("c1", "a", 1_000, ["b"], first_epoch=1_000).promoted(
        "b", ["a"], "0-1-10", 1_001
    )
    assert [restored.promotion_after(epoch) for epoch in (0, 999, 1_000)] == ["", "", "0-1-10"]


def test_promotions_that_are_not_remembered_any_more_limit_a_node_to_nothing() -> None:
    role = FIRST
    for number in range(PROMOTIONS_KEPT + 2):
        role = role.promoted("b", ["c"], f"0-1-{number}", number + 1)
    assert len(role.promotions) == PROMOTIONS_KEPT
    assert [role.promotion_after(epoch) for epoch in (0, 1, 2, 3)] == ["", "", "", "0-1-3"]


def test_of_two_roles_the_higher_epoch_wins_and_within_one_the_role_with_more_minions() -> None:
    later = FIRST.promoted("b", ["c"], "0-1-10", 1)
    grown = later.with_minion("a", semi_sync=False)
    assert newest([FIRST, None, grown, later]) == newest([later, grown, FIRST]) == grown
    assert grown.with_minion("a", semi_sync=False) is grown
    assert newest([None]) is None


def test_only_the_first_minion_begins_semi_synchronous_replication() -> None:
    """Later it is a change of the mode, which raises the epoch: a write under the old one would be
    answered without a minion."""
    alone = Role("c1", "a", 3)
    assert alone.with_minion("b", semi_sync=True).semi_sync
    assert not alone.with_minion("b", semi_sync=False).semi_sync
    asynchronous = Role("c1", "a", 3, ["b"])
    assert asynchronous.with_minion("c", semi_sync=True) == Role("c1", "a", 3, ["b", "c"])
