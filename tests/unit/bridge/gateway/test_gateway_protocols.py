"""The protocol of a group: one that every member supports."""

from __future__ import annotations

from cellfeed.bridge.gateway.groups.members import JoinRequest, Member, common_protocols, vote


def member(name: str, *protocols: str) -> Member:
    listed = tuple((each, b"") for each in protocols)
    request = JoinRequest(name, None, "client", "host", 10, 10, "consumer", listed, 5)
    return Member(name, request, 0.0)


def test_a_protocol_that_one_member_lacks_is_not_chosen_though_most_like_it_best() -> None:
    """That member could not read its partitions."""
    members = [
        member("a", "sticky", "range"),
        member("b", "sticky", "range"),
        member("c", "range", "other"),
    ]
    assert common_protocols(members) == {"range"}
    assert vote(members) == "range"
