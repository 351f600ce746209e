"""The gateway and a real broker that has the same log are asked the same things, in every version
that both speak. Their answers are equal but for ``DIFFERENCES``, each with its reason; one that is
no longer seen has to leave the list.

Values that name a process (addresses, node ids, cluster and topic ids, ids of members, directories)
are compared by their places, not as they are; so are sizes, and generations: a gateway's group
begins above every one that its slot has given out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.bridge.gateway.apis.advertised import APIS
from cellfeed.servers.kafka_jars import KAFKA_VERSION, OLDER_KAFKA_VERSION
from cellfeed.store.datastore import Datastore
from tests.clients.beside_kafka.api_keys import (
    API_VERSIONS,
    FIND_COORDINATOR,
    HEARTBEAT,
    METADATA,
    SASL,
)
from tests.clients.beside_kafka.differences import DIFFERENCES
from tests.clients.beside_kafka.log_questions import whole_log
from tests.clients.beside_kafka.questions import questions
from tests.clients.beside_kafka.requests import metadata_request
from tests.clients.beside_kafka.side import (
    CELLS,
    NOBODY,
    TOPIC,
    Side,
    differing_places,
    nearest_version,
)
from tests.support.local_kafka import Kafka, started_kafka
from tests.support.raw_requests import ask, encoded
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]


ROUNDS: Final = range(max(api.versions[1] for api in APIS.values()) + 1)
"""In round n every API is asked in its version n, or in the nearest that both sides speak."""


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
            for record in decode_record_batches(whole_log(gateway.port, shard)):
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
        encoded(METADATA, 12, metadata_request([{"topic_id": UUID(int=0), "name": TOPIC}])),
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
            key: nearest_version(number, versions, theirs.versions[key])
            for key, versions in ours.versions.items()
        }
        for (label, key, mine), (_, _, others) in zip(
            questions(ours, name, common), questions(theirs, name, common), strict=True
        ):
            asked.add((key, common[key]))
            for place, (left, right) in differing_places(
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
    assert not gone, f"differences that are there no longer: {gone}"
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
