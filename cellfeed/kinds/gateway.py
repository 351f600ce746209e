"""Kafka gateways with their schema registry."""

from __future__ import annotations

from dataclasses import replace

from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.http import http_listener
from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, process_kind
from cellfeed.run_dir import RunDir


def names(config: Config) -> list[str]:
    return [each.name for each in config.gateways]


@process_kind("gateway", 20, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.audit_logs import audit_log
    from cellfeed.assembly.column_schemas import register_schemas
    from cellfeed.assembly.datastore import opened
    from cellfeed.assembly.issuers import issued_tokens
    from cellfeed.assembly.servers_asked import servers_asked
    from cellfeed.assembly.wakeups import woken
    from cellfeed.bridge.gateway.run import run_gateway

    directory, config, name, stop = process[:4]
    gateway = next(each for each in config.gateways if each.name == name)
    audit = audit_log(config, directory.path, name)
    settings = replace(
        _settings(directory, config, gateway), signed=issued_tokens(config), audit=audit
    )
    with (
        opened(config, directory.path) as (_, datastore, coordinator),
        servers_asked(datastore, coordinator),
        woken(config, datastore),
    ):
        register_schemas(config, directory.path, datastore)
        run_gateway(
            datastore,
            coordinator,
            settings,
            stop,
            lambda kafka, registry: process.say_ready(kafka=kafka, registry=registry),
        )


def _settings(directory: RunDir, config: Config, gateway: GatewayProcessConfig) -> GatewayConfig:
    return GatewayConfig(
        host=gateway.host,
        port=gateway.port
        if gateway.listeners
        else directory.kept_port(gateway.name, "kafka", gateway.port),
        listeners=tuple(
            replace(
                each.listener(),
                port=directory.kept_port(
                    gateway.name, "kafka" if not number else f"kafka-{each.name}", each.port
                ),
            )
            for number, each in enumerate(gateway.listeners)
        ),
        registry=http_listener(
            gateway.registry.bind or gateway.host,
            directory.kept_port(gateway.name, "registry", gateway.registry_port),
            gateway.registry.tls,
            gateway.registry.authentication,
        ),
        name=gateway.name,
        advertised_host=gateway.advertised_host,
        advertised_port=gateway.advertised_port,
        formats=gateway.formats,
        topics=tuple(config.datastore.topics),
        compressions=gateway.compression,
        blocks_bytes_max=gateway.blocks.memory_bytes,
        blocks_directory=directory.inside(gateway.blocks.directory),
        block_files_bytes_max=gateway.blocks.disk_bytes,
        group_initial_delay_s=gateway.group_initial_delay_s,
        session_timeout_s=gateway.session_timeout_s,
        limits=config.limits.of_gateways(),
    )
