"""The role: what it remembers of promotions, and which of two is believed."""

from __future__ import annotations

from store.clusters.roles import PROMOTIONS_KEPT, Role, newest

FIRST = Role("c1", "a", 0, ["b", "c"])


def test_the_first_promotion_that_a_node_has_not_heard_of_is_the_limit_of_what_it_shares() -> None:
    role = FIRST.promoted("b", ["c"], "0-1-10").promoted("c", ["b"], "0-2-50").promoted("b", ["c"], "0-3-70")
    assert (role.master, role.epoch, role.minions) == ("b", 3, ["c"])
    assert [role.promotion_after(epoch) for epoch in (0, 1, 2, 3)] == ["0-1-10", "0-2-50", "0-3-70", None]


def test_promotions_that_are_not_remembered_any_more_limit_a_node_to_nothing() -> None:
    role = FIRST
    for number in range(PROMOTIONS_KEPT + 2):
        role = role.promoted("b", ["c"], f"0-1-{number}")
    assert len(role.promotions) == PROMOTIONS_KEPT
    assert (role.promotion_after(0), role.promotion_after(1), role.promotion_after(2)) == ("", "", "0-1-2")


def test_of_two_roles_the_higher_epoch_is_believed_and_within_one_that_with_more_minions() -> None:
    later = FIRST.promoted("b", ["c"], "0-1-10")
    grown = later.with_minion("a", semi_sync=False)
    assert newest([FIRST, None, grown, later]) == newest([later, grown, FIRST]) == grown
    assert grown.with_minion("a", semi_sync=False) is grown
    assert newest([None]) is None
