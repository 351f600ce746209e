"""The room on an instance's file systems, and its metrics."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.run_dir import RunDir
from cellfeed.status.disk_metrics import DiskMetrics
from cellfeed.status.disks import rooms
from cellfeed.store.datastore import Datastore


def test_each_file_system_has_its_room_once(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run")
    assert rooms(directory, Config()) == []
    directory.make()
    [room] = rooms(directory, Config(datastore=DatastoreConfig(directory="/nowhere/at/all")))
    assert (room.subject, room.folder) == ("run directory", str(directory.path))
    assert 0 < room.free <= room.total


def test_room_and_write_ahead_logs_are_gauges(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run")
    directory.make()
    registry = CollectorRegistry()
    registry.register(DiskMetrics(directory, Config()))
    place = {"place": "run directory"}
    with Datastore.open_embedded(directory.inside("store")):
        free = registry.get_sample_value("cellfeed_disk_free_bytes", place)
        size = registry.get_sample_value("cellfeed_disk_size_bytes", place)
        assert free is not None
        assert size is not None
        assert 0 < free <= size
        names = {
            sample.labels["file"]
            for family in registry.collect()
            if family.name == "cellfeed_store_wal_bytes"
            for sample in family.samples
        }
        assert names == {
            path.name for path in (directory.inside("store") / "trips").glob("*.sqlite3")
        }
