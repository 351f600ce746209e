"""The loader in process against a real gateway: groups, column topics, formats, records that are no
cells, logs that were cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from confluent_kafka import Consumer, TopicPartition

from cellfeed.bridge.events.envelope import decode_record
from cellfeed.consumers.warehouse import kafka_records, shard_loader
from cellfeed.consumers.warehouse.kafka_records import end_offsets
from cellfeed.consumers.warehouse.layout import (
    SOURCES,
    TABLE_FILE,
    CommitRecord,
    commit_file,
    data_file_name,
    encode_commit,
)
from cellfeed.consumers.warehouse.loader import WarehouseLoader, run_warehouse_loader
from cellfeed.consumers.warehouse.loader_progress import FlushPolicy, LoaderProgress
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import DataDamaged, NotFound, ProtectData, Unavailable
from cellfeed.verify.place import Place
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from cellfeed.verify.topic_place import TopicPlace
from cellfeed.verify.warehouse_place import WarehousePlace
from tests.support.free_ports import free_port
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import fill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trips")
    fill(directory)
    return directory


@pytest.fixture(scope="module")
def gateway(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with GatewayProcess(store, tmp_path_factory.mktemp("gateway") / "log") as process:
        yield process.bootstrap


def load(
    gateway: str, topic: str, directory: Path, group: str = "warehouse", **options: Any
) -> LoaderProgress:
    return run_warehouse_loader(
        gateway,
        topic,
        group,
        directory,
        threading.Event(),
        until_offsets=end_offsets(gateway, topic),
        **options,
    )


def test_a_topic_loaded_whole_has_the_digest_of_the_store_and_a_second_run_adds_nothing(
    store: Path, gateway: str, tmp_path: Path
) -> None:
    seen: list[int] = []
    progress = load(
        gateway, "trips", tmp_path / "table", on_progress=lambda now: seen.append(now.rows)
    )
    ends = end_offsets(gateway, "trips")
    assert (progress.rows, progress.stopped, progress.lost_races) == (sum(ends.values()), {}, 0)
    assert seen[-1] == progress.rows
    assert load(gateway, "trips", tmp_path / "table", group="another").rows == 0
    with Datastore.open_embedded(store) as datastore:
        report = verify(
            [
                StorePlace(datastore),
                TopicPlace(gateway, "trips"),
                WarehousePlace(tmp_path / "table"),
            ]
        )
    assert report.equal
    assert report.level
    assert report.as_json()["cells"] == {
        "store": progress.rows,
        "gateway": progress.rows,
        "warehouse": progress.rows,
    }


def test_the_group_offsets_follow_the_table(gateway: str, tmp_path: Path) -> None:
    load(gateway, "trips", tmp_path / "table", group="lag-tool")
    ends = end_offsets(gateway, "trips")
    consumer = Consumer({"bootstrap.servers": gateway, "group.id": "lag-tool"})
    try:
        committed = consumer.committed(
            [TopicPartition("trips", shard) for shard in ends], timeout=10
        )
    finally:
        consumer.close()
    assert {each.partition: each.offset for each in committed} == ends


@pytest.mark.parametrize(
    ("topic", "column"), [("trips.BASE", "BASE"), ("trips.NOTES", "NOTES"), ("trips.RARE", "RARE")]
)
def test_a_column_topic_with_holes_is_loaded_to_its_end(
    gateway: str, tmp_path: Path, topic: str, column: str
) -> None:
    progress = load(gateway, topic, tmp_path / "table", group=topic)
    table = WarehouseTable(tmp_path / "table")
    assert {"BASE": 4_000, "NOTES": 100, "RARE": 16}[column] == progress.rows == table.row_count()
    assert table.query("SELECT DISTINCT column_name FROM cells") == [{"column_name": column}]
    table.check()


def test_two_members_of_a_group_share_the_shards_and_a_leaver_hands_over(
    gateway: str, tmp_path: Path
) -> None:
    directory, stop, done = tmp_path / "table", threading.Event(), {}
    ends = end_offsets(gateway, "trips")
    flush = FlushPolicy(rows=50, age_s=0.2)
    first_rows = threading.Event()

    def member(name: str, stopping: threading.Event) -> None:
        done[name] = run_warehouse_loader(
            gateway,
            "trips",
            "shared",
            directory,
            stopping,
            lambda now: first_rows.set() if now.rows else None,
            until_offsets=ends,
            flush=flush,
        )

    leaver = threading.Thread(target=member, args=("leaver", stop))
    stayer = threading.Thread(target=member, args=("stayer", threading.Event()))
    leaver.start()
    assert first_rows.wait(30)
    stayer.start()
    stop.set()
    leaver.join(60)
    stayer.join(60)
    assert not leaver.is_alive()
    assert not stayer.is_alive()
    assert (
        done["leaver"].rows + done["stayer"].rows
        == sum(ends.values())
        == WarehouseTable(directory).row_count()
    )
    WarehouseTable(directory).check()


def test_a_poison_record_stops_only_its_partition_and_is_never_skipped(
    gateway: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, honest = end_offsets(gateway, "trips"), decode_record

    def poisoned(*record: Any) -> Any:
        event = honest(*record)
        if (event.shard, event.added_id) == (5, 40):
            raise DataDamaged("a bit fell over")
        return event

    with monkeypatch.context() as patch:
        patch.setattr(shard_loader, "decode_record", poisoned)
        progress = load(gateway, "trips", tmp_path / "table")
    assert list(progress.stopped) == [5]
    assert "partition 5, offset 40" in progress.stopped[5]
    assert "a bit fell over" in progress.stopped[5]
    assert WarehouseTable(tmp_path / "table").next_offsets() == {**ends, 5: 40}
    # Once the cause is gone, the same table continues exactly there.
    assert load(gateway, "trips", tmp_path / "table").rows == ends[5] - 40
    WarehouseTable(tmp_path / "table").check()


def test_a_table_ahead_of_the_log_is_another_logs_and_stops(gateway: str, tmp_path: Path) -> None:
    directory = tmp_path / "table"
    load(gateway, "trips", directory)
    end = end_offsets(gateway, "trips")[3]
    beyond = CommitRecord(
        shard=3,
        start_id=end,
        first_id=end,
        last_id=end + 9,
        start_offset=end,
        next_offset=end + 10,
        rows=10,
        file=data_file_name(3, end, end + 9),
        staged="0003-x.parquet.staged",
        file_bytes=1,
        file_sha256="",
    )
    commit_file(directory, 3, end).write_bytes(encode_commit(beyond))
    (directory / beyond.file).write_bytes(b"x")
    stop = threading.Event()
    progress = run_warehouse_loader(
        gateway,
        "trips",
        "ahead",
        directory,
        stop,
        lambda now: stop.set() if now.stopped else None,
        until_offsets={3: end + 20},
    )
    assert list(progress.stopped) == [3]
    assert f"no offset {end + 10}" in progress.stopped[3]


def test_a_directory_of_another_topic_is_refused_before_anything_is_read(
    gateway: str, tmp_path: Path
) -> None:
    make_table(tmp_path / "table", "orders")
    with pytest.raises(ProtectData, match="orders"):
        WarehouseLoader(gateway, "trips", "warehouse", tmp_path / "table")


def test_a_missing_topic_and_an_unreachable_gateway_are_reported(
    gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match="nothing_here"):
        end_offsets(gateway, "nothing_here")
    monkeypatch.setattr(kafka_records, "METADATA_TIMEOUT_S", 0.5)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        end_offsets("127.0.0.1:1", "trips")


def test_a_table_that_lacks_or_changes_a_cell_is_found(
    store: Path, gateway: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "table"
    with pytest.raises(NotFound):
        WarehousePlace(directory)
    stop = threading.Event()
    run_warehouse_loader(
        gateway,
        "trips",
        "partly",
        directory,
        stop,
        lambda now: stop.set() if now.rows else None,
        flush=FlushPolicy(rows=10, age_s=0.1),
    )
    with Datastore.open_embedded(store) as datastore:
        places: list[Place] = [StorePlace(datastore), WarehousePlace(directory)]
        partly = verify(places)
        assert partly.equal
        load(gateway, "trips", directory)
        honest = WarehouseTable.rows

        def changed(self: WarehouseTable, shard: int | None = None) -> Any:
            return (
                row._replace(ref_key=row.ref_key + 1)
                if (row.shard, row.added_id) == (2, 7)
                else row
                for row in honest(self, shard)
            )

        monkeypatch.setattr(WarehouseTable, "rows", changed)
        report = verify(places)
    assert report.level
    assert [verdict.shard for verdict in report.shards if not verdict.equal] == [2]
    assert not report.equal


def put(directory: Path, first: int, count: int, name: str) -> None:
    with Datastore.open_embedded(directory) as datastore:
        datastore.put_cells(
            [
                (uuid5(NAMESPACE_URL, f"{name}-{n}"), "BASE", 1, {"n": n})
                for n in range(first, first + count)
            ]
        )


def _on(port: int, store: Path) -> GatewayProcess:
    gateway = GatewayProcess(store, store.with_suffix(".log"))
    gateway.port = port
    return gateway


def rows_of(table: Path) -> list[tuple[int, int, bytes]]:
    return [(row.shard, row.added_id, row.row_key) for row in WarehouseTable(table).rows()]


def test_rows_of_a_store_that_was_made_again_under_the_same_name_are_refused(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table"
    put(tmp_path / "first", 0, 60, "first")
    with GatewayProcess(tmp_path / "first", tmp_path / "first.log") as gateway:
        load(gateway.bootstrap, "trips", table)
    loaded = rows_of(table)
    assert len(loaded) == 60
    put(tmp_path / "second", 0, 90, "second")
    with (
        GatewayProcess(tmp_path / "second", tmp_path / "second.log") as gateway,
        pytest.raises(ProtectData, match="Load this log into a directory of its own"),
    ):
        load(gateway.bootstrap, "trips", table, group="other")
    assert rows_of(table) == loaded


def test_a_store_that_is_replaced_under_a_running_loader_adds_no_row(tmp_path: Path) -> None:
    table, port = tmp_path / "table", free_port()
    put(tmp_path / "first", 0, 60, "first")
    put(tmp_path / "second", 0, 300, "second")
    ended: list[BaseException] = []

    def run() -> None:
        try:
            run_warehouse_loader(
                f"127.0.0.1:{port}", "trips", "warehouse", table, stop, flush=FlushPolicy(age_s=0.1)
            )
        except ProtectData as error:
            ended.append(error)

    stop = threading.Event()
    loader = threading.Thread(target=run)
    try:
        with _on(port, tmp_path / "first"):
            loader.start()
            wait_until(
                lambda: (table / TABLE_FILE).exists() and len(rows_of(table)) == 60,
                "the first log is loaded",
            )
        with _on(port, tmp_path / "second"):
            wait_until(lambda: bool(ended), "the loader refuses")
    finally:
        stop.set()
        loader.join(30)
    assert "not of" in str(ended[0])
    assert {row[2] for row in rows_of(table)} == {
        uuid5(NAMESPACE_URL, f"first-{n}").bytes for n in range(60)
    }


def test_a_table_from_before_sources_were_noted_continues_with_its_own_log(tmp_path: Path) -> None:
    table = tmp_path / "table"
    put(tmp_path / "store", 0, 60, "trip")
    with GatewayProcess(tmp_path / "store", tmp_path / "log") as gateway:
        load(gateway.bootstrap, "trips", table)
        [note] = (table / SOURCES).iterdir()
        note.unlink()
    put(tmp_path / "store", 60, 30, "trip")
    with GatewayProcess(tmp_path / "store", tmp_path / "log") as gateway:
        load(gateway.bootstrap, "trips", table)
    assert len(rows_of(table)) == 90
    assert [each.name for each in (table / SOURCES).iterdir()] == [note.name]
