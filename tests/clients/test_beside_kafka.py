"""The gateway and a real broker that has the same log are asked the same things, in every version
that both speak. Their answers are equal but for ``DIFFERENCES``, each with its reason; one that is
no longer seen has to leave the list.

Values that name a process (addresses, node ids, cluster and topic ids, ids of members, directories)
are compared by their places, not as they are; so are sizes, and generations: a gateway's group
begins above every one that its slot has given out.
"""

from __future__ import annotations

import enum
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cellfeed.bridge.events.record_batch import decode_record_batches
from cellfeed.bridge.gateway.apis.advertised import APIS
from cellfeed.servers.kafka_jars import KAFKA_VERSION, OLDER_KAFKA_VERSION
from cellfeed.store.datastore import Datastore
from tests.support.local_kafka import Kafka, started_kafka
from tests.support.raw_requests import ask, decoded, encoded, exchange, head_bytes
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

CELLS = 200
TOPIC = "trips"
UNKNOWN_TOPIC_ID = UUID(int=77)
NOBODY = "nobody"
ROUNDS: Final = range(max(api.versions[1] for api in APIS.values()) + 1)
"""In round n every API is asked in its version n, or in the nearest that both sides speak."""

(
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN,
    HEARTBEAT,
    LEAVE,
    SYNC,
) = (
    0,
    1,
    2,
    3,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
)
DESCRIBE_GROUPS, LIST_GROUPS, API_VERSIONS, INIT_PRODUCER_ID, LEADER_EPOCH, DESCRIBE_CONFIGS = (
    15,
    16,
    18,
    22,
    23,
    32,
)
DESCRIBE_ACLS, DESCRIBE_LOG_DIRS, DELETE_GROUPS, OFFSET_DELETE, DESCRIBE_CLUSTER = (
    29,
    35,
    42,
    47,
    60,
)
REASSIGNMENTS, QUOTAS, SCRAM_CREDENTIALS, PRODUCERS, TRANSACTIONS, CONFIG_RESOURCES = (
    46,
    48,
    50,
    61,
    66,
    74,
)
(
    CREATE_TOPICS,
    DELETE_TOPICS,
    DELETE_RECORDS,
    CREATE_ACLS,
    DELETE_ACLS,
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    INCREMENTAL_ALTER_CONFIGS,
    CONSUMER_GROUP_HEARTBEAT,
) = (19, 20, 21, 30, 31, 33, 37, 44, 68)
SASL: Final = (17, 36)
"""Not asked: neither side has users here."""

PLACES: Final = frozenset(
    (
        "host",
        "port",
        "node_id",
        "broker_id",
        "leader_id",
        "coordinator_id",
        "controller_id",
        "producer_id",
        "cluster_id",
        "client_host",
        "log_dir",
    )
)
"""Fields that name a process."""

SIZES: Final = frozenset(("partition_size", "total_bytes", "usable_bytes"))
"""Of a log and its disk at a broker, of kept blocks and the budget for them at a gateway."""

_READ_ONLY = "a gateway takes no records and knows no transactions, and says so at once"
_UNCHANGED = "nothing of a gateway is changed through Kafka's protocol, and it says so at once"
_WORDS = "what is said beside an error code is for people"
DIFFERENCES: Final[dict[str, str]] = {
    "api_00_produce: a record: *: error_code": _READ_ONLY,
    "api_00_produce: a record: *: error_message": _READ_ONLY,
    "api_22_init_producer_id: in transactions: *": _READ_ONLY,
    "api_19_create_topics: *": _UNCHANGED,
    "api_20_delete_topics: *": _UNCHANGED,
    "api_21_delete_records: *": _UNCHANGED,
    "api_30_create_acls: *: error_message": _WORDS,
    "api_31_delete_acls: *: error_message": _WORDS,
    "api_33_alter_configs: *": _UNCHANGED,
    "api_37_create_partitions: *": _UNCHANGED,
    "api_44_incremental_alter_configs: *": _UNCHANGED,
    "api_68_consumer_group_heartbeat: *": (
        "groups here have the classic protocol alone; a consumer with another one is told at once"
    ),
    "api_10_find_coordinator: transaction: *": _READ_ONLY,
    "api_10_find_coordinator: *: error_message": _WORDS,
    "api_32_describe_configs: *: error_message": _WORDS,
    "api_32_describe_configs: topic: *": (
        "a broker's settings can be changed, and it has more of them"
    ),
    "api_32_describe_configs: group: *: error_code (version *, broker 3.9)": (
        "since Kafka 4 a group has settings, and may have none"
    ),
    "api_29_describe_acls: *: error_message": _WORDS,
    "api_48_describe_client_quotas: *: error_message": _WORDS,
    "api_50_describe_user_scram_credentials: *: error_message": _WORDS,
    "api_61_describe_producers: *: error_message": _WORDS,
    "api_61_describe_producers: some: *: active_producers": _READ_ONLY,
    "api_74_list_config_resources: kind 8: * (version 1, broker 4.1)": (
        "loggers of a gateway are set where it is started"
    ),
    "api_18_api_versions: as it is: api_keys": (
        "a broker has APIs for writing and for administration, of which a gateway has none"
    ),
    "api_18_api_versions: as it is: *features*": "they are a broker's own",
    "api_15_describe_groups: gone: groups: protocol_type": (
        "of a group whose members are gone its offsets stay, and no more"
    ),
    "api_16_list_groups: gone: groups: protocol_type": (
        "of a group whose members are gone its offsets stay, and no more"
    ),
    "api_47_offset_delete: another topic, gone: *": (
        "of a group whose members are gone its offsets stay, and no more: without any it is not"
        " there"
    ),
    "api_08_offset_commit: unnamed: *": (
        "a group without a name keeps no offsets: there is no place for them in ZooKeeper's tree"
    ),
    "api_08_offset_commit: unknown: * (version 9, broker 4.1)": (
        "since Kafka 4 a group that is not there has an error of its own"
    ),
}
"""``api: question: field`` (``*`` stands for anything) and why the gateway answers otherwise.
Fields of lists have no index."""


@dataclass
class Side:
    """One of the two. ``versions``: by API, those that it says it speaks. ``members``: the names
    for the ids that it gave to members of groups. ``generation``: of the group that was joined
    last."""

    port: int
    topic_id: UUID
    versions: dict[int, tuple[int, int]]
    members: dict[str, str] = field(default_factory=dict)
    generation: int = -1

    def ask(self, key: int, version: int, values: dict[str, Any]) -> Any:
        """The answer as dicts, lists and plain values; ``closed`` when the connection was closed
        instead."""
        frame = exchange(self.port, head_bytes(key, version) + encoded(key, version, values))
        return "closed" if frame is None else self._plain(decoded(key, version, frame))

    def member(self, name: str) -> str:
        """The id behind a name."""
        return next(member for member, known in self.members.items() if known == name)

    def _plain(self, value: Any, name: str = "") -> Any:
        if is_dataclass(value):
            return {
                each.name: self._plain(getattr(value, each.name), each.name)
                for each in fields(value)
            }
        if isinstance(value, tuple):
            return _in_order([self._plain(each, name) for each in value])
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, timedelta):
            return value // timedelta(milliseconds=1)
        if name in SIZES and value >= 0:
            return f"a {name}"
        if name in PLACES and value not in (-1, "", None):
            return f"a {name}"
        if name == "generation_id" and value >= 0:
            self.generation = value
            return "a generation"
        if isinstance(value, UUID):
            return "the topic's id" if value == self.topic_id else str(value)
        if name in ("member_id", "leader") and value not in ("", NOBODY):
            return self.members.setdefault(value, f"member {len(self.members) + 1}")
        return value


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("beside-kafka")
    with Datastore.open_embedded(directory / "store") as datastore:
        datastore.put_cells(
            [(UUID(int=number), "BASE", 0, {"number": number}) for number in range(CELLS)]
        )
    with GatewayProcess(
        directory / "store", directory / "gateway.log", group_initial_delay_s=0
    ) as running:
        yield running


@pytest.fixture(scope="module", params=[KAFKA_VERSION, OLDER_KAFKA_VERSION])
def broker(request: pytest.FixtureRequest, gateway: GatewayProcess) -> Iterator[Kafka]:
    """A broker with the gateway's log in it, record for record."""
    with started_kafka(request.param) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, SHARDS, 1)])[TOPIC].result(30)
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "log_level": 0, "enable.idempotence": True}
        )
        for shard in range(SHARDS):
            for record in decode_record_batches(_whole(gateway.port, shard)):
                producer.produce(
                    TOPIC, record.value, record.key, shard, timestamp=record.timestamp_ms
                )
        assert producer.flush(30) == 0
        _await_coordinator(kafka)
        yield kafka


def _await_coordinator(kafka: Kafka) -> None:
    """The topic that a broker keeps groups in is made when somebody asks for a group first, and
    each of its partitions is read then."""
    not_yet = {"coordinator_not_available", "coordinator_load_in_progress", "not_coordinator"}
    deadline_s = time.monotonic() + 60
    for number in range(20):
        group = f"first-{number}"
        ask(
            kafka.ports[0],
            FIND_COORDINATOR,
            3,
            encoded(FIND_COORDINATOR, 3, {"key": group, "key_type": 0}),
        )
        heartbeat = encoded(
            HEARTBEAT,
            3,
            {"group_id": group, "generation_id": 0, "member_id": NOBODY, "group_instance_id": None},
        )
        while ask(kafka.ports[0], HEARTBEAT, 3, heartbeat).error_code.name in not_yet:
            assert time.monotonic() < deadline_s, "the broker coordinates no groups"
            time.sleep(0.05)


def _whole(port: int, shard: int) -> bytes:
    [answer] = (
        ask(port, FETCH, 11, encoded(FETCH, 11, _fetch([_from(shard, 0)]))).responses[0].partitions
    )
    assert isinstance(answer.records, bytes)
    return answer.records


def _side(port: int) -> Side:
    answer = ask(
        port,
        API_VERSIONS,
        3,
        encoded(API_VERSIONS, 3, {"client_software_name": "test", "client_software_version": "1"}),
    )
    [topic] = ask(
        port,
        METADATA,
        12,
        encoded(METADATA, 12, _metadata([{"topic_id": UUID(int=0), "name": TOPIC}])),
    ).topics
    return Side(
        port,
        topic.topic_id,
        {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys},
    )


def test_the_gateway_answers_as_a_broker_does(gateway: GatewayProcess, broker: Kafka) -> None:
    ours, theirs = _side(gateway.port), _side(broker.ports[0])
    assert set(ours.versions) <= set(theirs.versions)
    release = ".".join(broker.version.split(".")[:2])
    seen: set[str] = set()
    unnamed: dict[str, tuple[Any, Any]] = {}
    asked = set()
    for number in ROUNDS:
        name = f"{broker.version}-{number}"
        common = {
            key: _nearest(number, versions, theirs.versions[key])
            for key, versions in ours.versions.items()
        }
        for (label, key, mine), (_, _, others) in zip(
            _questions(ours, name, common), _questions(theirs, name, common), strict=True
        ):
            asked.add((key, common[key]))
            for place, (left, right) in _unequal(
                f"{APIS[key].handle.__module__.rpartition('.')[2]}: {label}", mine, others
            ):
                names = _differences(place, f"{place} (version {common[key]}, broker {release})")
                seen |= names
                if not names:
                    unnamed.setdefault(f"{place} (version {common[key]})", (left, right))
    assert not unnamed, "\n".join(
        f"{place}\n    gateway {left!r}\n    broker  {right!r}"
        for place, (left, right) in unnamed.items()
    )
    gone = [
        name
        for name in DIFFERENCES
        if name not in seen and ("broker" not in name or f"broker {release}" in name)
    ]
    assert not gone, f"differences that are there no more: {gone}"
    spoken = {
        key: (max(lowest, theirs.versions[key][0]), min(highest, theirs.versions[key][1]))
        for key, (lowest, highest) in ours.versions.items()
    }
    assert asked == {
        (key, version)
        for key, (lowest, highest) in spoken.items()
        if key not in SASL
        for version in range(lowest, highest + 1)
    }


def _differences(*places: str) -> set[str]:
    return {name for name in DIFFERENCES if any(fnmatchcase(place, name) for place in places)}


def _in_order(items: list[Any]) -> list[Any]:
    """Lists of topics and partitions have no order."""
    if not items or not isinstance(items[0], dict):
        return items
    if "partitions" in items[0] and (
        by := next((name for name in ("name", "topic") if name in items[0]), None)
    ):
        topics: dict[Any, dict[str, Any]] = {}
        for item in items:
            topics.setdefault(item[by], {**item, "partitions": []})["partitions"] += item[
                "partitions"
            ]
        items = [
            {**topic, "partitions": _in_order(topic["partitions"])} for topic in topics.values()
        ]
        return sorted(items, key=lambda item: str(item[by]))
    by = next(
        (name for name in ("partition_index", "partition", "api_key", "name") if name in items[0]),
        None,
    )
    return sorted(items, key=lambda item: item[by]) if by else items


def _nearest(version: int, *ranges: tuple[int, int]) -> int:
    lowest, highest = max(each[0] for each in ranges), min(each[1] for each in ranges)
    return max(lowest, min(version, highest))


def _unequal(place: str, left: Any, right: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in left | right:
            yield from _unequal(f"{place}: {name}", left.get(name), right.get(name))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for one, other in zip(left, right, strict=True):
            yield from _unequal(place, one, other)
    elif left != right:
        yield place, (left, right)


# --- what is asked --------------------------------------------------------------------------------


def _questions(
    side: Side, round_name: str, versions: dict[int, int]
) -> Iterator[tuple[str, int, Any]]:
    """The questions of a round: a label, the API, the answer. Its groups have the round's name."""

    def ask_for(label: str, api: int, /, **values: Any) -> tuple[str, int, Any]:
        return label, api, side.ask(api, versions[api], values)

    yield from _of_the_log(side, ask_for, versions)
    yield from _of_nobodys_group(ask_for)
    yield from _of_a_group(side, ask_for, f"group-{round_name}")
    yield from _of_a_simple_consumer(ask_for, f"simple-{round_name}")
    yield from _of_subscribed(side, ask_for, f"subscribed-{round_name}")
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
        yield _of_topic(ask_for(label, DESCRIBE_LOG_DIRS, topics=topics))
    yield from _of_what_is_not_there(ask_for, versions)
    yield ask_for(
        "a record",
        PRODUCE,
        transactional_id=None,
        acks=1,
        timeout=1000,
        topic_data=[_empty_produce(side, versions)],
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
        yield _sorted_by("user", "results", asked)
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


def _sorted_by(field_name: str, what: str, asked: tuple[str, int, Any]) -> tuple[str, int, Any]:
    label, key, answer = asked
    return (
        label,
        key,
        {**answer, what: sorted(answer[what], key=lambda each: str(each[field_name]))},
    )


def _of_the_log(
    side: Side, ask_for: Any, versions: dict[int, int]
) -> Iterator[tuple[str, int, Any]]:
    yield _only(
        TOPIC, "topics", ask_for("all", METADATA, **_metadata(None if versions[METADATA] else []))
    )
    for label, name in (("one", TOPIC), ("unknown", "nobodys"), ("odd", "no such/topic")):
        yield ask_for(label, METADATA, **_metadata([{"topic_id": UUID(int=0), "name": name}]))
    if versions[METADATA] >= 12:
        yield ask_for(
            "unknown id", METADATA, **_metadata([{"topic_id": UNKNOWN_TOPIC_ID, "name": None}])
        )
        yield ask_for("by id", METADATA, **_metadata([{"topic_id": side.topic_id, "name": None}]))
    first_ms, last_ms = _moments(side)
    for label, timestamp in (
        ("latest", -1),
        ("earliest", -2),
        ("first moment", first_ms),
        ("before", 1),
        ("behind the end", last_ms + 1),
    ):
        yield ask_for(label, LIST_OFFSETS, **_list_offsets(TOPIC, range(SHARDS), timestamp))
    if versions[LIST_OFFSETS] >= 7:
        yield ask_for("newest moment", LIST_OFFSETS, **_list_offsets(TOPIC, range(SHARDS), -3))
    yield ask_for("unknown partition", LIST_OFFSETS, **_list_offsets(TOPIC, [SHARDS], -1))
    yield ask_for("unknown topic", LIST_OFFSETS, **_list_offsets("nobodys", [0], -1))
    yield ask_for("future epoch", LIST_OFFSETS, **_list_offsets(TOPIC, [0], -1, epoch=40))
    for label, partitions in (
        ("start", [_from(shard, 0) for shard in range(SHARDS)]),
        ("middle", [_from(1, 11)]),
        ("end", [_from(0, _end(side))]),
        ("beyond", [_from(0, 10_000)]),
        ("negative", [_from(0, -5)]),
        ("unknown partition", [_from(SHARDS, 0)]),
        ("future epoch", [{**_from(0, 0), "current_leader_epoch": 40}]),
    ):
        yield _with_records(ask_for(label, FETCH, **_fetch(partitions, side.topic_id)))
    yield _with_records(
        ask_for("unknown topic", FETCH, **_fetch([_from(0, 0)], UNKNOWN_TOPIC_ID, "nobodys"))
    )
    yield _with_records(
        ask_for(
            "committed", FETCH, **{**_fetch([_from(0, 0)], side.topic_id), "isolation_level": 1}
        )
    )
    yield _with_records(
        ask_for(
            "unknown session",
            FETCH,
            **{**_fetch([_from(0, 0)], side.topic_id), "session_id": 99, "session_epoch": 5},
        )
    )
    epochs = (
        ("present", TOPIC, 0, 0),
        ("future", TOPIC, 0, 9),
        ("unknown partition", TOPIC, SHARDS, 0),
        ("unknown", "nobodys", 0, 0),
    )
    for label, topic, partition, epoch in epochs:
        partitions = [{"partition": partition, "current_leader_epoch": -1, "leader_epoch": epoch}]
        yield ask_for(
            label, LEADER_EPOCH, replica_id=-1, topics=[{"topic": topic, "partitions": partitions}]
        )
    for label, kind, name in (
        ("topic", 2, TOPIC),
        ("unknown topic", 2, "nobodys"),
        ("odd topic", 2, "a/b"),
        ("group", 32, "any"),
        ("unnamed group", 32, ""),
        ("unknown kind", 99, "x"),
    ):
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configuration_keys": ["cleanup.policy", "max.message.bytes", "retention.ms"],
            }
        ]
        yield ask_for(
            label,
            DESCRIBE_CONFIGS,
            resources=resources,
            include_synonyms=False,
            include_documentation=False,
        )


def _of_nobodys_group(ask_for: Any) -> Iterator[tuple[str, int, Any]]:
    nobody = {
        "group_id": "nobodys",
        "member_id": NOBODY,
        "group_instance_id": None,
        "generation_id": 3,
        "generation_id_or_member_epoch": 3,
    }
    for label, key_type, key in (
        ("group", 0, "any"),
        ("transaction", 1, "any"),
        ("empty", 0, ""),
        ("unknown kind", 7, "any"),
    ):
        yield ask_for(label, FIND_COORDINATOR, key_type=key_type, key=key, coordinator_keys=[key])
    yield ask_for("unknown member", JOIN, **{**_join("wanted"), "member_id": NOBODY})
    yield ask_for("no group", JOIN, **_join(""))
    yield ask_for("short session", JOIN, **{**_join("wanted"), "session_timeout": 1})
    yield ask_for("long session", JOIN, **{**_join("wanted"), "session_timeout": 1 << 30})
    yield ask_for("nothing to vote for", JOIN, **{**_join("wanted"), "protocols": []})
    yield ask_for("unknown", HEARTBEAT, **nobody)
    yield ask_for(
        "unknown", SYNC, **nobody, protocol_type="consumer", protocol_name="range", assignments=[]
    )
    yield ask_for(
        "without a protocol", SYNC, **nobody, protocol_type=None, protocol_name=None, assignments=[]
    )
    yield ask_for(
        "unknown",
        LEAVE,
        **nobody,
        members=[{"member_id": NOBODY, "group_instance_id": None, "reason": None}],
    )
    yield ask_for("unknown", OFFSET_COMMIT, **nobody, retention_time=-1, topics=[_commit(0, 5)])
    unnamed = {**nobody, "group_id": ""}
    yield ask_for("unnamed", HEARTBEAT, **unnamed)
    yield ask_for(
        "unnamed", SYNC, **unnamed, protocol_type="consumer", protocol_name="range", assignments=[]
    )
    yield ask_for(
        "unnamed",
        LEAVE,
        **unnamed,
        members=[{"member_id": NOBODY, "group_instance_id": None, "reason": None}],
    )
    yield ask_for("unnamed", DESCRIBE_GROUPS, groups=[""], include_authorized_operations=False)
    yield ask_for("unnamed", OFFSET_FETCH, **_offset_fetch("", [0]))
    yield ask_for("unnamed", OFFSET_COMMIT, **unnamed, retention_time=-1, topics=[_commit(0, 5)])
    yield ask_for(
        "unknown", DESCRIBE_GROUPS, groups=["nobodys"], include_authorized_operations=False
    )
    yield ask_for("unknown", DELETE_GROUPS, groups_names=["nobodys"])
    yield ask_for("unnamed", DELETE_GROUPS, groups_names=[""])
    yield ask_for("unknown", OFFSET_DELETE, **_offset_delete("nobodys", [0]))
    yield ask_for(
        "unknown group and partition", OFFSET_DELETE, **_offset_delete("nobodys", [SHARDS])
    )
    yield ask_for("nothing of an unknown group", OFFSET_DELETE, group_id="nobodys", topics=[])
    yield ask_for("unnamed", OFFSET_DELETE, **_offset_delete("", [0]))
    yield ask_for("unknown", OFFSET_FETCH, **_offset_fetch("nobodys", [0, 1]))
    yield ask_for("unknown, all", OFFSET_FETCH, **_offset_fetch("nobodys", None))


def _of_a_group(side: Side, ask_for: Any, group: str) -> Iterator[tuple[str, int, Any]]:
    """The life of a group of one member; the label ends in where it is."""
    joined = ask_for("first", JOIN, **_join(group))
    yield joined
    if joined[2].get("error_code") == "member_id_required":
        joined = ask_for(
            "with its id",
            JOIN,
            **{**_join(group), "member_id": side.member(joined[2]["member_id"])},
        )
        yield joined
    member = {
        "group_id": group,
        "member_id": side.member(joined[2]["member_id"]),
        "group_instance_id": None,
        "generation_id": side.generation,
        "generation_id_or_member_epoch": side.generation,
    }
    stale = {**member, "generation_id": 70, "generation_id_or_member_epoch": 70}
    sync = {
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member["member_id"], "assignment": b"mine"}],
    }
    yield ask_for("before the sync", HEARTBEAT, **member)
    yield ask_for(
        "before the sync", OFFSET_COMMIT, **member, retention_time=-1, topics=[_commit(0, 5)]
    )
    yield ask_for("stale", SYNC, **stale, **sync)
    yield ask_for("another protocol", SYNC, **member, **{**sync, "protocol_name": "other"})
    yield ask_for("leader", SYNC, **member, **sync)
    yield ask_for("again", SYNC, **member, **{**sync, "assignments": []})
    yield ask_for("stable", HEARTBEAT, **member)
    yield ask_for("stale", HEARTBEAT, **stale)
    yield ask_for("another member", HEARTBEAT, **{**member, "member_id": NOBODY})
    yield ask_for(
        "stable",
        OFFSET_COMMIT,
        **member,
        retention_time=-1,
        topics=[_commit(0, 5), _commit(1, 6, metadata="why")],
    )
    yield ask_for("stale", OFFSET_COMMIT, **stale, retention_time=-1, topics=[_commit(0, 5)])
    yield ask_for(
        "another member",
        OFFSET_COMMIT,
        **{**member, "member_id": NOBODY},
        retention_time=-1,
        topics=[_commit(0, 5)],
    )
    yield ask_for(
        "nobody while it has members",
        OFFSET_COMMIT,
        **_simple(group),
        retention_time=-1,
        topics=[_commit(0, 5)],
    )
    yield ask_for(
        "unknown partition", OFFSET_COMMIT, **member, retention_time=-1, topics=[_commit(SHARDS, 5)]
    )
    yield ask_for(
        "unknown topic",
        OFFSET_COMMIT,
        **member,
        retention_time=-1,
        topics=[_commit(0, 5, topic="nobodys")],
    )
    yield ask_for(
        "long metadata",
        OFFSET_COMMIT,
        **member,
        retention_time=-1,
        topics=[_commit(0, 5, metadata="x" * 5000)],
    )
    yield ask_for("its own", OFFSET_FETCH, **_offset_fetch(group, [0, 1, 2]))
    yield ask_for("its own, all", OFFSET_FETCH, **_offset_fetch(group, None))
    yield ask_for("stable", DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)
    yield _only(
        group, "groups", ask_for("stable", LIST_GROUPS, states_filter=["Stable"], types_filter=[])
    )
    yield _only(
        group,
        "groups",
        ask_for("of another state", LIST_GROUPS, states_filter=["Empty"], types_filter=[]),
    )
    yield ask_for("with members", DELETE_GROUPS, groups_names=[group])
    yield ask_for(
        "of members that read who knows what", OFFSET_DELETE, **_offset_delete(group, [0])
    )
    yield ask_for("other protocols", JOIN, **{**_join(group), "protocol_type": "connect"})
    leaving = {
        **member,
        "members": [
            {"member_id": member["member_id"], "group_instance_id": None, "reason": "done"}
        ],
    }
    yield ask_for("well", LEAVE, **leaving)
    yield ask_for("twice", LEAVE, **leaving)
    yield ask_for("gone", HEARTBEAT, **member)
    yield ask_for("gone", DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)
    yield _only(group, "groups", ask_for("gone", LIST_GROUPS, states_filter=[], types_filter=[]))
    yield ask_for("of the gone", OFFSET_FETCH, **_offset_fetch(group, [0]))
    yield ask_for("gone", DELETE_GROUPS, groups_names=[group])
    yield ask_for("deleted", OFFSET_FETCH, **_offset_fetch(group, [0]))


def _of_a_simple_consumer(ask_for: Any, group: str) -> Iterator[tuple[str, int, Any]]:
    yield ask_for(
        "simple",
        OFFSET_COMMIT,
        **_simple(group),
        retention_time=-1,
        topics=[_commit(0, 7), _commit(2, 0)],
    )
    yield ask_for("simple", OFFSET_FETCH, **_offset_fetch(group, [0, 1, 2]))
    yield ask_for("simple", DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)
    yield _only(group, "groups", ask_for("simple", LIST_GROUPS, states_filter=[], types_filter=[]))
    yield ask_for("one of two", OFFSET_DELETE, **_offset_delete(group, [2]))
    yield ask_for("never committed", OFFSET_DELETE, **_offset_delete(group, [1]))
    yield ask_for("unknown partition", OFFSET_DELETE, **_offset_delete(group, [SHARDS]))
    yield ask_for("unknown topic", OFFSET_DELETE, **_offset_delete(group, [0], topic="nobodys"))
    yield ask_for("some unknown", OFFSET_DELETE, **_offset_delete(group, [2, SHARDS]))
    yield ask_for("one deleted", OFFSET_FETCH, **_offset_fetch(group, [0, 1, 2]))
    yield ask_for("simple", DELETE_GROUPS, groups_names=[group])
    yield ask_for("deleted", OFFSET_DELETE, **_offset_delete(group, [0]))


def _of_subscribed(side: Side, ask_for: Any, group: str) -> Iterator[tuple[str, int, Any]]:
    """Offsets of groups with a member: one that reads the topic, one that reads another, and one
    that is not of consumers."""
    kinds = (
        ("its own topic", "consumer", TOPIC),
        ("another topic", "consumer", "nobodys"),
        ("connect", "connect", TOPIC),
    )
    for number, (label, protocol_type, topic) in enumerate(kinds):
        name = f"{group}-{number}"
        subscription = (
            struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i", -1)
        )
        join = {
            **_join(name),
            "protocol_type": protocol_type,
            "protocols": [{"name": "range", "metadata": subscription}],
        }
        joined = ask_for(label, JOIN, **join)
        yield joined
        if joined[2].get("error_code") == "member_id_required":
            joined = ask_for(
                label, JOIN, **{**join, "member_id": side.member(joined[2]["member_id"])}
            )
            yield joined
        member_id = side.member(joined[2]["member_id"])
        member = {
            "group_id": name,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": side.generation,
            "generation_id_or_member_epoch": side.generation,
        }
        yield ask_for(f"{label}, before the sync", OFFSET_DELETE, **_offset_delete(name, [0]))
        sync = {
            "protocol_type": protocol_type,
            "protocol_name": "range",
            "assignments": [{"member_id": member_id, "assignment": b"mine"}],
        }
        yield ask_for(label, SYNC, **member, **sync)
        yield ask_for(label, OFFSET_COMMIT, **member, retention_time=-1, topics=[_commit(0, 5)])
        yield ask_for(label, OFFSET_DELETE, **_offset_delete(name, [0]))
        yield ask_for(
            f"{label}, and an unknown one", OFFSET_DELETE, **_offset_delete(name, [0, SHARDS])
        )
        yield ask_for(label, OFFSET_FETCH, **_offset_fetch(name, [0]))
        yield ask_for(
            label,
            LEAVE,
            **member,
            members=[{"member_id": member_id, "group_instance_id": None, "reason": "done"}],
        )
        yield ask_for(f"{label}, gone", OFFSET_DELETE, **_offset_delete(name, [0]))


def _only(name: str, what: str, asked: tuple[str, int, Any]) -> tuple[str, int, Any]:
    """Of a list of topics or groups this one: others of the round before, and a broker's internal
    ones, are there too."""
    label, key, answer = asked
    return (
        label,
        key,
        {
            **answer,
            what: [
                each for each in answer[what] if name in (each.get("group_id"), each.get("name"))
            ],
        },
    )


def _of_topic(asked: tuple[str, int, Any]) -> tuple[str, int, Any]:
    """Of the topics in log directories this one alone, likewise."""
    label, key, answer = asked
    results = [
        {**each, "topics": [topic for topic in each["topics"] if topic["name"] == TOPIC]}
        for each in answer["results"]
    ]
    return label, key, {**answer, "results": results}


def _metadata(topics: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }


def _list_offsets(topic: str, partitions: Any, timestamp: int, epoch: int = -1) -> dict[str, Any]:
    wanted = [
        {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
        for partition in partitions
    ]
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": wanted}],
        "timeout": 1000,
    }


def _from(partition: int, offset: int) -> dict[str, Any]:
    return {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }


def _fetch(
    partitions: list[dict[str, Any]], topic_id: UUID = UNKNOWN_TOPIC_ID, topic: str = TOPIC
) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": partitions}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _with_records(asked: tuple[str, int, Any]) -> tuple[str, int, Any]:
    """Records instead of bytes: where batches begin is a broker's own affair."""
    label, key, answer = asked
    for topic in answer["responses"]:
        for partition in topic["partitions"]:
            partition["records"] = [
                record._asdict() for record in decode_record_batches(partition["records"] or b"")
            ]
    return label, key, answer


def _join(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"any"}],
        "reason": None,
    }


def _simple(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": "",
        "group_instance_id": None,
        "generation_id_or_member_epoch": -1,
    }


def _commit(
    partition: int, offset: int, metadata: str | None = "", topic: str = TOPIC
) -> dict[str, Any]:
    each = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
        "commit_timestamp": -1,
    }
    return {"name": topic, "partitions": [each]}


def _offset_fetch(group: str, partitions: list[int] | None) -> dict[str, Any]:
    topics = None if partitions is None else [{"name": TOPIC, "partition_indexes": partitions}]
    return {
        "group_id": group,
        "topics": topics,
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": False,
    }


def _offset_delete(group: str, partitions: list[int], topic: str = TOPIC) -> dict[str, Any]:
    return {
        "group_id": group,
        "topics": [
            {
                "name": topic,
                "partitions": [{"partition_index": partition} for partition in partitions],
            }
        ],
    }


def _empty_produce(side: Side, versions: dict[int, int]) -> dict[str, Any]:
    del versions
    return {
        "name": TOPIC,
        "topic_id": side.topic_id,
        "partition_data": [{"index": 0, "records": b""}],
    }


def _moments(side: Side) -> tuple[int, int]:
    records = [
        record
        for shard in range(SHARDS)
        for record in decode_record_batches(_whole(side.port, shard))
    ]
    return min(record.timestamp_ms for record in records), max(
        record.timestamp_ms for record in records
    )


def _end(side: Side) -> int:
    return len(list(decode_record_batches(_whole(side.port, 0))))
