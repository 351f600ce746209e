"""SASL on one connection: one handshake, one authentication, and nobody who was removed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.security import authentication as module
from cellfeed.bridge.gateway.security.authentication import Authentication
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.security.access import Security, User
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.scram import make_credential
from cellfeed.store.security.users import (
    allow,
    list_acls,
    list_users,
    put_user,
    remove_user,
)

PASSWORD = "pencil"
CREDENTIALS = {
    name: make_credential(name, PASSWORD, b"s" * 16, 4096)
    for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")
}
PLAIN_TOKEN = b"\0alice\0pencil"


class Gateway:
    """The users that a connection is judged by."""

    def __init__(self) -> None:
        self.users = {"alice": User("alice", CREDENTIALS)}
        self.executor = ThreadPoolExecutor(1)
        self.connection = Authentication(
            ("PLAIN", "SCRAM-SHA-256"),
            lambda: Security(self.users, frozenset(), b"secret"),
            self.executor,
            "127.0.0.1",
        )

    def run(self, call: Coroutine[Any, Any, dict[str, Any]]) -> ErrorCode:
        error: ErrorCode = asyncio.run(call)["error_code"]
        return error

    def plain(self, token: bytes = PLAIN_TOKEN) -> ErrorCode:
        return self.run(self.connection.authenticate(token))


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setattr(module, "AUTHENTICATION_FAILED_DELAY_S", 0.1)
    made = Gateway()
    yield made
    made.executor.shutdown()


def test_a_user_authenticates_once_a_connection(gateway: Gateway) -> None:
    assert gateway.connection.handshake("PLAIN")["error_code"] is ErrorCode.none
    assert gateway.plain() is ErrorCode.none
    assert (gateway.connection.principal, gateway.connection.has_failed) == ("alice", False)
    assert gateway.plain() is ErrorCode.illegal_sasl_state, "it would be another user's turn"
    assert gateway.connection.has_failed


@pytest.mark.parametrize("first", ["PLAIN", "SCRAM-SHA-256"])
def test_a_mechanism_is_chosen_once(gateway: Gateway, first: str) -> None:
    gateway.connection.handshake(first)
    again = gateway.connection.handshake("PLAIN")
    assert again["error_code"] is ErrorCode.unsupported_sasl_mechanism
    assert gateway.connection.has_failed


def test_a_mechanism_that_the_listener_does_not_offer_is_refused(gateway: Gateway) -> None:
    told = gateway.connection.handshake("SCRAM-SHA-512")
    assert told["error_code"] is ErrorCode.unsupported_sasl_mechanism
    assert gateway.plain() is ErrorCode.illegal_sasl_state


@pytest.mark.parametrize("token", [b"\0alice\0wrong", b"\0bob\0pencil", b"eve\0alice\0pencil"])
def test_a_failed_login_is_answered_after_a_delay(gateway: Gateway, token: bytes) -> None:
    gateway.connection.handshake("PLAIN")
    began_s = time.monotonic()
    assert gateway.plain(token) is ErrorCode.sasl_authentication_failed
    assert time.monotonic() - began_s >= 0.1
    assert gateway.connection.has_failed
    assert gateway.connection.principal is None


def test_a_user_removed_between_two_messages_is_not_authenticated(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = gateway.connection
    connection.handshake("SCRAM-SHA-256")
    assert gateway.run(connection.authenticate(b"n,,n=alice,r=abc")) is ErrorCode.none
    scram = connection._scram
    assert scram is not None
    monkeypatch.setattr(scram, "final", lambda _token: b"v=fits")
    del gateway.users["alice"]
    assert gateway.run(connection.authenticate(b"")) is ErrorCode.sasl_authentication_failed
    assert connection.principal is None


def last_message(first: bytes, challenge: bytes, password: str) -> bytes:
    """The last message of a client of SCRAM-SHA-256."""
    nonce, salt, iterations = (part[2:] for part in challenge.split(b",", 2))
    without_proof = b"c=biws,r=" + nonce
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b64decode(salt), int(iterations))
    key = hmac.digest(salted, b"Client Key", "sha256")
    signed = b",".join((first, challenge, without_proof))
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(mine ^ theirs for mine, theirs in zip(key, signature, strict=True))
    return without_proof + b",p=" + b64encode(proof)


@pytest.mark.parametrize(
    ("user", "password", "principal"),
    [("alice", PASSWORD, "alice"), ("alice", "other", None), ("bob", PASSWORD, None)],
)
def test_a_user_with_the_right_password_is_authenticated_by_scram(
    gateway: Gateway, user: str, password: str, principal: str | None
) -> None:
    connection = gateway.connection
    assert not gateway.connection.has_failed
    connection.handshake("SCRAM-SHA-256")
    first = f"n={user},r=abc".encode()
    challenge = asyncio.run(connection.authenticate(b"n,," + first))["auth_bytes"]
    assert gateway.connection.principal is None
    answer = asyncio.run(connection.authenticate(last_message(first, challenge, password)))
    assert connection.principal == principal
    assert connection.has_failed is (principal is None)
    if principal:
        assert answer["auth_bytes"].startswith(b"v=")
        assert answer["session_lifetime"] == 0  # none: no client has to come again


def test_two_exchanges_have_two_nonces() -> None:
    """Or one who has heard the messages of one could send them again."""
    challenges = set()
    for _ in range(2):
        other = Gateway()
        other.connection.handshake("SCRAM-SHA-256")
        challenges.add(
            asyncio.run(other.connection.authenticate(b"n,,n=alice,r=abc"))["auth_bytes"]
        )
        other.executor.shutdown()
    assert len(challenges) == 2


def test_no_password_authenticates_an_unknown_user(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_password", lambda *_: True)
    gateway.connection.handshake("PLAIN")
    assert gateway.plain(b"\0bob\0pencil") is ErrorCode.sasl_authentication_failed


def test_of_two_operators_that_add_a_user_at_once_one_gets_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as state:
        get = state.get

        def overtaken(key: str) -> Any:
            found = get(key)
            monkeypatch.undo()
            put_user(state, "alice", "theirs", is_new=True)
            return found

        monkeypatch.setattr(state, "get", overtaken)
        with pytest.raises(InvalidRequest, match="at the same moment"):
            put_user(state, "alice", "mine", is_new=True)


def test_a_later_user_of_a_name_begins_without_rights(tmp_path: Path) -> None:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as state:
        for name in ("alice", "bob"):
            put_user(state, name, PASSWORD, is_new=True)
            allow(state, Acl(name, "topic", "trips", "read"))
        assert remove_user(state, "alice") == 1
        put_user(state, "alice", PASSWORD, is_new=True)
        assert [user.name for user in list_users(state)] == ["alice", "bob"]
        assert [acl.principal for acl in list_acls(state)] == ["bob"]


@pytest.mark.parametrize(
    ("users", "acls", "is_open"),
    [
        ({}, (), True),
        ({"alice": User("alice", CREDENTIALS)}, (), False),
        ({}, (Acl("alice", "topic", "trips", "read"),), False),
    ],
)
def test_all_requests_are_permitted_only_where_there_are_neither_users_nor_acls(
    users: dict[str, User], acls: tuple[Acl, ...], is_open: bool
) -> None:
    security = Security(users, frozenset(acls), b"")
    assert security.may("bob", "topic", "trips", "read") is is_open
