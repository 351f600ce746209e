"""One fault run on an export: cells are put while exporters, the network, the broker and ZooKeeper
fail (``export_faults.py``); afterwards the topic is compared with the log from outside.

I15: each partition equals its shard's log, in order, nothing twice; a reader of committed records
that is there all the time sees nothing else. I17: the digests of both sides are equal. I21: after a
fault has healed, every cell that was put before is exported in time, and a rolling restart holds no
partition up. I22: the memory of an exporter that waits for its cluster stays as it is.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import msgspec
from confluent_kafka import TopicPartition

from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.events.messages import header_values
from cellfeed.bridge.events.record_headers import added_id_of
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_clients import consumer_of
from cellfeed.bridge.export.verify import verify_export
from cellfeed.store.datastore import Datastore
from tests.faults.export_faults import (
    BRIEF,
    EXPORT_KINDS,
    FAULTS,
    FULL,
    LIMIT_S,
    SHARDS,
    SHORT_TIMEOUT_S,
    STORE_CUT,
    UNITS,
    ExportScale,
    Link,
    Stage,
    has_come_to,
    until,
)
from tests.faults.run import FaultRun
from tests.support.export_process import open_store
from tests.support.export_steps import LEASE_S, Exporter, Writer, check_equal, ends, export_to, put
from tests.support.free_ports import free_ports
from tests.support.local_kafka import Kafka
from tests.support.local_mariadb import MariaDB
from tests.support.local_zookeeper import ZooKeeper
from tests.support.mariadb_cluster import lone_server
from tests.support.tcp_proxy import TcpProxy

__all__ = ["BRIEF", "EXPORT_KINDS", "FULL", "STORE_CUT", "run_export_faults"]

RECOVERY_MAX_S = 10.0
"""I21: everything is going again ten seconds after a fault heals, and the session of anybody who
was killed."""

_EXPORTERS = ("a", "b")

_SLOW_LOOK_S = 0.02
"""Of runs with an odd seed: a look at the logs takes longer than a transaction, as of busy servers;
so the next cells are looked for while one is under way."""


class Reader(threading.Thread):
    """Reads committed records from the beginning, as a consumer does; it notes records that no
    reader may see, and for how long a partition had nothing new."""

    def __init__(self, export: Export) -> None:
        super().__init__(name="export-reader", daemon=True)
        self._export = export
        self._stopping = threading.Event()
        self._came_s: dict[int, float] = {}
        self._longest_s = 0.0
        self.next_ids = dict.fromkeys(range(SHARDS), 0)
        self.violations: list[str] = []

    def run(self) -> None:
        with closing(consumer_of(self._export)) as consumer:
            consumer.assign(
                [TopicPartition(self._export.topic or "", shard, 0) for shard in range(SHARDS)]
            )
            while not self._stopping.is_set():
                for message in consumer.consume(1_000, timeout=0.2):
                    if message.error() is not None:
                        continue  # an end, or the broker is away
                    shard, added_id = (
                        message.partition() or 0,
                        added_id_of(header_values(message).items()),
                    )
                    if added_id != self.next_ids[shard]:
                        self.violations.append(
                            f"partition {shard}: cell {added_id} came at offset {message.offset()},"
                            f" {self.next_ids[shard]} was next"
                        )
                    self.next_ids[shard] = (added_id or 0) + 1
                    now_s = time.monotonic()
                    self._longest_s = max(self._longest_s, now_s - self._came_s.get(shard, now_s))
                    self._came_s[shard] = now_s

    def has_read(self, wanted: Mapping[int, int]) -> bool:
        return all(self.next_ids[shard] >= end for shard, end in wanted.items())

    def watch_pauses(self) -> None:
        """From now on."""
        self._came_s, self._longest_s = dict.fromkeys(range(SHARDS), time.monotonic()), 0.0

    def longest_pause_s(self) -> float:
        """For how long a partition had nothing new, at most, since :meth:`watch_pauses`."""
        return max(
            self._longest_s, *(time.monotonic() - came_s for came_s in self._came_s.values())
        )

    def stop(self) -> None:
        self._stopping.set()
        self.join(LIMIT_S)


def run_export_faults(kind: str, seed: int, directory: Path, scale: ExportScale = FULL) -> FaultRun:
    """Runs and checks. The target and the moment follow from the seed."""
    chance, result = random.Random(f"{kind}-{seed}"), FaultRun(kind, seed)
    healed_at: list[str] = []
    with ExitStack() as stack:
        zookeeper = ZooKeeper(directory / "zookeeper")
        stack.callback(zookeeper.kill)
        zookeeper.start()
        server = stack.enter_context(lone_server(SHARDS)) if kind == STORE_CUT else None
        links = _links(stack, zookeeper, server) if kind in ("export-network", STORE_CUT) else {}
        listeners = {
            name.upper(): (link.kafka.target_port, link.kafka.port) for name, link in links.items()
        }
        kafka = Kafka(directory / "kafka", links=listeners)
        stack.callback(kafka.kill)
        kafka.start()
        place = directory / "store"
        store = stack.enter_context(
            open_store(server.url if server is not None else str(place), SHARDS)
        )
        chroot = "export-faults"
        coordinator = stack.enter_context(
            closing(open_coordinator(f"zookeeper://{zookeeper.hosts}/{chroot}", store.state))
        )
        export = export_to(
            kafka,
            units=UNITS,
            client=(
                {"message.timeout.ms": int(SHORT_TIMEOUT_S * 1000)}
                if kind == "export-cluster-away"
                else {}
            ),
        )
        processes: dict[str, Exporter] = {}

        def start(name: str, failpoints: str = "") -> Exporter:
            its, hosts, url = export, zookeeper.hosts, None
            if (link := links.get(name)) is not None:
                its, hosts = (
                    msgspec.structs.replace(export, bootstrap=f"127.0.0.1:{link.kafka.port}"),
                    f"127.0.0.1:{link.zookeeper.port}",
                )
                url = (
                    f"mysql://root@127.0.0.1:{link.store.port}" if link.store is not None else None
                )
            started = processes[name] = Exporter(
                place,
                name,
                SHARDS,
                [its],
                f"zookeeper://{hosts}/{chroot}",
                failpoints,
                url,
                _SLOW_LOOK_S * (seed % 2),
            )
            stack.callback(started.kill)
            return started

        put(store, scale.cells)
        for name in _EXPORTERS:
            start(name)
        reader, writers = Reader(export), [Writer(store, number) for number in range(2)]
        stage = Stage(
            store,
            export,
            kafka,
            zookeeper,
            coordinator,
            processes,
            start,
            chance,
            scale,
            links,
            reader,
        )
        until(
            lambda: set(stage.owners().values()) == set(_EXPORTERS),
            "both exporters have their shares",
        )
        until(lambda: has_come_to(export, dict.fromkeys(range(SHARDS), 1)), "the work is under way")
        for thread in (reader, *writers):
            thread.start()
        try:
            for _ in range(scale.faults):
                time.sleep(chance.uniform(0.1, 1.0))
                before = sum(writer.cells for writer in writers)
                result.witnessed += FAULTS[kind](stage)
                healed_s, wanted = time.monotonic(), ends(store)
                healed_at.append(time.strftime("%H:%M:%S"))  # as the exporters' logs say it
                # Looked at by a reader that is there all the time: to connect again and read the
                # ends takes seconds on a busy machine.
                until(
                    partial(reader.has_read, wanted),
                    "everything is exported that was put before, and read",
                )
                result.recovery_s.append(time.monotonic() - healed_s)
                result.operations_inside += (
                    sum(writer.cells for writer in writers) - before
                )  # others recover from a kill: it lasts until then
            for writer in writers:
                writer.stop()
            wanted = ends(store)
            until(
                lambda: has_come_to(export, wanted) and reader.next_ids == wanted,
                "all is exported and read",
            )
        except TimeoutError as error:
            stage.violations.setdefault("I21", []).append(str(error))
        finally:
            for writer in writers:
                writer.stop()
            reader.stop()
        recoveries = zip(
            result.recovery_s, healed_at, strict=False
        )  # the last one may never have come
        slow = [
            f"recovery from what had healed at {at} took {each:.1f} s"
            for each, at in recoveries
            if each > RECOVERY_MAX_S + 2 * LEASE_S
        ]
        result.violations |= stage.violations
        result.violations["I21"] = [*result.violations.get("I21", []), *slow]
        result.violations["I15"] = [*reader.violations, *_differences(store, export)]
        result.violations["I17"] = [
            f"shard {each.shard}: {each.what or 'the digests differ'}"
            for each in verify_export(export, store)
            if not each.equal or each.partition_digest != each.log_digest
        ]
    return result


def _links(stack: ExitStack, zookeeper: ZooKeeper, store: MariaDB | None) -> Mapping[str, Link]:
    """A proxy between each exporter and each server. ``store``: of a store that is one."""

    def proxy(port: int) -> TcpProxy:
        return stack.enter_context(TcpProxy(port))

    ports = free_ports(len(_EXPORTERS))
    return {
        name: Link(
            proxy(port), proxy(zookeeper.port), proxy(store.port) if store is not None else None
        )
        for name, port in zip(_EXPORTERS, ports, strict=True)
    }


def _differences(store: Datastore, export: Export) -> list[str]:
    try:
        check_equal(store, export)
    except AssertionError as error:
        return [str(error)[:500]]
    return []
