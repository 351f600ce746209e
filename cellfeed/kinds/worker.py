"""HTTP workers: the API over HTTP. Beside it a worker puts buffered cells where they belong, ends
moves and erasures that broke off, looks for damage, and trains dictionaries."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack

from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, process_kind


def names(config: Config) -> list[str]:
    return [each.name for each in config.workers]


@process_kind("worker", 10, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from prometheus_client.registry import Collector

    from cellfeed.assembly.audit_logs import audit_log
    from cellfeed.assembly.background import (
        beside,
        erasures_ended,
        moves_healed,
        trims_settled,
    )
    from cellfeed.assembly.check_metrics import CheckMetrics
    from cellfeed.assembly.checked_places import background_check
    from cellfeed.assembly.datastore import opened
    from cellfeed.assembly.issuers import issued_tokens
    from cellfeed.assembly.lake_outlets import lake_tables
    from cellfeed.assembly.recovery_metrics import RecoveryMetrics
    from cellfeed.assembly.servers_asked import servers_asked
    from cellfeed.assembly.wakeups import woken
    from cellfeed.bridge.indexes.groups import index_positions
    from cellfeed.bridge.outlets.find import outlets
    from cellfeed.bridge.outlets.handled_to import handled_to
    from cellfeed.bridge.triggers.operate.metrics import TriggerMetrics
    from cellfeed.config.http import http_listener
    from cellfeed.status.disk_metrics import DiskMetrics
    from cellfeed.store.clusters.serving.engine import ClusteredEngine
    from cellfeed.store.http.received_wakeups import RECEIVED
    from cellfeed.store.http.server.worker import run_worker
    from cellfeed.store.security.certificates import Certificates

    directory, config, name, stop = process[:4]
    worker = next(each for each in config.workers if each.name == name)
    port = directory.kept_port(name, "http", worker.port)
    with (
        opened(config, directory.path) as (_, datastore, coordinator),
        servers_asked(datastore, coordinator),
        woken(config, datastore),
        ExitStack() as background,
    ):
        if isinstance(datastore.engine, ClusteredEngine):
            datastore.engine.drain.start()
            background.enter_context(moves_healed(config, stop))
        background.enter_context(erasures_ended(datastore, stop))
        background.enter_context(trims_settled(datastore, stop))
        collectors: list[Collector] = [
            TriggerMetrics(datastore, coordinator),
            RecoveryMetrics(directory, [each.name for each in config.backups]),
            RECEIVED,
            DiskMetrics(directory, config),
        ]
        if config.checks is not None:
            check = background_check(config, config.checks, directory.path, datastore.state)
            background.enter_context(beside("check", check.run, stop))
            collectors.append(CheckMetrics(check))
        if config.datastore.dictionaries == "automatic":
            datastore.train_dictionaries()
        datastore.waits.find = outlets(datastore, coordinator, lake_tables(config, directory))
        datastore.indexes.positions = index_positions(coordinator, datastore.name)
        datastore.indexes.settled.handled_to = handled_to(datastore, coordinator)
        listener = http_listener(worker.host, port, worker.tls, worker.authentication)
        certificates = Certificates(listener.tls, worker.name)
        audit = audit_log(config, directory.path, name)
        if audit is not None:
            background.callback(audit.close)

        def look_again(*_: object) -> None:
            certificates.refresh()
            if audit is not None:
                audit.reopen_soon()

        if threading.current_thread() is threading.main_thread():  # others get no signals
            signal.signal(signal.SIGHUP, look_again)
        run_worker(
            datastore,
            stop=stop,
            on_started=lambda bound: process.say_ready(http=bound),
            collectors=collectors,
            listener=listener,
            certificates=certificates,
            signed=issued_tokens(config),
            audit=audit,
            limits=config.limits.of_workers(),
            advertised=worker.advertised,
        )
