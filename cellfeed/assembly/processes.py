"""What each kind of process does: opens the datastore, serves until SIGTERM or SIGINT, says when it
is ready.

``cellfeed run --run-dir DIR NAME`` is the entry; ``cellfeed up`` starts these, and anybody's own
supervisor may do the same. Each kind imports what it runs when it runs it: a worker that loads the
gateway and DuckDB starts two seconds later and is three times as large.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cellfeed.assembly import storage
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.config.model import (
    BackupsConfig,
    Config,
    GatewayProcessConfig,
    IndexWorkersConfig,
    TriggersConfig,
    WarehouseConfig,
    WorkerConfig,
    load_config,
    process_names,
    trigger_process_names,
)
from cellfeed.run_dir import RunDir
from cellfeed.servers.configured import SERVER_KINDS, configured_server
from cellfeed.servers.life import run_in_place
from cellfeed.store.background import SupervisedThread, when_changed
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.erasures import ErasureJob
from cellfeed.store.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from cellfeed.consumers.warehouse.loader import LoaderProgress

LOADER_SESSION_TIMEOUT_MS: Final = 10_000
"""After how long the partitions of a loader that does not come back go to others."""


def run_process(run_dir: Path, name: str) -> None:
    """Runs the process of that name until a signal stops it. Raises NotFound for a name that the
    configuration does not have."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    directory = RunDir(run_dir)
    config = load_config(directory.config)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    kinds = dict(process_names(config))
    directory.make()
    when_changed(partial(directory.say_troubles, name))
    match kinds.get(name):
        case "worker":
            _run_worker(
                directory, config, next(each for each in config.workers if each.name == name), stop
            )
        case "gateway":
            _run_gateway(
                directory, config, next(each for each in config.gateways if each.name == name), stop
            )
        case "triggers":
            triggers = next(each for each in config.triggers if name in trigger_process_names(each))
            run_triggers(
                directory, config, triggers, name, stop, lambda: directory.say_ready(name, {})
            )
        case "index":
            workers = next(each for each in config.indexes if name in trigger_process_names(each))
            _run_index(directory, config, workers, name, stop)
        case "export":
            _run_exports(directory, config, name, stop)
        case "warehouse":
            _run_warehouse(
                directory,
                config,
                next(each for each in config.warehouses if each.name == name),
                stop,
            )
        case "backups":
            _run_backups(
                directory, config, next(each for each in config.backups if each.name == name), stop
            )
        case "failover":
            _run_failover(directory, config, name, stop)
        case kind if kind in SERVER_KINDS:
            run_in_place(configured_server(directory, config, name), directory)
        case _:
            raise NotFound(f"the configuration has no process {name!r}; it has {', '.join(kinds)}")


def open_datastore(directory: RunDir, config: Config) -> Datastore:
    """The instance's datastore, in process."""
    return storage.open_datastore(config, directory.path)


def trigger_settings(directory: RunDir, triggers: TriggersConfig) -> dict[str, Any]:
    """The settings that the program gets: ``{run_dir}`` in a text is the run directory, so that one
    configuration serves wherever it runs."""
    return {
        name: value.replace("{run_dir}", str(directory.path)) if isinstance(value, str) else value
        for name, value in triggers.settings.items()
    }


def _run_worker(
    directory: RunDir, config: Config, worker: WorkerConfig, stop: threading.Event
) -> None:
    from cellfeed.assembly.recovery_metrics import RecoveryMetrics
    from cellfeed.bridge.indexes.groups import index_positions
    from cellfeed.bridge.triggers.operate.metrics import TriggerMetrics
    from cellfeed.store.http.server.worker import run_worker

    port = directory.kept_port(worker.name, "http", worker.port)
    with (
        open_datastore(directory, config) as datastore,
        closing(
            open_coordinator(config.coordination, datastore.state, datastore.history)
        ) as coordinator,
        ExitStack() as background,
    ):
        if isinstance(datastore.engine, ClusteredEngine):
            datastore.engine.drain.start()
            background.enter_context(moves_healed(config, stop))
        background.enter_context(erasures_ended(datastore, stop))
        if config.datastore.dictionaries == "automatic":
            datastore.train_dictionaries()
        datastore.indexes.positions = index_positions(coordinator, datastore.name)
        run_worker(
            datastore,
            worker.host,
            port,
            stop=stop,
            on_started=lambda bound: directory.say_ready(worker.name, {"http": bound}),
            collectors=[
                TriggerMetrics(datastore, coordinator),
                RecoveryMetrics(directory, [each.name for each in config.backups]),
            ],
        )


def _run_gateway(
    directory: RunDir, config: Config, gateway: GatewayProcessConfig, stop: threading.Event
) -> None:
    from cellfeed.bridge.gateway.server import GatewayConfig, run_gateway

    settings = GatewayConfig(
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
        registry_port=directory.kept_port(gateway.name, "registry", gateway.registry_port),
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
    )

    def started(kafka: int, registry: int) -> None:
        directory.say_ready(gateway.name, {"kafka": kafka, "registry": registry})

    with (
        open_datastore(directory, config) as datastore,
        closing(
            open_coordinator(config.coordination, datastore.state, datastore.history)
        ) as coordinator,
    ):
        _register_schemas(directory, config, datastore)
        run_gateway(datastore, coordinator, settings, stop, started)


def run_triggers(
    directory: RunDir,
    config: Config,
    triggers: TriggersConfig,
    name: str,
    stop: threading.Event,
    ready: Callable[[], None],
) -> None:
    """Runs one trigger worker until ``stop`` is set, and drains it. ``ready`` is called when its
    program is loaded, its datastore is open, and its groups are no other trigger's."""
    from cellfeed.bridge.triggers.program import load_program
    from cellfeed.bridge.triggers.worker import check_groups, run_trigger_worker

    program = load_program(
        triggers.app, trigger_settings(directory, triggers), entry=triggers.name or ""
    )
    with (
        open_datastore(directory, config) as datastore,
        closing(
            open_coordinator(config.coordination, datastore.state, datastore.history)
        ) as coordinator,
    ):
        with suppress(Unavailable):  # then the worker waits, and compares before it works
            check_groups(program, datastore, coordinator)
        ready()
        run_trigger_worker(
            program,
            datastore,
            coordinator,
            name,
            stop,
            lease_s=triggers.lease_s,
            threads=triggers.threads,
        )


def _run_index(
    directory: RunDir, config: Config, workers: IndexWorkersConfig, name: str, stop: threading.Event
) -> None:
    from cellfeed.bridge.indexes.worker import IndexWorker

    with (
        open_datastore(directory, config) as datastore,
        closing(
            open_coordinator(config.coordination, datastore.state, datastore.history)
        ) as coordinator,
    ):
        directory.say_ready(name, {})
        IndexWorker(datastore, coordinator, name, lease_s=workers.lease_s).run(stop)


def _run_exports(directory: RunDir, config: Config, name: str, stop: threading.Event) -> None:
    from cellfeed.bridge.export.worker import run_exporter

    with (
        open_datastore(directory, config) as datastore,
        closing(
            open_coordinator(config.coordination, datastore.state, datastore.history)
        ) as coordinator,
    ):
        _register_schemas(directory, config, datastore)
        directory.say_ready(name, {})
        # Of several instances over one storage each has a process of this name: the run directory
        # tells them apart.
        run_exporter(config.exports, datastore, coordinator, _instance_id(directory, name), stop)


def _run_backups(
    directory: RunDir, config: Config, backups: BackupsConfig, stop: threading.Event
) -> None:
    from cellfeed.assembly.backup_source import backup_source
    from cellfeed.store.backups.folder import BackupFolder
    from cellfeed.store.backups.places.open import place_at
    from cellfeed.store.backups.schedule import BackupSchedule

    with backup_source(config, directory.path) as source:
        schedule = BackupSchedule(
            BackupFolder(place_at(backups.directory, directory.inside)),
            source,
            backups.policy(),
            partial(directory.say_recovery, backups.name),
        )
        with _beside("backup-schedule", schedule.run, stop):
            directory.say_ready(backups.name, {})
            stop.wait()


def _register_schemas(directory: RunDir, config: Config, datastore: Datastore) -> None:
    """What the configuration says of columns' bodies. Raises InvalidRequest, and
    IncompatibleSchema, which names field and rule: nothing is served then."""
    if config.datastore.schemas:
        from cellfeed.bridge.typed.versions import register_declared

        register_declared(datastore.state, config.datastore.schemas, directory.path)


def _run_failover(directory: RunDir, config: Config, name: str, stop: threading.Event) -> None:
    from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor

    automatic = [
        cluster.name for cluster in config.datastore.clusters if cluster.failover == "automatic"
    ]
    clusters = [storage.cluster_servers(config, cluster) for cluster in automatic]
    threads = [
        SupervisedThread(f"failover-{cluster.name}", partial(FailoverSupervisor(cluster).run, stop))
        for cluster in clusters
    ]
    with moves_healed(config, stop):
        for thread in threads:
            thread.start()
        directory.say_ready(name, {})
        stop.wait()
        for thread in threads:
            thread.join()
    for cluster in clusters:
        cluster.close()


@contextmanager
def moves_healed(config: Config, stop: threading.Event) -> Iterator[None]:
    """Beside what the process does, until ``stop`` is set: moves of shards whose mover has died are
    ended."""
    from cellfeed.store.clusters.moves.heal import MoveHealer

    clusters = {
        each.name: storage.cluster_servers(config, each.name) for each in config.datastore.clusters
    }
    with ExitStack() as stack:
        for cluster in clusters.values():
            stack.callback(cluster.close)
        if len(clusters) > 1:
            stack.enter_context(_beside("move-healer", MoveHealer(clusters).run, stop))
        yield


def erasures_ended(datastore: Datastore, stop: threading.Event) -> AbstractContextManager[None]:
    """Beside what the process does, until ``stop`` is set: erasures that were broken off are
    ended."""
    return _beside(
        "erasures", ErasureJob(datastore.unended_erasures, datastore.end_erasure).run, stop
    )


@contextmanager
def _beside(
    name: str, run: Callable[[threading.Event], None], stop: threading.Event
) -> Iterator[None]:
    """A thread that runs until ``stop`` is set, by somebody or by the end of the context."""
    thread = SupervisedThread(name, partial(run, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _run_warehouse(
    directory: RunDir, config: Config, warehouse: WarehouseConfig, stop: threading.Event
) -> None:
    from cellfeed.consumers.warehouse.loader import FlushPolicy, run_warehouse_loader

    bootstrap = warehouse.bootstrap or _first_gateway(directory, config)
    log = logging.getLogger("cellfeed.warehouse")
    told: dict[int, str] = {}

    def progress(now: LoaderProgress) -> None:
        for shard, reason in now.stopped.items():
            if told.get(shard) != reason:
                told[shard] = reason
                log.error("partition %d is stopped: %s", shard, reason)

    directory.say_ready(warehouse.name, {})
    run_warehouse_loader(
        bootstrap,
        warehouse.topic or config.datastore.name,
        warehouse.group,
        directory.inside(warehouse.directory),
        stop,
        on_progress=progress,
        flush=FlushPolicy(rows=warehouse.flush_rows, age_s=warehouse.flush_age_s),
        consumer_config={
            "group.instance.id": _instance_id(directory, warehouse.name),
            "session.timeout.ms": LOADER_SESSION_TIMEOUT_MS,
        },
    )


def _instance_id(directory: RunDir, name: str) -> str:
    """A name of its own for a process of this run directory, the same whenever it is started. So a
    loader that was killed and started again takes its own place at once, without a rebalance."""
    return f"{name}-{sha256(str(directory.path.resolve()).encode()).hexdigest()[:8]}"


def _first_gateway(directory: RunDir, config: Config) -> str:
    if not config.gateways:
        raise NotFound(
            "a warehouse without a bootstrap address needs a gateway in the same configuration"
        )
    gateway = config.gateways[0]
    ready = directory.ready(gateway.name)
    return f"{gateway.host}:{ready.ports['kafka'] if ready else gateway.port}"
