"""TLS, SASL and ACLs with stock clients: a known user reads as far as an ACL allows; nobody else
gets anything."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.helpers import create_ssl_context
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway.security.users import Acl, allow, put_user, remove_acl, remove_user
from cellfeed.store.datastore import Datastore
from tests.support.certificates import Certificates, make_certificates
from tests.support.free_ports import free_ports
from tests.support.raw_requests import ask, encoded
from tests.support.running_gateway import GatewayProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway security")]

CELLS = 40
TIMEOUT_S = 30.0
PASSWORD = "correct horse, battery"
ANYTHING: Any = None
"""In a filter of ACLs: the types of confluent-kafka want a text."""


class Secured(NamedTuple):
    datastore: Datastore
    files: Certificates
    ports: dict[str, int]
    log: Path

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    files = make_certificates(directory / "tls")
    ports = dict(zip(("open", "sasl", "mutual", "scram"), free_ports(4), strict=True))
    tls = {"certificate": files.certificate, "key": files.key}
    listeners = [
        {"name": "open", "port": ports["open"]},
        {"name": "sasl", "port": ports["sasl"], "security": "sasl_tls", **tls},
        {
            "name": "mutual",
            "port": ports["mutual"],
            "security": "tls",
            "client_ca": files.ca,
            **tls,
        },
        {
            "name": "scram",
            "port": ports["scram"],
            "security": "sasl_plaintext",
            "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        },
    ]
    with Datastore.open_embedded(directory / "store") as datastore:
        for number in range(CELLS):
            datastore.put_cell(
                f"00000000-0000-4000-8000-{number:012}", "BASE", 1, {"number": number}
            ).or_raise()
        put_user(datastore.state, "alice", PASSWORD, is_new=True)
        for kind in ("topic", "group"):
            allow(datastore.state, Acl("alice", kind, "tri*", "read"))
        allow(datastore.state, Acl("CN=billing,O=example", "topic", "trips", "read"))
        with GatewayProcess(directory / "store", directory / "log", listeners=listeners):
            yield Secured(datastore, files, ports, directory / "log")


def confluent(
    secured: Secured,
    listener: str,
    mechanism: str,
    user: str,
    password: str,
    topic: str,
    group: str,
) -> int:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": secured.at(listener),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "security.protocol": "SASL_SSL" if listener == "sasl" else "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": secured.files.ca,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        count, deadline_s = 0, time.monotonic() + TIMEOUT_S
        while count < CELLS and time.monotonic() < deadline_s:
            for message in consumer.consume(100, 0.2):
                if (error := message.error()) is not None:
                    raise PermissionError(error.name())
                count += 1
        consumer.commit(asynchronous=False)
        return count
    finally:
        consumer.close()


def kafka_python(
    secured: Secured,
    listener: str,
    mechanism: str,
    user: str,
    password: str,
    topic: str,
    group: str,
) -> int:
    try:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=secured.at(listener),
            group_id=group,
            auto_offset_reset="earliest",
            security_protocol="SASL_SSL" if listener == "sasl" else "SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
            ssl_cafile=secured.files.ca,
            bootstrap_timeout_ms=5_000,
        )
    except kafka.errors.KafkaError as error:
        raise PermissionError(type(error).__name__) from None
    try:
        count, deadline_s = 0, time.monotonic() + TIMEOUT_S
        while count < CELLS and time.monotonic() < deadline_s:
            count += sum(map(len, consumer.poll(timeout_ms=200).values()))
        consumer.commit()
        return count
    except kafka.errors.KafkaError as error:
        raise PermissionError(type(error).__name__) from None
    finally:
        consumer.close(autocommit=False)


def aiokafka_client(
    secured: Secured,
    listener: str,
    mechanism: str,
    user: str,
    password: str,
    topic: str,
    group: str,
) -> int:
    async def run() -> int:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=secured.at(listener),
            group_id=group,
            auto_offset_reset="earliest",
            security_protocol="SASL_SSL" if listener == "sasl" else "SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
            ssl_context=create_ssl_context(cafile=secured.files.ca),
        )
        try:
            await consumer.start()
            count, deadline_s = 0, time.monotonic() + TIMEOUT_S
            while count < CELLS and time.monotonic() < deadline_s:
                count += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
            await consumer.commit()
            return count
        except aiokafka.errors.KafkaError as error:
            raise PermissionError(type(error).__name__) from None
        finally:
            await consumer.stop()

    return asyncio.run(run())


Client = Callable[[Secured, str, str, str, str, str, str], int]
CLIENTS: list[Client] = [confluent, kafka_python, aiokafka_client]


@pytest.fixture(params=CLIENTS, ids=["confluent-kafka", "kafka-python", "aiokafka"])
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found


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


def test_a_wrong_password_and_an_unknown_user_are_told_the_same(secured: Secured) -> None:
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


def test_offsets_are_deleted_by_who_may_delete_in_the_group_and_read_the_topic(
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


def test_whoever_asks_for_acls_is_shown_its_own(secured: Secured) -> None:
    admin = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }

    def told(
        resource_type: ResourceType,
        name: str,
        pattern: ResourcePatternType,
        settings: dict[str, str],
    ) -> set[tuple[str, ...]]:
        client = AdminClient({"log_level": 0, **settings})
        wanted = AclBindingFilter(
            resource_type,
            name,
            pattern,
            ANYTHING,
            ANYTHING,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        found = client.describe_acls(wanted, request_timeout=TIMEOUT_S).result(TIMEOUT_S)
        return {
            (
                acl.principal,
                acl.restype.name,
                acl.name,
                acl.resource_pattern_type.name,
                acl.operation.name,
                acl.permission_type.name,
            )
            for acl in found
        }

    alice = {"bootstrap.servers": secured.at("scram"), **admin}
    topics, groups = (
        ("User:alice", kind, "tri", "PREFIXED", "READ", "ALLOW") for kind in ("TOPIC", "GROUP")
    )
    assert told(ResourceType.ANY, ANYTHING, ResourcePatternType.ANY, alice) == {topics, groups}
    assert told(ResourceType.TOPIC, "trips.BASE", ResourcePatternType.MATCH, alice) == {topics}
    assert told(ResourceType.TOPIC, "trips.BASE", ResourcePatternType.LITERAL, alice) == set()
    assert told(ResourceType.GROUP, "tri", ResourcePatternType.PREFIXED, alice) == {groups}
    assert (
        told(
            ResourceType.ANY,
            ANYTHING,
            ResourcePatternType.ANY,
            {"bootstrap.servers": secured.at("open")},
        )
        == set()
    ), "others' are not shown"


def scram_of_all(client: AdminClient) -> dict[str, Any]:
    asked = client.describe_user_scram_credentials(request_timeout=TIMEOUT_S)
    assert isinstance(asked, Future)
    found: dict[str, Any] = asked.result(TIMEOUT_S)
    return found


def scram_of(client: AdminClient, name: str) -> None:
    asked = client.describe_user_scram_credentials([name], request_timeout=TIMEOUT_S)
    assert isinstance(asked, dict)
    asked[name].result(TIMEOUT_S)


def test_whoever_asks_for_users_is_shown_itself(secured: Secured) -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    alice = AdminClient({"log_level": 0, "bootstrap.servers": secured.at("scram"), **login})
    shown = scram_of_all(alice)
    assert {
        name: {each.mechanism.name for each in told.scram_credential_infos}
        for name, told in shown.items()
    } == {"alice": {"SCRAM_SHA_256", "SCRAM_SHA_512"}}
    nobody = AdminClient({"log_level": 0, "bootstrap.servers": secured.at("open")})
    assert scram_of_all(nobody) == {}
    for name in ("alice", "nobody"):
        with pytest.raises(
            confluent_kafka.KafkaException, match=f"no user '{name}' that you may see"
        ):
            scram_of(nobody, name)


def test_only_resources_that_may_be_described_are_listed(secured: Secured) -> None:
    answer = ask(secured.ports["open"], 74, 1, encoded(74, 1, {"resource_types": []}))
    assert {each.resource_type for each in answer.config_resources} == {4}, "gateways, and no topic"
    [topic] = ask(
        secured.ports["open"],
        61,
        0,
        encoded(61, 0, {"topics": [{"name": "trips", "partition_indexes": [0]}]}),
    ).topics
    assert [each.error_code.name for each in topic.partitions] == ["topic_authorization_failed"]


def test_only_kept_bytes_of_topics_that_may_be_described_are_told(secured: Secured) -> None:
    for version in range(1, 5):
        answer = ask(secured.ports["open"], 35, version, encoded(35, version, {"topics": None}))
        assert [list(each.topics) for each in answer.results] == [[]], f"version {version}"


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


def test_a_removed_user_does_not_come_in_again(secured: Secured) -> None:
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


def request(key: int, version: int, body: bytes) -> bytes:
    frame = struct.pack(">hhih", key, version, 1, -1) + body
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize(
    "sent",
    [
        request(3, 1, struct.pack(">i", -1)),
        struct.pack(">i", 1 << 20) + b"x" * 100,
        request(36, 0, struct.pack(">i", 4) + b"abcd"),
    ],
    ids=["Metadata", "a large frame", "a token without a handshake"],
)
def test_who_is_not_known_gets_no_answer_but_a_refusal(secured: Secured, sent: bytes) -> None:
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
