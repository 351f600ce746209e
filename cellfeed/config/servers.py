"""Servers that are processes of the instance: MariaDB, ZooKeeper and Kafka on one machine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

ListenPort = Annotated[int, Meta(ge=1, le=65_535)]

ProcessName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,40}$")]


class MariaDbServerConfig(
    Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="mariadb"
):
    """A MariaDB server that is a process of the instance: a storage node whose ``url`` names its
    port; user and password are the node's. ``directory`` is ``servers/NAME`` of the run directory
    without; ``settings``: a file of MariaDB's own form instead of the shipped one."""

    name: ProcessName
    port: ListenPort
    server_id: Annotated[int, Meta(ge=1, le=4_294_967_295)]
    directory: str | None = None
    settings: str | None = None


class ZooKeeperServerConfig(
    Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="zookeeper"
):
    """A ZooKeeper server of one node that is a process of the instance. ``directory`` and
    ``settings`` as for MariaDB."""

    name: ProcessName = "zookeeper"
    port: ListenPort = 2181
    directory: str | None = None
    settings: str | None = None


class KafkaServerConfig(
    Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="kafka"
):
    """A Kafka broker of one node (KRaft) that is a process of the instance. ``directory`` and
    ``settings`` as for MariaDB."""

    name: ProcessName = "kafka"
    port: ListenPort = 9094
    controller_port: ListenPort = 9095
    directory: str | None = None
    settings: str | None = None


ServerConfig = MariaDbServerConfig | ZooKeeperServerConfig | KafkaServerConfig
