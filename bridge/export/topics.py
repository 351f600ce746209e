"""The topic of an export: made with the needed settings, or checked and refused with the command
that mends it.

=============================  ==========================  ========================================
setting                        needed                      why
=============================  ==========================  ========================================
partitions                     the datastore's shards      shard *n* goes to partition *n*
``cleanup.policy``             ``delete``                  compaction would take away all but the
                                                           last cell of a row
``retention.ms``, ``.bytes``   -1, or as configured        else the broker deletes cells, read or
                                                           not
``message.timestamp.type``     ``CreateTime``              a record's timestamp is the cell's
                                                           ``created_at``
``max.message.bytes``          ``record_bytes_max``        else the broker refuses records that the
                                                           exporter takes for small enough
=============================  ==========================  ========================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_errors import error_of, words
from cellfeed.bridge.export.limits import METADATA_S
from cellfeed.store.errors import InvalidRequest, ProtectData, Unavailable

_ALWAYS: Final = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
_RETENTION: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
_BYTES: Final = "max.message.bytes"


class TopicFacts(NamedTuple):
    """A topic as the cluster describes it. ``topic_id`` is another one when it was deleted and made
    again."""

    topic_id: str
    partitions: int


def wanted_settings(export: Export) -> dict[str, str]:
    """The settings of a new topic. Raises InvalidRequest where the configuration contradicts the
    needs of an export."""
    for name, value in _ALWAYS.items():
        if export.topic_settings.get(name, value) != value:
            raise InvalidRequest(
                f"export {export.name}: topic_settings: {name} must be {value}, not"
                f" {export.topic_settings[name]}"
            )
    given = export.topic_settings.get(_BYTES, str(export.record_bytes_max))
    if not given.isdigit() or int(given) < export.record_bytes_max:
        raise InvalidRequest(
            f"export {export.name}: topic_settings: {_BYTES} {given} is below record_bytes_max,"
            f" {export.record_bytes_max}"
        )
    return {**_RETENTION, _BYTES: given, **export.topic_settings, **_ALWAYS}


def check_settings(export: Export, topic: str, found: Mapping[str, str]) -> list[str]:
    """The faults of a topic's settings, each with the command that mends it. ``found``: those in
    force, defaults of the broker included."""
    wanted = wanted_settings(export)
    wrong = {
        name: wanted[name] for name in (*_ALWAYS, *_RETENTION) if found.get(name) != wanted[name]
    }
    if int(found.get(_BYTES, "0")) < export.record_bytes_max:
        wrong[_BYTES] = wanted[_BYTES]
    command = (
        f"kafka-configs.sh --bootstrap-server {export.bootstrap} --alter --entity-type topics"
        f" --entity-name {topic} --add-config"
    )
    return [
        f"{name} is {found.get(name, 'not reported')}, needed is {value}: {command} {name}={value}"
        for name, value in wrong.items()
    ]


def check_partitions(export: Export, topic: str, shards: int, partitions: int) -> str | None:
    """The fault of the number of partitions; None when there is none."""
    if partitions < shards:
        command = (
            f"kafka-topics.sh --bootstrap-server {export.bootstrap} --alter --topic {topic}"
            f" --partitions {shards}"
        )
        return (
            f"topic {topic!r} has {partitions} partitions, the datastore {shards} shards, one for"
            f" each: {command}"
        )
    if partitions > shards:
        return (
            f"topic {topic!r} has {partitions} partitions, the datastore {shards} shards, one for"
            " each: partitions cannot be taken away, name another topic"
        )
    return None


def ensure_topic(
    admin: AdminClient, export: Export, topic: str, shards: int, *, make: bool
) -> TopicFacts:
    """The topic, made when it is not there (``make``) and checked when it is. Raises ProtectData
    for one that an export must not go to, or that is gone and must not be made; KafkaException,
    Unavailable."""
    facts = describe(admin, topic)
    if facts is None:
        if not make:
            raise ProtectData(
                f"topic {topic!r} is not there any more, and cells were exported to it; with"
                " `on_lost_topic: start_over` it is begun again"
            )
        _create(admin, export, topic, shards)
        facts = describe(admin, topic)
        if facts is None:
            raise Unavailable(
                f"topic {topic!r} was made just now, and brokers do not report it yet"
            )
    wrong = [said for said in [check_partitions(export, topic, shards, facts.partitions)] if said]
    wrong += check_settings(export, topic, settings_of(admin, topic))
    if wrong:
        raise ProtectData(f"export {export.name}: topic {topic!r}: " + "; ".join(wrong))
    return facts


def describe(admin: AdminClient, topic: str, timeout_s: float = METADATA_S) -> TopicFacts | None:
    """None when there is no such topic. Raises KafkaException."""
    try:
        found = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[
            topic
        ].result(timeout_s)
    except KafkaException as error:
        if error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    except TimeoutError:
        raise Unavailable(
            f"the cluster did not describe topic {topic!r} within {timeout_s:.0f} s"
        ) from None
    return TopicFacts(str(found.topic_id), len(found.partitions))


def cluster_id_of(admin: AdminClient) -> str:
    """The cluster's id, wherever its brokers are; empty where it reports none. Raises
    KafkaException, Unavailable."""
    try:
        found = admin.describe_cluster(request_timeout=METADATA_S).result(METADATA_S)
    except TimeoutError:
        raise Unavailable(f"the cluster did not report its id within {METADATA_S:.0f} s") from None
    return str(found.cluster_id or "")


def settings_of(admin: AdminClient, topic: str, timeout_s: float = METADATA_S) -> dict[str, str]:
    """The settings in force. Raises KafkaException."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], request_timeout=timeout_s)[resource].result(
            timeout_s
        )
    except TimeoutError:
        raise Unavailable(
            f"the cluster did not report the settings of topic {topic!r} within {timeout_s:.0f} s"
        ) from None
    return {name: str(entry.value) for name, entry in found.items()}


def _create(admin: AdminClient, export: Export, topic: str, shards: int) -> None:
    new = NewTopic(topic, shards, export.replication_factor, config=wanted_settings(export))
    try:
        admin.create_topics([new], operation_timeout=METADATA_S, request_timeout=METADATA_S)[
            topic
        ].result(METADATA_S)
    except KafkaException as error:
        found = error_of(error)
        if found.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return  # another exporter was faster
        if found.retriable():
            raise
        raise ProtectData(
            f"export {export.name}: topic {topic!r} could not be made: {words(found)}"
        ) from error
    except TimeoutError:
        raise Unavailable(f"topic {topic!r} was not made within {METADATA_S:.0f} s") from None
