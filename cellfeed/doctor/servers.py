"""The servers that an instance stands on: MariaDB nodes, ZooKeeper, and the Kafka clusters of its
exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final

from cellfeed.assembly.clusters import cluster_servers
from cellfeed.bridge.coordination.open import IN_STORE
from cellfeed.bridge.coordination.zookeeper.url import parse_zookeeper_url
from cellfeed.bridge.export.declaration import Export
from cellfeed.config.model import Config
from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.store.engines.mysql.checks import check_server
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.errors import CellfeedError, StorageUnavailable

_ANSWER_S: Final = 5.0
"""How long a server may take for an answer before it counts as away."""

_ENSEMBLE_MIN: Final = 3
"""Servers of a ZooKeeper that survives the loss of one."""

_REPLICAS_MIN: Final = 2
"""Replicas that acknowledge a record, so that it survives the loss of a broker's disk."""


def examine_servers(instance: Instance) -> Iterator[Finding]:
    """Asks each server for its settings."""
    config = instance.config
    yield from nodes(config)
    if config.coordination != IN_STORE:
        yield ensemble(config.coordination, instance.status.coordination_away)
    for export in config.exports:
        yield from kafka(export, config)


def nodes(config: Config) -> Iterator[Finding]:
    """The storage nodes: settings, versions and clocks, as every engine checks them that opens."""
    for given in config.datastore.clusters:
        with (
            closing(cluster_servers(config, given.name)) as every,
            closing(every.with_timeout(_ANSWER_S)) as cluster,
        ):
            for name, server in cluster.servers.items():
                yield from node(f"{given.name}: {name} ({server})", server)


def node(subject: str, server: MySqlServer) -> Iterator[Finding]:
    """One storage node."""
    try:
        with server.connection() as connection:
            problems = check_server(connection)
    except StorageUnavailable as error:
        yield Finding("servers", subject, Level.PROBLEM, str(error), "start it, or rejoin it")
        return
    for problem in problems:
        yield Finding("servers", subject, Level.PROBLEM, str(problem), problem.fix)
    if not problems:
        yield Finding("servers", subject, Level.WELL, "its settings keep cells safe")


def ensemble(url: str, away: str | None) -> Finding:
    """A ZooKeeper. ``away``: why it could not be asked."""
    hosts = parse_zookeeper_url(url).hosts
    subject = f"ZooKeeper {hosts}"
    if away is not None:
        return Finding("servers", subject, Level.PROBLEM, away, "start a majority of its servers")
    if hosts.count(",") + 1 < _ENSEMBLE_MIN:
        return Finding(
            "servers",
            subject,
            Level.ADVICE,
            "answers, and is fewer than three servers: without them no shard changes hands and no"
            " offset is saved",
            "name three servers or more of one ensemble, on different hosts",
        )
    return Finding("servers", subject, Level.WELL, "answers")


def kafka(export: Export, config: Config) -> Iterator[Finding]:
    """The topic of an export, in its cluster."""
    # An extra of its own: other instances lack it.
    from confluent_kafka import KafkaException

    from cellfeed.bridge.export.kafka_clients import admin_of
    from cellfeed.bridge.export.kafka_errors import error_of, words
    from cellfeed.bridge.export.topics import (
        check_partitions,
        check_settings,
        describe,
        settings_of,
    )

    topic = export.topic_of(config.datastore.name)
    subject = f"export {export.name}: topic {topic} at {export.bootstrap}"
    try:
        admin = admin_of(export)
        facts = describe(admin, topic, _ANSWER_S)
        if facts is None:
            yield Finding(
                "servers",
                subject,
                Level.ADVICE,
                "the topic is not there: the export makes it at its first start",
                f"cellfeed export status {export.name} says whether it ever ran",
            )
            return
        settings = settings_of(admin, topic, _ANSWER_S)
    except KafkaException as error:
        yield _kafka_away(subject, words(error_of(error)))
        return
    except CellfeedError as error:
        yield _kafka_away(subject, str(error))
        return
    wrong = check_settings(export, topic, settings)
    partitions = check_partitions(export, topic, config.datastore.shards, facts.partitions)
    for each in [*wrong, *([partitions] if partitions else [])]:
        said, _, command = each.partition(": ")
        yield Finding("servers", subject, Level.PROBLEM, said, command)
    yield from _durability(subject, settings)


def _kafka_away(subject: str, why: str) -> Finding:
    return Finding(
        "servers",
        subject,
        Level.PROBLEM,
        f"the Kafka cluster does not answer: {why}",
        "start the brokers",
    )


def _durability(subject: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings.get("unclean.leader.election.enable") == "true":
        yield Finding(
            "servers",
            subject,
            Level.PROBLEM,
            "unclean.leader.election.enable is true: a broker that lacks records may become leader,"
            " and they are gone",
            "set it to false for this topic",
        )
    replicas = settings.get("min.insync.replicas", "")
    if replicas.isdigit() and int(replicas) < _REPLICAS_MIN:
        yield Finding(
            "servers",
            subject,
            Level.ADVICE,
            f"min.insync.replicas is {replicas}: a broker's disk that fails takes records with it",
            "three replicas and min.insync.replicas=2",
        )
    else:
        yield Finding("servers", subject, Level.WELL, "its settings keep records")
