"""All questions of a round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.clients.beside_kafka.answers import only_topic, sorted_by
from tests.clients.beside_kafka.api_keys import (
    ALTER_CONFIGS,
    API_VERSIONS,
    CONFIG_RESOURCES,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    PRODUCE,
    PRODUCERS,
    QUOTAS,
    REASSIGNMENTS,
    SCRAM_CREDENTIALS,
    TRANSACTIONS,
)
from tests.clients.beside_kafka.group_questions import (
    questions_of_a_group,
    questions_of_a_simple_consumer,
    questions_of_nobodys_group,
    questions_of_subscribed_groups,
)
from tests.clients.beside_kafka.log_questions import questions_of_the_log
from tests.clients.beside_kafka.requests import empty_produce
from tests.clients.beside_kafka.side import TOPIC, Side
from tests.support.trips_log import SHARDS


def questions(
    side: Side, round_name: str, versions: dict[int, int]
) -> Iterator[tuple[str, int, Any]]:
    """The questions of a round: a label, the API, the answer. Its groups have the round's name."""

    def ask_for(label: str, api: int, /, **values: Any) -> tuple[str, int, Any]:
        return label, api, side.ask(api, versions[api], values)

    yield from questions_of_the_log(side, ask_for, versions)
    yield from questions_of_nobodys_group(ask_for)
    yield from questions_of_a_group(side, ask_for, f"group-{round_name}")
    yield from questions_of_a_simple_consumer(ask_for, f"simple-{round_name}")
    yield from questions_of_subscribed_groups(side, ask_for, f"subscribed-{round_name}")
    yield ask_for(
        "as it is", API_VERSIONS, client_software_name="test", client_software_version="1"
    )
    yield ask_for(
        "as it is",
        DESCRIBE_CLUSTER,
        include_cluster_authorized_operations=False,
        endpoint_type=1,
        include_fenced_brokers=False,
    )
    anything = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    yield ask_for(
        "any",
        DESCRIBE_ACLS,
        **anything,
        resource_type_filter=1,
        pattern_type_filter=1,
        operation=1,
        permission_type=1,
    )
    yield ask_for(
        "of a topic",
        DESCRIBE_ACLS,
        **{**anything, "resource_name_filter": TOPIC},
        resource_type_filter=2,
        pattern_type_filter=3,
        operation=3,
        permission_type=3,
    )
    for label, topics in (
        ("all", None),
        ("nothing", []),
        ("some", [{"topic": TOPIC, "partitions": [3, 1]}]),
        ("unknown partition", [{"topic": TOPIC, "partitions": [1, SHARDS]}]),
        ("unknown topic", [{"topic": "nobodys", "partitions": [0]}]),
        ("no partition", [{"topic": TOPIC, "partitions": []}]),
    ):
        yield only_topic(ask_for(label, DESCRIBE_LOG_DIRS, topics=topics))
    yield from _of_what_is_not_there(ask_for, versions)
    yield ask_for(
        "a record",
        PRODUCE,
        transactional_id=None,
        acks=1,
        timeout=1000,
        topic_data=[empty_produce(side, versions)],
    )
    for label, transactional_id in (("an id", None), ("in transactions", "")):
        yield ask_for(
            label,
            INIT_PRODUCER_ID,
            transactional_id=transactional_id,
            transaction_timeout=1000,
            producer_id=-1,
            producer_epoch=-1,
        )
    yield from _of_changes(ask_for)


def _of_changes(ask_for: Any) -> Iterator[tuple[str, int, Any]]:
    """Requests that would change a topic, its settings or ACLs. A broker only looks whether it
    could."""
    dry = {"timeout": 1000, "validate_only": True}
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    yield ask_for("new", CREATE_TOPICS, **dry, topics=[{"name": "new", **topic}])
    yield ask_for("there", CREATE_TOPICS, **dry, topics=[{"name": TOPIC, **topic}])
    yield ask_for(
        "unknown",
        DELETE_TOPICS,
        timeout=1000,
        topic_names=["nobodys"],
        topics=[{"name": "nobodys", "topic_id": None}],
    )
    partition = {"partition_index": 0, "offset": 0}
    yield ask_for(
        "unknown",
        DELETE_RECORDS,
        timeout=1000,
        topics=[{"name": "nobodys", "partitions": [partition]}],
    )
    right = {"operation": 3, "permission_type": 3}
    acl = {"resource_type": 2, "resource_name": TOPIC, "resource_pattern_type": 3}
    yield ask_for(
        "of a topic",
        CREATE_ACLS,
        creations=[{**acl, **right, "principal": "User:nobody", "host": "*"}],
    )
    wanted = {"resource_type_filter": 2, "resource_name_filter": TOPIC, "pattern_type_filter": 3}
    yield ask_for(
        "of a topic",
        DELETE_ACLS,
        filters=[{**wanted, **right, "principal_filter": None, "host_filter": None}],
    )
    settings = {
        "resource_type": 2,
        "resource_name": TOPIC,
        "configs": [{"name": "retention.ms", "value": "-1", "config_operation": 0}],
    }
    yield ask_for("of a topic", ALTER_CONFIGS, validate_only=True, resources=[settings])
    yield ask_for("of a topic", INCREMENTAL_ALTER_CONFIGS, validate_only=True, resources=[settings])
    yield ask_for(
        "more",
        CREATE_PARTITIONS,
        **dry,
        topics=[{"name": TOPIC, "count": SHARDS + 1, "assignments": None}],
    )
    yield ask_for(
        "nobody's",
        CONSUMER_GROUP_HEARTBEAT,
        group_id="",
        member_id="",
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=1000,
        subscribed_topic_names=[TOPIC],
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=[],
    )


def _of_what_is_not_there(ask_for: Any, versions: dict[int, int]) -> Iterator[tuple[str, int, Any]]:
    """Things that a gateway has none of, and that a broker has none of as long as nobody makes
    one."""
    for label, topics in (
        ("all", None),
        ("some", [{"name": TOPIC, "partition_indexes": [0, 1]}]),
        ("nothing", []),
    ):
        yield ask_for(label, REASSIGNMENTS, timeout=1000, topics=topics)
    users = [{"entity_type": "user", "match_type": 2, "match": None}]
    for label, components, strict in (
        ("all", [], False),
        ("users", users, False),
        ("one", [{**users[0], "match_type": 0, "match": "nobody"}], True),
    ):
        yield ask_for(label, QUOTAS, components=components, strict=strict)
    for label, names in (
        ("all", None),
        ("no names", []),
        ("unknown", ["nobody"]),
        ("twice", ["nobody", "nobody", "other"]),
    ):
        asked = ask_for(
            label, SCRAM_CREDENTIALS, users=None if names is None else [{"name": n} for n in names]
        )
        yield sorted_by("user", "results", asked)
    for label, name, partitions in (
        ("some", TOPIC, [0, 1]),
        ("unknown partition", TOPIC, [SHARDS]),
        ("unknown", "nobodys", [0]),
        ("odd", "no such/topic", [0]),
    ):
        yield ask_for(label, PRODUCERS, topics=[{"name": name, "partition_indexes": partitions}])
    for label, states in (
        ("all", []),
        ("some states", ["Ongoing", "Dead"]),
        ("unknown states", ["Ongoing", "Lost"]),
    ):
        yield ask_for(
            label,
            TRANSACTIONS,
            state_filters=states,
            producer_id_filters=[],
            duration_filter=-1,
            transactional_id_pattern=None,
        )
    for kind in (2, 4, 8, 16, 32, 99) if versions[CONFIG_RESOURCES] else (16,):
        label, key, answer = ask_for(f"kind {kind}", CONFIG_RESOURCES, resource_types=[kind])
        found = [
            each
            for each in answer["config_resources"]
            if kind != 2 or each["resource_name"] == TOPIC
        ]
        yield (
            label,
            key,
            {
                **answer,
                "config_resources": [
                    {**each, "resource_name": "a node"} if kind == 4 else each for each in found
                ],
            },
        )
