"""The changes that options of ``up`` make to a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.model import Config, WorkerConfig
from cellfeed.instance.config_file import check_config
from cellfeed.store.errors import InvalidRequest

T = TypeVar("T", WorkerConfig, GatewayProcessConfig)


class UpOptions(NamedTuple):
    """Each is None where the configuration decides. Ports: 0 means a free one."""

    datastore: str | None = None
    port: int | None = None
    kafka_port: int | None = None
    registry_port: int | None = None

    def applied(self, config: Config) -> Config:
        """The configuration with the options applied. Raises InvalidRequest."""
        if self.datastore is not None:
            config = msgspec.structs.replace(
                config, datastore=msgspec.structs.replace(config.datastore, name=self.datastore)
            )
        if self.port is not None:
            worker = _only(config.workers, "--port", "workers")
            config = msgspec.structs.replace(
                config, workers=[msgspec.structs.replace(worker, port=self.port)]
            )
        ports = {"port": self.kafka_port, "registry_port": self.registry_port}
        for field, port in ports.items():
            if port is not None:
                option = "--kafka-port" if field == "port" else "--registry-port"
                gateway = _only(config.gateways, option, "gateways")
                if field == "port" and gateway.listeners:
                    raise InvalidRequest(
                        f"--kafka-port {port}: {gateway.name} has listeners, each with a port of"
                        " its own: give it in the configuration"
                    )
                config = msgspec.structs.replace(
                    config, gateways=[msgspec.structs.replace(gateway, **{field: port})]
                )
        return check_config(config)

    def words(self) -> list[str]:
        """The options as a command has them."""
        given = zip(("--datastore", "--port", "--kafka-port", "--registry-port"), self, strict=True)
        return [word for name, value in given if value is not None for word in (name, str(value))]


def _only(entries: Sequence[T], option: str, section: str) -> T:
    if len(entries) == 1:
        return entries[0]
    raise InvalidRequest(
        f"{option} is for one entry, and the configuration has {len(entries)} {section}: give"
        " ports there"
    )
