"""The common parts of the export benchmarks: an exporter as a process, a broker, and readers of the
topic."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks._arrivals import send_arrivals
from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_group import ExportGroup
from cellfeed.bridge.export.topics import wanted_settings
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.instance.config_file import load_config
from cellfeed.store.datastore import Datastore

TOPIC = "trips"
SHARDS = 16
TIMEOUT_S = 60.0
_LOOK_EVERY_S = 0.01


def export_of(bootstrap: str, name: str = TOPIC) -> Export:
    """As it comes, into a topic of its name, on a broker of one node."""
    return Export(name, bootstrap, topic=name, replication_factor=1).check()


def make_topic(bootstrap: str, shards: int = SHARDS) -> None:
    """As the exporter makes it, so that a reader may be there before it."""
    admin = AdminClient(
        {"bootstrap.servers": bootstrap}
    )  # held until it has answered: its requests end with it
    admin.create_topics([NewTopic(TOPIC, shards, 1, config=wanted_settings(export_of(bootstrap)))])[
        TOPIC
    ].result(TIMEOUT_S)


def wait_first_record(bootstrap: str, topic: str, timeout_s: float) -> float:
    """When the topic had its first record, committed or not, by the monotonic clock. Raises
    TimeoutError."""
    ends_s = time.monotonic() + timeout_s
    with closing(
        Consumer({"bootstrap.servers": bootstrap, "group.id": "first-record"})
    ) as consumer:
        while time.monotonic() < ends_s:
            if topic in consumer.list_topics(timeout=10).topics:
                with suppress(KafkaException):  # it is being made just now
                    if any(
                        consumer.get_watermark_offsets(
                            TopicPartition(topic, partition), timeout=10
                        )[1]
                        for partition in range(SHARDS)
                    ):
                        return time.monotonic()
            time.sleep(_LOOK_EVERY_S)
    raise TimeoutError(f"topic {topic} had no record within {timeout_s:.0f} s")


def export(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """A process's body: exports until it is stopped; tells when ``cells`` have been exported, by
    the monotonic clock. With ``until``, it then tells the moments of the cells behind them up to
    that number, as a list. ``config``: of an instance on MariaDB; an embedded datastore in
    ``directory`` without, of ``shards``. ``name``: of the export; each begins with the first cell.
    """
    config = settings.get("config")
    datastore = (
        open_datastore(load_config(Path(config)), Path(config).parent)
        if config
        else Datastore.open_embedded(
            Path(settings["directory"]), shards=settings.get("shards", SHARDS)
        )
    )
    seen: list[ExportGroup] = []

    def tell() -> None:
        first, last = settings["cells"], settings.get("until", 0)
        moments: list[float] = []
        while not stop.is_set() and len(moments) < max(first, last):
            context = seen[0].preparation.context if seen else None
            records = 0 if context is None else min(context.records, max(first, last))
            was_told = len(moments) >= first
            moments += [time.monotonic()] * (records - len(moments))
            if len(moments) >= first and not was_told:
                connection.send(moments[-1])
            time.sleep(_LOOK_EVERY_S)
        if last:
            connection.send(moments[first:])

    with datastore:
        connection.send("begins")
        threading.Thread(target=tell, daemon=True).start()
        run_exporter(
            [export_of(settings["bootstrap"], settings.get("name", TOPIC))],
            datastore,
            StoreCoordinator(datastore.state),
            "benchmark",
            cast(
                "threading.Event", stop
            ),  # the event of another kind of process waits and is set like a thread's
            on_look=lambda groups: seen.extend(groups) if not seen else None,
        )


def consume_committed(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """A process's body: reads committed records of ``shards`` partitions; tells when it reads, then
    when it received each record, by key."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "group.id": "export-latency",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign(
        [
            TopicPartition(TOPIC, partition, OFFSET_BEGINNING)
            for partition in range(settings.get("shards", SHARDS))
        ]
    )
    send_arrivals(
        consumer,
        connection,
        stop,
        settings["records"],
        lambda message: bytes(message.key() or b"").decode(),
    )
    consumer.close()
