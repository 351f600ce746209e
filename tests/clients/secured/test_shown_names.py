"""Only names that a user may describe are shown to it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.support.raw_requests import ask, encoded
from tests.support.secured_gateway import PASSWORD, TIMEOUT_S, Secured

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway security")]

ANYTHING: Any = None
"""In a filter of ACLs: the types of confluent-kafka want a text."""


def test_a_user_who_lists_acls_sees_only_the_rights_of_that_user(secured: Secured) -> None:
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


def test_a_user_who_describes_scram_credentials_sees_only_that_users(secured: Secured) -> None:
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


def test_describe_log_dirs_counts_only_topics_that_the_user_may_describe(secured: Secured) -> None:
    for version in range(1, 5):
        answer = ask(secured.ports["open"], 35, version, encoded(35, version, {"topics": None}))
        assert [list(each.topics) for each in answer.results] == [[]], f"version {version}"
