"""A lake's loader in process against a real gateway: both formats, groups, little memory, a store
that was replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from cellfeed.consumers.lake.loader import run_lake_loader
from cellfeed.consumers.lake.open_table import find_lake_table
from cellfeed.consumers.lake.progress import CommitPolicy, LakeProgress
from cellfeed.consumers.lake.views import LakeView
from cellfeed.consumers.lake.waiters import Nobody
from cellfeed.consumers.warehouse.kafka_records import end_offsets
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from cellfeed.verify.lake_place import LakePlace
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from tests.support.lake_tables import FORMATS, place_of
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
    gateway: str, kind: str, folder: Path, group: str = "lake", topic: str = "trips", **options: Any
) -> LakeProgress:
    return run_lake_loader(
        gateway,
        topic,
        group,
        place_of(folder, kind),
        threading.Event(),
        until_offsets=end_offsets(gateway, topic),
        **options,
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_a_topic_loaded_whole_has_the_digest_of_the_store_and_a_second_run_adds_nothing(
    kind: str, store: Path, gateway: str, tmp_path: Path
) -> None:
    seen: list[int] = []
    progress = load(gateway, kind, tmp_path, on_progress=lambda now: seen.append(now.rows))
    ends = end_offsets(gateway, "trips")
    assert (progress.rows, progress.stopped, progress.overtaken) == (sum(ends.values()), {}, 0)
    assert progress.commits < 10, "all shards share a commit"
    assert seen[-1] == progress.rows
    assert (progress.lag, progress.trouble) == (0, "")
    again = load(gateway, kind, tmp_path, group=f"another-{kind}")
    assert (again.rows, again.overtaken) == (0, 0)
    with Datastore.open_embedded(store) as datastore:
        report = verify([StorePlace(datastore), LakePlace(place_of(tmp_path, kind))])
    assert report.equal
    assert report.level
    assert report.as_json()["cells"] == {"store": progress.rows, "lake": progress.rows}


def test_the_group_offsets_follow_the_table(gateway: str, tmp_path: Path) -> None:
    load(gateway, "iceberg", tmp_path, group="lag-tool-lake")
    ends = end_offsets(gateway, "trips")
    consumer = Consumer({"bootstrap.servers": gateway, "group.id": "lag-tool-lake"})
    try:
        committed = consumer.committed([TopicPartition("trips", shard) for shard in ends], 10)
    finally:
        consumer.close()
    assert {each.partition: each.offset for each in committed} == ends


def test_a_column_topic_has_holes_and_ends_behind_its_last_record(
    gateway: str, tmp_path: Path
) -> None:
    progress = load(gateway, "iceberg", tmp_path, topic="trips.RARE", group="rare-lake")
    view = LakeView(place_of(tmp_path, "iceberg"))
    assert progress.rows == 16
    assert view.query("SELECT DISTINCT column_name, ref_key FROM cells") == [
        {"column_name": "RARE", "ref_key": 7}
    ]


def test_little_memory_makes_many_commits_and_loses_nothing(gateway: str, tmp_path: Path) -> None:
    progress = load(
        gateway, "iceberg", tmp_path, group="little", policy=CommitPolicy(bytes=200_000, age_s=60)
    )
    assert progress.commits >= 3
    assert progress.rows == sum(end_offsets(gateway, "trips").values())
    rows = LakeView(place_of(tmp_path, "iceberg")).query("SELECT count(*) AS n FROM cells")
    assert rows == [{"n": progress.rows}]


def test_rows_that_somebody_waits_for_are_committed_soon(gateway: str, tmp_path: Path) -> None:
    class Waiting(Nobody):
        def __init__(self) -> None:
            self.woken: list[bool] = []

        def is_awaited(self) -> bool:
            return bool(find_lake_table(place_of(tmp_path, "delta")))

        def wake(self) -> None:
            table = find_lake_table(place_of(tmp_path, "delta"))
            assert table is not None
            self.woken.append(bool(table.look().positions))

    waiters, stop = Waiting(), threading.Event()
    place, policy = place_of(tmp_path, "delta"), CommitPolicy(age_s=600)
    loading = threading.Thread(
        target=lambda: run_lake_loader(
            gateway, "trips", "awaited", place, stop, policy=policy, waiters=waiters
        )
    )
    loading.start()
    try:
        wait_until(lambda: bool(waiters.woken), "a commit long before its age", 60)
    finally:
        stop.set()
        loading.join()
    assert all(waiters.woken), "waiters are woken behind the commit"


@pytest.mark.parametrize("kind", FORMATS)
def test_another_store_behind_the_same_address_is_refused_with_both_ids(
    kind: str, store: Path, gateway: str, tmp_path: Path
) -> None:
    loaded = load(gateway, kind, tmp_path / "lake", group="first").rows
    (tmp_path / "other").mkdir()
    fill(tmp_path / "other")
    with (
        GatewayProcess(tmp_path / "other", tmp_path / "log") as other,
        Datastore.open_embedded(store) as one,
        Datastore.open_embedded(tmp_path / "other") as two,
        pytest.raises(ProtectData) as refused,
    ):
        load(other.bootstrap, kind, tmp_path / "lake", group="second")
    for datastore in (one, two):
        assert datastore.history_id in str(refused.value).replace("-", "")
    rows = LakeView(place_of(tmp_path / "lake", kind)).query("SELECT count(*) AS n FROM cells")
    assert rows == [{"n": loaded}]
