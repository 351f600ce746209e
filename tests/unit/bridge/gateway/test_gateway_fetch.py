"""Fetch while a part of the store is away, or when its time is used up: the other partitions
continue, and afterwards nothing is missing."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition

from cellfeed.bridge.events.views import Condition
from cellfeed.bridge.gateway.apis import fetch_reads
from cellfeed.bridge.gateway.limits import NEWEST_CELLS
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.engines.sqlite import log
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import StorageUnavailable
from tests.unit.bridge.gateway.test_gateway_connection import with_gateway

SHARDS = 4
AWAY = 1
TRIMMED = 2


@pytest.mark.parametrize("cells", [200, 6_000], ids=["the open ends", "full blocks"])
def test_a_cluster_that_is_away_fails_its_own_partitions_only_and_nothing_of_them_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int
) -> None:
    refused = 0
    away = True
    scan, scan_many = SqliteEngine.scan, SqliteEngine.scan_many

    def check(shards: Sequence[int]) -> None:
        nonlocal refused
        if away and AWAY in shards:
            refused += 1
            raise StorageUnavailable("the cluster of shard 1 is away")

    def failing_scan(
        engine: SqliteEngine, shard: int, location: int, limit: int
    ) -> list[StoredCell]:
        check([shard])
        return scan(engine, shard, location, limit)

    def failing_scan_many(
        engine: SqliteEngine, ranges: Sequence[LogRange]
    ) -> list[list[StoredCell]]:
        check([each.shard for each in ranges])
        return scan_many(engine, ranges)

    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as datastore:
        monkeypatch.setattr(SqliteEngine, "scan", failing_scan)
        monkeypatch.setattr(SqliteEngine, "scan_many", failing_scan_many)
        # As clusters: each shard is a commit group of its own.
        monkeypatch.setattr(SqliteEngine, "commit_group", lambda _engine, shard: f"cluster-{shard}")
        numbers = iter(range(cells))
        while batch := [
            (UUID(int=n << 32), "BASE", 1, {"n": n})
            for n, _ in zip(numbers, range(1_000), strict=False)
        ]:
            for result in datastore.put_cells(batch):
                result.or_raise()
        ends = {shard: head.watermark for shard, head in datastore.heads().items()}
        assert all(ends.values())

        def read(consumer: Consumer, seen: dict[int, list[int]], shards: Sequence[int]) -> None:
            deadline_s = time.monotonic() + 20
            while any(len(seen[shard]) < ends[shard] for shard in shards):
                assert time.monotonic() < deadline_s, (
                    "not everything came:"
                    f" { ({shard: len(found) for shard, found in seen.items()}) }"
                )
                for message in consumer.consume(1_000, 0.1):
                    assert message.error() is None
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    seen[partition].append(offset)

        async def use(gateway: Gateway) -> None:
            nonlocal away
            seen: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}
            settings = {
                "bootstrap.servers": f"127.0.0.1:{gateway.port}",
                "group.id": "reader",
                "enable.auto.commit": False,
                "log_level": 0,
            }
            consumer = Consumer(settings)
            try:
                consumer.assign([TopicPartition("trips", shard, 0) for shard in range(SHARDS)])
                await asyncio.to_thread(
                    read, consumer, seen, [shard for shard in range(SHARDS) if shard != AWAY]
                )
                assert refused
                assert not seen[AWAY]
                away = False
                await asyncio.to_thread(read, consumer, seen, range(SHARDS))
            finally:
                await asyncio.to_thread(consumer.close)
            assert seen == {shard: list(range(end)) for shard, end in ends.items()}

        with_gateway(datastore, use)


def test_an_answer_whose_time_is_used_up_has_one_batch_and_later_ones_reach_every_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any time every answer is cut: of views in which nothing matches as well, below "now"
    and behind it."""
    given: list[int] = []
    read = fetch_reads.read

    async def noted(*about: Any) -> tuple[list[Any], int, bool]:
        answers, found_bytes, failed = await read(*about)
        given.append(sum(len(answer.batches) for answer in answers))
        return answers, found_bytes, failed

    monkeypatch.setattr(fetch_reads, "read", noted)
    monkeypatch.setattr(fetch_reads, "FETCH_WORK_S", 0.0)
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as datastore:
        for start in range(0, 6_000, 1_000):
            for result in datastore.put_cells(
                [(UUID(int=n % 40 << 32), "BASE", n, {"n": n}) for n in range(start, start + 1_000)]
            ):
                result.or_raise()
        ends = {shard: head.watermark for shard, head in datastore.heads().items()}

        def read_to_the_end(bootstrap: str, topic: str) -> int:
            settings: dict[str, Any] = {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
            consumer = Consumer(settings)
            records, at_end = 0, set[int | None]()
            try:
                consumer.assign([TopicPartition(topic, shard, 0) for shard in range(SHARDS)])
                deadline_s = time.monotonic() + 30
                while len(at_end) < SHARDS:
                    assert time.monotonic() < deadline_s, (
                        f"{topic}: only {at_end} came to their end"
                    )
                    for message in consumer.consume(1_000, 0.1):
                        if message.error() is None:
                            records += 1
                        else:
                            at_end.add(message.partition())
            finally:
                consumer.close()
            return records

        async def use(gateway: Gateway) -> None:
            for topic, wanted in (("trips", 6_000), ("nothing", 0), ("trips@latest", 40)):
                given.clear()
                assert (
                    await asyncio.to_thread(read_to_the_end, f"127.0.0.1:{gateway.port}", topic)
                    == wanted
                )
                assert max(given) == 1
                assert sum(given) >= sum(end // NEWEST_CELLS for end in ends.values())

        with_gateway(
            datastore,
            use,
            topics=(VirtualTopic("nothing", filter=[Condition("n", "=", value=-1)]),),
        )


def test_cells_committed_during_a_fetch_are_in_the_next_one_and_none_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More cells come, and are shown, while the ends of all logs are being read: as under a steady
    load."""
    scan, scan_many = log.scan, SqliteEngine.scan_many
    read: Counter[tuple[int, int]] = Counter()
    numbers = iter(range(100_000))
    more = [20, 20, 20]

    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as datastore:

        def put(count: int) -> None:
            for result in datastore.put_cells(
                [
                    (UUID(int=n << 32), "BASE", 1, {"n": n})
                    for n, _ in zip(numbers, range(count), strict=False)
                ]
            ):
                result.or_raise()

        put(40)
        ends = {}

        async def use(gateway: Gateway) -> None:
            loop = asyncio.get_running_loop()

            def noted_scan(
                connection: sqlite3.Connection, shard: int, location: int, limit: int
            ) -> list[StoredCell]:
                cells = scan(connection, shard, location, limit)
                read.update((shard, cell.added_id) for cell in cells)
                return cells

            def outrun_scan_many(
                engine: SqliteEngine, ranges: Sequence[LogRange]
            ) -> list[list[StoredCell]]:
                if more:
                    put(more.pop())
                    assert gateway.context is not None
                    asyncio.run_coroutine_threadsafe(gateway.context.heads.refresh(), loop).result(
                        10
                    )
                return scan_many(engine, ranges)

            monkeypatch.setattr(log, "scan", noted_scan)
            monkeypatch.setattr(SqliteEngine, "scan_many", outrun_scan_many)
            seen: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}
            settings = {
                "bootstrap.servers": f"127.0.0.1:{gateway.port}",
                "group.id": "reader",
                "enable.auto.commit": False,
                "log_level": 0,
            }
            consumer = Consumer(settings)

            def take() -> None:
                deadline_s = time.monotonic() + 20
                while sum(map(len, seen.values())) < 100:
                    assert time.monotonic() < deadline_s, (
                        "not everything came:"
                        f" { ({shard: len(found) for shard, found in seen.items()}) }"
                    )
                    for message in consumer.consume(1_000, 0.1):
                        assert message.error() is None
                        seen[message.partition() or 0].append(message.offset() or 0)

            try:
                consumer.assign([TopicPartition("trips", shard, 0) for shard in range(SHARDS)])
                await asyncio.to_thread(take)
            finally:
                await asyncio.to_thread(consumer.close)
            ends.update({shard: head.watermark for shard, head in datastore.heads().items()})
            assert seen == {shard: list(range(end)) for shard, end in ends.items()}

        with_gateway(datastore, use)
    assert not more
    assert read == {(shard, added_id): 1 for shard, end in ends.items() for added_id in range(end)}


@pytest.mark.parametrize(
    ("topic", "cells"),
    [("trips", 200), ("trips", 6_000), ("trips@latest", 2_000)],
    ids=["the open ends", "full blocks", "@latest"],
)
def test_a_partition_trimmed_during_a_fetch_is_out_of_range_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, cells: int
) -> None:
    scan, scan_many = SqliteEngine.scan, SqliteEngine.scan_many
    trimmed: list[int] = []

    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as datastore:
        for first in range(0, cells, 1_000):
            datastore.put_cells(
                [
                    (UUID(int=n << 32), "BASE", 1, {"n": n})
                    for n in range(first, min(cells, first + 1_000))
                ]
            )
        ends = {shard: head.watermark for shard, head in datastore.heads().items()}

        def trim(shards: Sequence[int]) -> None:
            if not trimmed and TRIMMED in shards:
                trimmed.append(datastore.trim(TRIMMED, 30))

        def trimming_scan(
            engine: SqliteEngine, shard: int, location: int, limit: int
        ) -> list[StoredCell]:
            trim([shard])
            return scan(engine, shard, location, limit)

        def trimming_scan_many(
            engine: SqliteEngine, ranges: Sequence[LogRange]
        ) -> list[list[StoredCell]]:
            trim([each.shard for each in ranges])
            return scan_many(engine, ranges)

        async def use(gateway: Gateway) -> None:
            monkeypatch.setattr(SqliteEngine, "scan", trimming_scan)
            monkeypatch.setattr(SqliteEngine, "scan_many", trimming_scan_many)
            seen: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}
            settings = {
                "bootstrap.servers": f"127.0.0.1:{gateway.port}",
                "group.id": "reader",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
            consumer = Consumer(settings)

            def read() -> None:
                deadline_s = time.monotonic() + 20
                while sum(map(len, seen.values())) < cells - 30:
                    assert time.monotonic() < deadline_s, (
                        "not everything came:"
                        f" { ({shard: len(found) for shard, found in seen.items()}) }"
                    )
                    for message in consumer.consume(1_000, 0.1):
                        assert message.error() is None
                        seen[message.partition() or 0].append(message.offset() or 0)

            try:
                consumer.assign([TopicPartition(topic, shard, 0) for shard in range(SHARDS)])
                await asyncio.to_thread(read)
            finally:
                await asyncio.to_thread(consumer.close)
            assert trimmed == [30]
            assert seen == {
                shard: list(range(30 if shard == TRIMMED else 0, end))
                for shard, end in ends.items()
            }

        with_gateway(datastore, use)
