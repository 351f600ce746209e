"""Tokens: the stored part of them, and the time while they count."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import InvalidRequest, NotFound
from cellfeed.store.security.scram import AuthenticationFailed
from cellfeed.store.security.tokens import (
    create_token,
    list_tokens,
    revoke_token,
    token_of,
    without_secrets,
)
from cellfeed.store.security.users import open_access, put_user, read_security, remove_user


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as opened:
        yield opened


def test_nothing_that_is_stored_or_shown_has_the_secret(state: SqliteState) -> None:
    text = create_token(state, "alice", 60)
    assert re.fullmatch(r"cft_[0-9a-f]{12}_[0-9a-f]{64}", text)
    secret = text.rpartition("_")[2]
    assert not any(secret.encode() in entry.value for entry in state.list("security/"))
    assert secret not in repr(list_tokens(state)) + repr(read_security(state).tokens)
    assert without_secrets(f"it is {text}!") == f"it is {text[:16]}…!"


def test_a_token_counts_until_it_expires_or_is_revoked(state: SqliteState) -> None:
    text = create_token(state, "alice", 60)
    tokens = read_security(state).tokens
    assert token_of(tokens, text, time.time()).principal == "alice"
    with pytest.raises(AuthenticationFailed, match="expired"):
        token_of(tokens, text, time.time() + 61)
    revoke_token(state, text.split("_")[1])
    with pytest.raises(AuthenticationFailed, match="no such token"):
        token_of(read_security(state).tokens, text, time.time())
    with pytest.raises(NotFound):
        revoke_token(state, "../users/x")


@pytest.mark.parametrize("change", [lambda t: t[:-1] + "x", lambda t: t[:-1], lambda t: t + "0"])
def test_another_secret_with_the_id_of_a_token_does_not_count(
    state: SqliteState, change: object
) -> None:
    text = create_token(state, "alice", None)
    other = change(text)  # type: ignore[operator]
    flipped = text[:-1] + ("0" if text[-1] != "0" else "1")
    for each in (other, flipped, "", text.upper()):
        with pytest.raises(AuthenticationFailed) as failed:
            token_of(read_security(state).tokens, each, time.time())
        assert text.rpartition("_")[2][:8] not in str(failed.value)


def test_the_first_token_closes_access_and_revoking_it_opens_nothing(state: SqliteState) -> None:
    assert read_security(state).is_open
    text = create_token(state, "alice", None)
    assert not read_security(state).is_open
    with pytest.raises(InvalidRequest, match="1 users, tokens and ACLs"):
        open_access(state)
    revoke_token(state, text)
    assert not read_security(state).is_open
    open_access(state)
    assert read_security(state).is_open


def test_a_removed_user_takes_the_tokens_along(state: SqliteState) -> None:
    put_user(state, "alice", "password", is_new=True)
    create_token(state, "alice", None)
    other = create_token(state, "bob", None)
    remove_user(state, "alice")
    assert [token.principal for token in list_tokens(state)] == ["bob"]
    assert token_of(read_security(state).tokens, other, time.time()).principal == "bob"


@pytest.mark.parametrize("name", ["", "*", "a\nb", "\u202eevil"])
def test_a_principal_that_nobody_can_read_gets_no_token(state: SqliteState, name: str) -> None:
    with pytest.raises(InvalidRequest):
        create_token(state, name, None)
    with pytest.raises(InvalidRequest):
        create_token(state, "alice", 0)


def test_a_token_that_cannot_be_read_lets_nobody_in(state: SqliteState) -> None:
    state.commit({"security/tokens/000000000000": b"{"})
    found = read_security(state)
    assert not found.is_open
    assert found.unreadable == {"security/tokens/000000000000"}
    assert list_tokens(state) == []
