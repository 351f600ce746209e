"""The lag of a consumer group on a topic that leaves cells out: `status` counts its records."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.events.views import Condition, View
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.run_dir import RunDir
from cellfeed.status import records_behind
from cellfeed.status.instance_groups import GroupLag
from cellfeed.status.instance_status import read_status
from cellfeed.store.datastore import Datastore

SHARDS = 4
CARDS = VirtualTopic("cards", filter=[Condition("payment", "=", value="card")])
CONFIG = Config(datastore=DatastoreConfig(shards=SHARDS, directory="store", topics=[CARDS]))


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """200 trips, a fourth of them paid by card, and 10 notes."""
    directory = RunDir(tmp_path / "run")
    directory.make()
    with Datastore.open_embedded(directory.path / "store", shards=SHARDS) as datastore:
        payments = ("card", "cash", "cash", "cash")
        datastore.put_cells(
            [(UUID(int=n), "BASE", 1, {"payment": payments[n % 4]}) for n in range(200)]
            + [(UUID(int=n), "NOTES", 1, {"text": "umbrella"}) for n in range(10)]
        )
    return directory


def behind(run_dir: RunDir, topic: str, offsets: dict[int, int]) -> GroupLag:
    with Datastore.open_embedded(run_dir.path / "store", shards=SHARDS) as datastore:
        StoreCoordinator(datastore.state).commit_offsets(
            "readers", {(topic, shard): CommittedOffset(at) for shard, at in offsets.items()}
        )
    [lag] = [each for each in read_status(run_dir, CONFIG).groups if each.topic == topic]
    return lag


def heads(run_dir: RunDir) -> dict[int, int]:
    with Datastore.open_embedded(run_dir.path / "store", shards=SHARDS) as datastore:
        return {shard: head.watermark for shard, head in datastore.heads().items()}


@pytest.mark.parametrize(
    ("topic", "records"),
    [("trips", 210), ("trips.BASE", 200), ("trips.NOTES", 10), ("cards", 50), ("unknown", 210)],
)
def test_a_group_is_behind_by_the_records_of_its_topic(
    run_dir: RunDir, topic: str, records: int
) -> None:
    lag = behind(run_dir, topic, {0: 0})
    assert (lag.behind, lag.at_most) == (records, False)


def test_a_group_at_the_end_of_a_part_is_behind_by_the_rest(run_dir: RunDir) -> None:
    ends = heads(run_dir)
    with Datastore.open_embedded(run_dir.path / "store", shards=SHARDS) as datastore:
        first = datastore.get_cells_for_shard(0, 0, 1_000).cells
    notes = sum(cell.column_name == "NOTES" for cell in first)
    lag = behind(run_dir, "trips.NOTES", {0: ends[0]})
    assert lag.behind == 10 - notes
    assert behind(run_dir, "trips.NOTES", ends).behind == 0


def test_more_cells_than_are_looked_at_make_an_upper_limit(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_behind, "CELLS_MAX", 20)
    lag = behind(run_dir, "trips.NOTES", {0: 0})
    assert lag.at_most
    assert 10 <= lag.behind <= 210


def test_the_view_of_a_topic_is_that_of_its_name() -> None:
    config = CONFIG.datastore
    assert records_behind.view_of(config, "trips") == View()
    assert records_behind.view_of(config, "trips@latest") == View()
    assert records_behind.view_of(config, "trips.BASE@latest") == View("BASE")
    assert records_behind.view_of(config, "cards") == CARDS.view
