"""Trails of followers, and the arguments of ``follow``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.cells.token import Token
from cellfeed.store.followed import Here, Trail


@given(st.lists(st.integers(0, 5), max_size=900))
def test_a_place_of_a_trail_keeps_its_token_however_far_the_trail_goes(shards: list[int]) -> None:
    trail, positions = Trail("h", {0: 7}), {0: 7}
    places: list[tuple[Here, Token]] = []
    for shard in shards:
        positions[shard] = positions.get(shard, 0) + 1
        trail.move(shard, positions[shard])
        places.append((trail.here(), Token.passed("h", positions)))
    assert trail.positions == positions
    assert all(here.token() == expected for here, expected in places)


def test_a_follower_that_has_passed_nothing_has_a_token_too() -> None:
    token = Trail("h", {3: 0}).here().token()
    assert str(token) == "h:"
    assert Token.parse("h:") == token
    assert str(token.merge(Token.parse("h:1.5"))) == "h:1.5"
