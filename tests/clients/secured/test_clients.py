"""A known user reads as far as an ACL allows, with each client."""

from __future__ import annotations

import socket
import ssl
import struct

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.users import allow, remove_acl
from tests.support.raw_requests import ask, encoded
from tests.support.secured_gateway import CELLS, PASSWORD, Client, Secured, confluent, request
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway security")]


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("sasl", "PLAIN"),
        ("sasl", "SCRAM-SHA-256"),
        ("sasl", "SCRAM-SHA-512"),
        ("scram", "SCRAM-SHA-512"),
    ],
)
def test_a_user_reads_and_commits_in_a_group_that_an_acl_allows(
    secured: Secured, client: Client, listener: str, mechanism: str
) -> None:
    group = f"trips-{client.__name__}-{listener}-{mechanism}"
    assert client(secured, listener, mechanism, "alice", PASSWORD, "trips", group) == CELLS


def test_a_wrong_password_and_an_unknown_user_get_the_same_error(secured: Secured) -> None:
    def answer(user: str, password: str) -> bytes:
        context = ssl.create_default_context(cafile=secured.files.ca)
        with (
            socket.create_connection(("127.0.0.1", secured.ports["sasl"]), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as peer,
        ):
            peer.sendall(request(17, 1, struct.pack(">h", 5) + b"PLAIN"))
            [size] = struct.unpack(">i", peer.recv(4))
            peer.recv(size)
            token = f"\0{user}\0{password}".encode()
            peer.sendall(request(36, 0, struct.pack(">i", len(token)) + token))
            return b"".join(iter(lambda: peer.recv(4096), b""))

    assert answer("alice", "wrong") == answer("nobody", PASSWORD)
    assert b"Authentication failed" in answer("alice", "wrong")
    assert PASSWORD not in secured.log.read_text()


def test_a_group_that_no_acl_names_is_refused(secured: Secured) -> None:
    with pytest.raises(PermissionError, match="GROUP_AUTHORIZATION_FAILED"):
        confluent(secured, "sasl", "PLAIN", "alice", PASSWORD, "trips", "other")


def test_offsets_are_deleted_by_users_with_rights_on_the_group_and_the_topic(
    secured: Secured,
) -> None:
    confluent(secured, "sasl", "PLAIN", "alice", PASSWORD, "trips", "trips-readers")
    state, port = secured.datastore.state, secured.ports["open"]
    deletes, reads = (
        Acl("ANONYMOUS", "group", "trips-readers", "delete"),
        Acl("ANONYMOUS", "topic", "trips", "read"),
    )
    body = encoded(
        47,
        0,
        {
            "group_id": "trips-readers",
            "topics": [{"name": "trips", "partitions": [{"partition_index": 0}]}],
        },
    )

    def told() -> tuple[str, list[str]]:
        answer = ask(port, 47, 0, body)
        return answer.error_code.name, [
            each.error_code.name for topic in answer.topics for each in topic.partitions
        ]

    before = StoreCoordinator(state).fetch_offsets("trips-readers")
    assert told() == ("group_authorization_failed", [])
    allow(state, deletes)
    wait_until(
        lambda: told() == ("none", ["topic_authorization_failed"]),
        "the group's offsets may be deleted",
    )
    assert StoreCoordinator(state).fetch_offsets("trips-readers") == before
    allow(state, reads)
    wait_until(lambda: told() == ("none", ["none"]), "the topic may be read")
    assert StoreCoordinator(state).fetch_offsets("trips-readers").keys() == before.keys() - {
        ("trips", 0)
    }
    for each in (deletes, reads):
        remove_acl(state, each)
    wait_until(lambda: told() == ("group_authorization_failed", []), "both are taken back")
