"""The rights that ACLs give and take on datastores, columns, topics and groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.security.access import DENIALS, Security
from cellfeed.store.security.rights import Acl, Kind, Operation
from cellfeed.store.security.users import (
    allow,
    list_acls,
    put_user,
    read_security,
    remove_acl,
    remove_user,
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as opened:
        yield opened


def security(*acls: Acl) -> Security:
    return Security({}, acls, b"", is_closed=True)


def test_an_acl_without_a_denial_has_the_bytes_and_the_key_of_earlier_versions(
    state: SqliteState,
) -> None:
    acl = Acl("alice", "topic", "trips", "read")
    allow(state, acl)
    [entry] = state.list("security/acls/")
    assert msgspec.json.decode(entry.value) == {
        "principal": "alice",
        "kind": "topic",
        "pattern": "trips",
        "operation": "read",
    }


def test_an_earlier_version_never_takes_a_denial_for_an_allowance(state: SqliteState) -> None:
    denial = Acl("alice", "topic", "trips", "read", "deny")
    allow(state, denial)
    assert state.list("security/acls/") == []
    assert list_acls(state) == [denial]
    assert not read_security(state).is_open
    remove_acl(state, denial)
    assert list_acls(state) == []


def test_a_removed_user_takes_the_own_rights_along_and_no_others(state: SqliteState) -> None:
    put_user(state, "alice", "password", is_new=True)
    own = [
        Acl("alice", "topic", "trips", "read"),
        Acl("alice", "topic", "trips.*", "read", "deny"),
    ]
    others = [
        *(Acl("alice2", "topic", "trips", "read"), Acl("*", "topic", "trips", "read")),
        Acl("bob", "topic", "alice", "read", "deny"),
    ]
    for acl in (*own, *others):
        allow(state, acl)
    assert remove_user(state, "alice") == len(own)
    assert set(list_acls(state)) == set(others)
    put_user(state, "alice", "another", is_new=True)
    assert set(list_acls(state)) == set(others), "a later user of that name has no rights"


def test_a_denial_overrules_every_allowance_also_one_for_everybody() -> None:
    found = security(
        Acl("*", "column", "*", "read"),
        Acl("alice", "column", "secret", "read"),
        Acl("*", "column", "sec*", "read", "deny"),
    )
    assert found.may_column("alice", "trips", "BASE", "read")
    assert not found.may_column("alice", "trips", "secret", "read")
    assert not found.may_column("bob", "trips", "sector", "read")
    assert found.may_column("bob", "trips", "base", "read")


def test_a_principal_with_a_denied_column_reads_nothing_that_shows_all_columns() -> None:
    found = security(
        Acl("alice", "datastore", "trips", "read"),
        Acl("alice", "topic", "trips", "read"),
        Acl("alice", "column", "secret", "read", "deny"),
        Acl("bob", "datastore", "trips", "read"),
    )
    assert not found.may_all("alice", "trips", "read")
    assert found.may_all("bob", "trips", "read")
    assert found.may_column("alice", "trips", "BASE", "read")

    def topic(principal: str, name: str, column: str | None) -> bool:
        return found.may_topic(principal, "trips", name, "read", exists=True, column=column)

    assert not topic("alice", "trips", None)
    assert topic("alice", "trips.BASE", "BASE")
    assert not topic("alice", "trips.secret", "secret")
    assert topic("bob", "trips", None)
    assert topic("bob", "trips.secret", "secret")


def test_a_right_on_a_column_reads_its_topic_and_shows_no_topic_that_is_not_there() -> None:
    found = security(Acl("alice", "column", "BASE", "read"))

    def may(name: str, *, exists: bool, column: str | None) -> bool:
        return found.may_topic("alice", "trips", name, "read", exists=exists, column=column)

    assert may("trips.BASE", exists=True, column="BASE")
    assert not may("trips", exists=True, column=None)
    assert not may("trips.NONE", exists=False, column=None)


def test_a_denial_that_cannot_be_read_denies_everything(state: SqliteState) -> None:
    allow(state, Acl("alice", "datastore", "trips", "read"))
    assert read_security(state).may_all("alice", "trips", "read")
    state.commit({DENIALS + "broken": b"{"})
    found = read_security(state)
    assert not found.may_all("alice", "trips", "read")
    assert not found.is_open


@pytest.mark.parametrize(
    ("kind", "allowed", "included"),
    [("group", "operate", "delete"), ("column", "put", "describe"), ("group", "read", "describe")],
)
def test_operations_include_others(kind: Kind, allowed: str, included: Operation) -> None:
    assert security(Acl("alice", kind, "x", allowed)).may("alice", kind, "x", included)


def test_a_right_on_one_kind_is_none_on_another() -> None:
    found = security(Acl("alice", "column", "trips", "read"))
    assert not found.may("alice", "datastore", "trips", "read")
    assert not found.may("alice", "group", "trips", "read")


def test_a_look_up_takes_no_longer_among_many_rules() -> None:
    """Counts the steps, which are those of the principal's own prefixes."""
    acls = [Acl(f"p{n}", "column", f"c{n}*", "read") for n in range(10_000)]
    found = security(*acls, Acl("alice", "column", "BA*", "read"))
    assert found.may_column("alice", "trips", "BASE", "read")
    began_s = time.perf_counter()
    for _ in range(1_000):
        found.may_column("alice", "trips", "BASE", "read")
    print(f"{(time.perf_counter() - began_s) * 1000:.2f} µs")
    assert {key[0] for key in found._rights._allowed.lengths} >= {"alice"}
    assert found._rights._allowed.lengths["alice", "column"] == {2}
