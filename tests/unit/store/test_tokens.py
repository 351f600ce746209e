"""Tokens: the text and the value are the same, merging keeps every place, and no token of another
history is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.cells.token import Places, Token, token_text
from cellfeed.store.errors import InvalidRequest, OtherHistory, StorageUnavailable, UnknownShard
from cellfeed.store.limits import ADDED_ID_MAX, SHARDS_STORED_MAX

HISTORY = "0123456789abcdef0123456789abcdef"
ids = st.integers(0, ADDED_ID_MAX)
single = st.builds(
    lambda shard, added_id: token_text(HISTORY, shard, added_id),
    st.integers(0, 20) | st.integers(0, SHARDS_STORED_MAX - 1),
    st.integers(0, 50) | ids,
)


def covers(token: Token, single: Token) -> bool:
    [place] = single.places
    return any(
        each.shard == place.shard and each.first <= place.first and place.last <= each.last
        for each in token.places
    )


@given(st.lists(single, min_size=1, max_size=12))
def test_a_merged_token_has_every_place_and_no_other_shard(texts: list[str]) -> None:
    token = Token.of(texts)
    parts = [Token.parse(text) for text in texts]

    assert Token.parse(str(token)) == token
    assert all(covers(token, part) for part in parts)
    assert [each.shard for each in token.places] == sorted({part.places[0].shard for part in parts})
    for each in token.places:
        of_shard = [part.places[0].first for part in parts if part.places[0].shard == each.shard]
        assert (each.first, each.last) == (min(of_shard), max(of_shard))


def test_the_text_of_a_token_is_history_shard_and_added_id() -> None:
    assert token_text(HISTORY, 3, 17) == f"{HISTORY}:3.17"
    assert str(Token(HISTORY, (Places(3, 17, 20), Places(5, 1, 1)))) == f"{HISTORY}:3.17-20,5.1"
    assert str(Token.of([f"{HISTORY}:5.1", f"{HISTORY}:3.20", f"{HISTORY}:3.17"])) == (
        f"{HISTORY}:3.17-20,5.1"
    )


def test_a_token_of_a_store_without_identities_is_one_too() -> None:
    assert Token.parse(":3.17") == Token("", (Places(3, 17, 17),))


@pytest.mark.parametrize(
    "text",
    [
        "",
        HISTORY,
        f"{HISTORY}:3",
        f"{HISTORY}:3.",
        f"{HISTORY}:3.17,",
        f"{HISTORY}:3.17-16",
        f"{HISTORY}:-3.17",
        f"{HISTORY}:3.١٧",
        f"{HISTORY}:{SHARDS_STORED_MAX}.1",
        f"{HISTORY}:1.{ADDED_ID_MAX + 1}",
        f" {HISTORY}:3.17",
        f"{HISTORY}:3.17\n",
        "a:b:3.17",
        b"x:3.17",
        None,
        17,
    ],
)
def test_an_invalid_token_is_refused_with_the_right_form(text: object) -> None:
    with pytest.raises(InvalidRequest, match="token"):
        Token.of(text)


def test_a_token_of_another_history_is_refused_with_both_ids() -> None:
    token = Token.parse(f"{HISTORY}:3.17")

    token.check(HISTORY, 16)
    for other in ("b" * 32, ""):
        with pytest.raises(OtherHistory, match=HISTORY) as refused:
            token.check(other, 16)
        assert (other or "(none)") in str(refused.value)
        with pytest.raises(OtherHistory, match=HISTORY):
            token.merge(Token(other, token.places))
    with pytest.raises(UnknownShard, match="shard 3"):
        token.check(HISTORY, 3)


def test_results_have_a_token_exactly_where_they_have_a_place() -> None:
    stored = PutResult(Outcome.STORED, 3, 17).with_token(HISTORY)
    exists = PutResult(Outcome.EXISTS, 3, 12).with_token(HISTORY)

    assert stored.token == f"{HISTORY}:3.17"
    assert str(Token.of([stored, exists])) == f"{HISTORY}:3.12-17"
    for without in (
        PutResult(Outcome.BUFFERED, 3),
        PutResult(Outcome.FAILED, 3, error=StorageUnavailable("away")),
    ):
        assert without.with_token(HISTORY).token is None
        with pytest.raises(InvalidRequest, match=without.outcome.value):
            Token.of([stored, without.with_token(HISTORY)])
