"""Users and ACLs in the state table: which names, passwords and patterns there can be, which rights
each of them gives, and the secret that all gateways share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import InvalidRequest, NotFound
from cellfeed.store.limits import PASSWORD_BYTES_MAX, PRINCIPAL_BYTES_MAX
from cellfeed.store.security.rights import Acl, Rights
from cellfeed.store.security.scram import is_password
from cellfeed.store.security.users import (
    allow,
    list_acls,
    list_users,
    open_access,
    put_user,
    read_security,
    remove_acl,
    remove_user,
)

READS = Acl("alice", "topic", "trips", "read")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as opened:
        yield opened


def passwords(state: SqliteState, name: str) -> list[str]:
    """Which of two passwords each mechanism takes."""
    [user] = [user for user in list_users(state) if user.name == name]
    return [
        password
        for mechanism, credential in user.credentials.items()
        for password in ("old", "new")
        if is_password(mechanism, credential, password)
    ]


def test_a_user_is_added_once_and_only_an_existing_one_gets_another_password(
    state: SqliteState,
) -> None:
    with pytest.raises(NotFound, match="no user 'alice'"):
        put_user(state, "alice", "new", is_new=False)
    assert list_users(state) == []
    put_user(state, "alice", "old", is_new=True)
    with pytest.raises(InvalidRequest, match="there already"):
        put_user(state, "alice", "new", is_new=True)
    assert passwords(state, "alice") == ["old", "old"]
    put_user(state, "alice", "new", is_new=False)
    assert passwords(state, "alice") == ["new", "new"]
    with pytest.raises(NotFound, match="no user 'bob'"):
        remove_user(state, "bob")


@pytest.mark.parametrize("password", ["x", "é" * (PASSWORD_BYTES_MAX // 2)])
def test_a_password_of_the_longest_and_the_shortest_length_is_taken(
    state: SqliteState, password: str
) -> None:
    put_user(state, "alice", password, is_new=True)


@pytest.mark.parametrize("password", ["", "a\0b", "é" * (PASSWORD_BYTES_MAX // 2) + "x"])
def test_a_password_that_no_client_could_send_is_refused(state: SqliteState, password: str) -> None:
    with pytest.raises(InvalidRequest, match="a password has"):
        put_user(state, "alice", password, is_new=True)
    assert list_users(state) == []


@pytest.mark.parametrize(
    "name", ["", "é" * (PRINCIPAL_BYTES_MAX // 2) + "xy", "a\nb", "\udcff", "a\0b"]
)
def test_a_name_that_cannot_be_shown_or_is_too_long_is_refused(
    state: SqliteState, name: str
) -> None:
    with pytest.raises(InvalidRequest, match="a name has"):
        put_user(state, name, "old", is_new=True)
    with pytest.raises(InvalidRequest, match="a name has"):
        allow(state, Acl(name, "topic", "trips", "read"))
    assert (list_users(state), list_acls(state)) == ([], [])


def test_a_name_of_the_longest_length_is_taken(state: SqliteState) -> None:
    longest = "é" * (PRINCIPAL_BYTES_MAX // 2) + "x"
    put_user(state, longest, "old", is_new=True)
    allow(state, Acl(longest, "topic", "trips", "read"))
    assert [user.name for user in list_users(state)] == [longest]


@pytest.mark.parametrize(
    "acl",
    [
        Acl("alice", "topic", "trips", "delete"),
        Acl("alice", "topic", "trips", "write"),
        Acl("alice", "cluster", "trips", "read"),
        Acl("alice", "topic", "", "read"),
        Acl("alice", "topic", "tr*ps", "read"),
        Acl("alice", "topic", "trips**", "read"),
    ],
)
def test_a_right_without_a_meaning_is_refused(state: SqliteState, acl: Acl) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be allowed|a prefix with one"):
        allow(state, acl)
    assert list_acls(state) == []
    assert read_security(state).is_open


@pytest.mark.parametrize(
    ("pattern", "name", "covers"),
    [
        ("trips", "trips", True),
        ("trips", "trips2", False),
        ("trips", "trip", False),
        ("trips*", "trips", True),
        ("trips*", "trips.2", True),
        ("trips*", "trip", False),
        ("trips*", "tripz", False),
        ("*", "anything", True),
    ],
)
def test_a_pattern_is_a_name_or_a_prefix(pattern: str, name: str, covers: bool) -> None:
    rights = Rights([Acl("alice", "topic", pattern, "read")])
    assert rights.may("alice", "topic", name, "read") is covers


def test_a_right_applies_to_its_principal_kind_and_operation_alone(state: SqliteState) -> None:
    allow(state, READS)
    allow(state, READS)
    security = read_security(state)
    assert security.may("alice", "topic", "trips", "read")
    assert security.may("alice", "topic", "trips", "describe")
    assert not security.may("alice", "group", "trips", "read")
    assert not security.may("alice", "group", "trips", "delete")
    assert not security.may("bob", "topic", "trips", "describe")
    assert security.acls_of("alice") == [READS]
    assert security.acls_of("bob") == []


def test_a_revoked_right_is_gone_and_others_stay(state: SqliteState) -> None:
    others = [Acl("alice", "topic", "trips", "describe"), Acl("bob", "topic", "trips", "read")]
    for acl in (READS, *others):
        allow(state, acl)
    remove_acl(state, READS)
    assert list_acls(state) == others
    with pytest.raises(NotFound, match="no ACL allows 'alice' to read"):
        remove_acl(state, READS)


def test_users_and_rights_of_an_earlier_version_are_found_under_their_keys(
    state: SqliteState,
) -> None:
    put_user(state, "alice", "old", is_new=True)
    allow(state, READS)
    assert [entry.key for entry in state.list("security/")] == [
        "security/acls/0aeb0886a329ee1a40b4e29d23ea77a7",
        "security/closed",
        "security/users/69b5957599f918e276a3d2428acdc997",
    ]


def test_all_gateways_have_one_secret_also_when_two_make_it_at_once(
    state: SqliteState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the secret a name that is not there has one salt, whichever gateway is asked."""
    get, others = state.get, []

    def overtaken(key: str) -> Any:
        found = get(key)
        monkeypatch.undo()
        others.append(read_security(state))  # another gateway makes the secret first
        return found

    monkeypatch.setattr(state, "get", overtaken)
    gateways = [read_security(state), *others, read_security(state)]
    assert len(gateways) == 3
    assert len({each.credential("SCRAM-SHA-256", "nobody").salt for each in gateways}) == 1
    secret = get("security/secret")
    assert secret is not None
    assert len(secret.value) == 32


def test_removing_the_last_user_or_acl_opens_nothing(state: SqliteState) -> None:
    assert read_security(state).is_open
    put_user(state, "alice", "old", is_new=True)
    with pytest.raises(InvalidRequest, match="1 users, tokens and ACLs are there"):
        open_access(state)
    remove_user(state, "alice")
    assert not read_security(state).may("alice", "topic", "trips", "read")
    allow(state, READS)
    remove_acl(state, READS)
    assert not read_security(state).is_open
    open_access(state)
    assert read_security(state).is_open


@pytest.mark.parametrize("kind", ["user", "acl"])
def test_the_users_of_an_earlier_version_open_nothing_either(state: SqliteState, kind: str) -> None:
    if kind == "user":
        put_user(state, "alice", "old", is_new=True)
    else:
        allow(state, READS)
    state.commit({"security/closed": None})
    assert not read_security(state).is_open
    if kind == "user":
        remove_user(state, "alice")
    else:
        remove_acl(state, READS)
    assert not read_security(state).is_open


@pytest.mark.parametrize("prefix", ["security/users/", "security/acls/"])
def test_an_entry_that_cannot_be_read_denies_and_hides_no_change(
    state: SqliteState, prefix: str
) -> None:
    allow(state, READS)
    put_user(state, "alice", "old", is_new=True)
    state.commit({f"{prefix}00": b"no entry", "security/closed": None})
    security = read_security(state)
    assert security.unreadable == {f"{prefix}00"}
    assert security.may("alice", "topic", "trips", "read")
    assert security.exists("alice")
    remove_acl(state, READS)
    remove_user(state, "alice")
    assert not read_security(state).exists("alice")
    state.commit({"security/closed": None})
    assert not read_security(state).may("alice", "topic", "trips", "read"), "it never opens"
    with pytest.raises(InvalidRequest, match="remove them first"):
        open_access(state)


def test_a_user_without_a_key_for_a_mechanism_has_no_password(state: SqliteState) -> None:
    put_user(state, "alice", "old", is_new=True)
    [entry] = state.list("security/users/")
    state.commit({entry.key: msgspec.json.encode({"name": "alice", "credentials": {}})})
    credential = read_security(state).credential("SCRAM-SHA-256", "alice")
    assert not is_password("SCRAM-SHA-256", credential, "old")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alice", "bob"]),
            st.sampled_from(["topic", "group"]),
            st.text("ab", max_size=3),
            st.booleans(),
            st.sampled_from(["read", "describe", "delete"]),
        ),
        max_size=8,
    ),
    st.text("ab", max_size=4),
)
def test_many_rules_are_looked_up_as_one_after_the_other(
    rules: list[tuple[str, str, str, bool, str]], name: str
) -> None:
    acls = [
        Acl(principal, kind, text + "*" * is_prefix, operation)
        for principal, kind, text, is_prefix, operation in rules
    ]
    rights = Rights(acls)
    for principal in ("alice", "bob"):
        assert set(rights.of(principal)) == {acl for acl in acls if acl.principal == principal}
        for kind in ("topic", "group"):
            for operation in ("read", "describe", "delete"):
                assert rights.may(principal, kind, name, operation) is any(
                    who == principal
                    and what == kind
                    and (name.startswith(text) if is_prefix else name == text)
                    and operation in (allowed, "describe")
                    for who, what, text, is_prefix, allowed in rules
                )
