"""Steps of tests of moves: put cells of the shard that moves, move it, write and read meanwhile,
and check I1-I10 of it afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import confluent_kafka

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.run import run_gateway
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.clusters.model.shard_notes import Clusters
from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.moves.steps import Moved
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connection import TIMEOUT_S
from cellfeed.store.errors import CellfeedError, StorageUnavailable
from cellfeed.store.failpoints import (
    FAILPOINTS,
    clear_failpoints,
    unwatch_failpoint,
    watch_failpoint,
)
from tests.support.kafka_messages import place_of
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, cells_of_shard
from tests.support.waiting import wait_until

SHARD = 1
"""On c1 when the clusters are made: the one that moves."""

POINTS = sorted(
    point
    for point in FAILPOINTS
    if point.startswith("move.") and point not in ("move.inside_give_back", "move.inside_clean")
)


def open_engine(clusters: dict[str, TestCluster], copies: int = 0) -> ClusteredEngine:
    servers = {name: each.admin.with_timeout(TIMEOUT_S) for name, each in clusters.items()}
    return ClusteredEngine(
        DATASTORE,
        SHARDS,
        {name: each.openers() for name, each in clusters.items()},
        copies=copies,
        servers=servers,
    )


def cells(first: int, count: int, shard: int = SHARD) -> list[NewCell]:
    return cells_of_shard(shard, first, count)


def move(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, to: str, shard: int = SHARD
) -> Moved:
    return mover.move_shard(
        {name: each.admin for name, each in clusters.items()},
        shard,
        to,
        engine.dictionaries.complete,
    )


def log(engine: ClusteredEngine, start: int = 0) -> list[tuple[int, bytes, bytes, int]]:
    return [
        (cell.added_id, cell.row_key, decode_body(cell.body), cell.created_at_us)
        for cell in engine.scan(SHARD, start, 10_000)
    ]


def shown(engine: ClusteredEngine, ends: int) -> None:
    wait_until(lambda: engine.heads()[SHARD].watermark == ends, f"all {ends} cells are shown")


# --- who writes and reads meanwhile ---------------------------------------------------------------


class Writer:
    """Puts cells of the shard that moves, and of one that stays, each again until it is
    acknowledged."""

    def __init__(self, datastore: Datastore) -> None:
        self.acknowledged: dict[bytes, tuple[int, int | None]] = {}
        self.longest_s = 0.0
        self._datastore = datastore
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer")
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            for shard in (SHARD, 0):
                number += 1
                [cell] = cells(10 + number, 1, shard)
                began_s = time.monotonic()
                while True:
                    with suppress(CellfeedError):
                        [result] = self._datastore.put_new_cells([cell])
                        if result.acknowledged:
                            self.acknowledged[cell.row_key] = (shard, result.added_id)
                            break
                    if self._stop.is_set():
                        return
                    time.sleep(0.01)
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            time.sleep(0.002)

    def goes_on(self) -> None:
        now = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > now + 4, "puts are acknowledged")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def writing(datastore: Datastore) -> Iterator[Writer]:
    writer = Writer(datastore)
    try:
        writer.goes_on()
        yield writer
    finally:
        writer.stop()


class Tailer:
    """Reads the shard from its start, below its watermark, over an engine of its own."""

    def __init__(self, engine: ClusteredEngine) -> None:
        self.read: list[tuple[int, bytes, bytes]] = []
        self.heads: list[tuple[int, int]] = []
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailer")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            with suppress(StorageUnavailable):
                head = self._engine.heads([SHARD])[SHARD]
                self.heads.append((head.watermark, head.leader_epoch))
                self.read += [
                    (each.added_id, each.row_key, decode_body(each.body))
                    for each in self._engine.scan(SHARD, len(self.read), 1_000)
                ]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


@contextmanager
def tailing(clusters: dict[str, TestCluster]) -> Iterator[Tailer]:
    with closing(open_engine(clusters)) as opened:
        tailer = Tailer(opened)
        try:
            yield tailer
        finally:
            tailer.stop()


def check(clusters: dict[str, TestCluster], writer: Writer, tailer: Tailer) -> None:
    """I1-I10 of the shard that moved, once nobody writes any more."""
    with closing(open_engine(clusters)) as engine:
        ends = engine.heads()
        wait_until(
            lambda: len(tailer.read) == engine.heads()[SHARD].next_added_id,
            "the tailer has come to the end",
        )
        cells_of = {
            shard: [
                (each.added_id, each.row_key, decode_body(each.body))
                for each in engine.scan(shard, 0, 100_000)
            ]
            for shard in (SHARD, 0)
        }
    assert [added_id for added_id, *_ in cells_of[SHARD]] == list(range(ends[SHARD].next_added_id))
    assert tailer.read == cells_of[SHARD]
    places = {
        row_key: (shard, added_id)
        for shard, found in cells_of.items()
        for added_id, row_key, _ in found
    }
    assert len(places) == sum(map(len, cells_of.values()))
    for row_key, told in writer.acknowledged.items():
        assert places[row_key] == told or (told[1] is None and places[row_key][0] == told[0])
    for before, after in zip(tailer.heads, tailer.heads[1:], strict=False):
        assert before[0] <= after[0]
        assert before[1] <= after[1]


def serving(clusters: dict[str, TestCluster]) -> list[str]:
    """The clusters whose master has the shard's counter."""
    return [
        name
        for name, each in clusters.items()
        if each.servers["a"].sql(
            f"SELECT shard FROM trips_meta.shard_counter WHERE shard = {SHARD}"
        )
    ]


def admins(clusters: dict[str, TestCluster]) -> Clusters:
    return {name: each.admin for name, each in clusters.items()}


def urls(clusters: dict[str, TestCluster]) -> dict[str, dict[str, str]]:
    """Where the nodes are, for a process of its own."""
    return {
        name: {node: server.url for node, server in each.servers.items()}
        for name, each in clusters.items()
    }


@contextmanager
def paused_mover(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, point: str, again_s: float = 0
) -> Iterator[tuple[threading.Event, list[object]]]:
    """A mover that stands still at the failpoint until the event is set, and then tells how it
    ended."""
    reached, go_on, ended = threading.Event(), threading.Event(), list[object]()

    def pause() -> None:
        reached.set()
        go_on.wait(120)

    def run() -> None:
        try:
            ended.append(
                mover.move_shard(
                    admins(clusters), SHARD, "c2", engine.dictionaries.complete, again_s=again_s
                )
            )
        except BaseException as error:
            ended.append(error)

    watch_failpoint(point, pause)
    thread = threading.Thread(target=run, name="paused-mover")
    thread.start()
    try:
        assert reached.wait(60)
        yield go_on, ended
    finally:
        go_on.set()
        thread.join(90)
        unwatch_failpoint(point)
        clear_failpoints()


@contextmanager
def gateway(
    datastore: Datastore, coordinator: Coordinator, name: str = "gateway", values: str = "json"
) -> Iterator[str]:
    """One over the datastore, with values of that format; gives its bootstrap address."""
    stop, ports = threading.Event(), list[int]()
    settings = GatewayConfig(
        port=0, registry_port=0, name=name, group_initial_delay_s=0.1, formats={"*": values}
    )
    thread = threading.Thread(
        target=run_gateway,
        args=(datastore, coordinator, settings, stop, lambda kafka, _: ports.append(kafka)),
    )
    thread.start()
    try:
        wait_until(lambda: bool(ports), "the gateway serves")
        yield f"127.0.0.1:{ports[0]}"
    finally:
        stop.set()
        thread.join(60)


def kafka_consumer(bootstrap: str, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "group.id": group}
    )


def polled(
    consumer: confluent_kafka.Consumer, into: list[tuple[int, int]], stop: threading.Event
) -> threading.Thread:
    def poll() -> None:
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                into.append(place_of(message))

    thread = threading.Thread(target=poll)
    thread.start()
    return thread
