"""Changes of rights, certificates, removed users, and peers that are not known."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import Any

import confluent_kafka
import pytest

from cellfeed.store.security.rights import Acl
from cellfeed.store.security.users import allow, put_user, remove_acl, remove_user
from tests.support.secured_gateway import PASSWORD, TIMEOUT_S, Secured, request
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway security")]


def topics_seen(
    settings: dict[str, Any], topic: str | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    consumer = confluent_kafka.Consumer({"group.id": "trips", "log_level": 0, **settings})
    try:
        return {
            name: found.error.name() if found.error else None
            for name, found in consumer.list_topics(
                **({"topic": topic} if topic else {}), timeout=timeout_s
            ).topics.items()
        }
    finally:
        consumer.close()


def test_without_an_acl_no_name_is_shown_and_a_change_is_in_force_without_a_restart(
    secured: Secured,
) -> None:
    anonymous = {"bootstrap.servers": secured.at("open")}
    assert topics_seen(anonymous) == {}
    assert topics_seen(anonymous, "trips") == {"trips": "TOPIC_AUTHORIZATION_FAILED"}
    assert topics_seen(anonymous, "nothing") == {"nothing": "TOPIC_AUTHORIZATION_FAILED"}, (
        "whether it is there or not"
    )
    acl = Acl("ANONYMOUS", "topic", "trips.*", "describe")
    allow(secured.datastore.state, acl)
    wait_until(lambda: set(topics_seen(anonymous)) == {"trips.BASE"}, "the ACL is in force")
    remove_acl(secured.datastore.state, acl)
    wait_until(lambda: topics_seen(anonymous) == {}, "the ACL is taken back")


def test_a_client_certificate_is_its_subject(secured: Secured) -> None:
    files = secured.files
    tls = {
        "bootstrap.servers": secured.at("mutual"),
        "security.protocol": "SSL",
        "ssl.ca.location": files.ca,
    }
    known = {
        **tls,
        "ssl.certificate.location": files.client_certificate,
        "ssl.key.location": files.client_key,
    }
    assert topics_seen(known) == {"trips": None}
    with pytest.raises(confluent_kafka.KafkaException):
        topics_seen(tls, timeout_s=3)


def test_a_removed_user_cannot_authenticate_again(secured: Secured) -> None:
    put_user(secured.datastore.state, "bob", PASSWORD, is_new=True)
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "bob",
        "sasl.password": PASSWORD,
    }
    settings = {"bootstrap.servers": secured.at("scram"), **sasl}

    def comes_in() -> bool:
        try:
            topics_seen(settings, timeout_s=2)
        except confluent_kafka.KafkaException:
            return False
        return True

    wait_until(comes_in, "the new user comes in")
    remove_user(secured.datastore.state, "bob")
    wait_until(lambda: not comes_in(), "the removed user stays out")


@pytest.mark.parametrize(
    "sent",
    [
        request(3, 1, struct.pack(">i", -1)),
        struct.pack(">i", 1 << 20) + b"x" * 100,
        request(36, 0, struct.pack(">i", 4) + b"abcd"),
    ],
    ids=["Metadata", "a large frame", "a token without a handshake"],
)
def test_an_unknown_user_gets_no_answer_but_a_refusal(secured: Secured, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", secured.ports["scram"]), timeout=5) as peer:
        peer.sendall(sent)
        answer = b"".join(iter(lambda: peer.recv(4096), b""))
    assert b"trips" not in answer
    assert len(answer) < 100


def test_a_handshake_that_dawdles_is_cut_off(secured: Secured) -> None:
    """Slowly, but on and on: one time for all of it, not for each byte."""
    context = ssl.create_default_context(cafile=secured.files.ca)
    with (
        socket.create_connection(("127.0.0.1", secured.ports["sasl"]), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as peer,
    ):
        peer.settimeout(0.5)
        begun_s, ended = time.monotonic(), False
        frame = request(17, 1, struct.pack(">h", 200) + b"P" * 200)
        for at in range(60):
            try:
                peer.sendall(frame[at : at + 1])
                ended = peer.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
        assert ended, "sixty bytes, one after the other, were all waited for"
        assert time.monotonic() - begun_s > 5, "not before its time"
