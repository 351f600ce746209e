"""How much an instance keeps on disk."""

from __future__ import annotations

from pathlib import Path

from cellfeed.config.lake import LakeConfig
from cellfeed.config.model import Config, DatastoreConfig, WarehouseConfig
from cellfeed.instance.sizes import sizes
from cellfeed.run_dir import RunDir


def test_sizes_count_files_by_their_purpose(tmp_path: Path) -> None:
    config = Config(warehouses=[WarehouseConfig()], lakes=[LakeConfig()])
    for name, size in {
        "store/trips/node-0.sqlite3": 1_000,
        "store/trips/node-0.sqlite3-wal": 300,
        "store/other/node-0.sqlite3": 5_000,
        "warehouse/deep/rows.parquet": 40,
        "lake/cells/rows.parquet": 3,
        "logs/worker.log": 7,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    (tmp_path / "logs" / "link").symlink_to(tmp_path / "nowhere")
    assert sizes(RunDir(tmp_path), config) == {
        "store": 1_300,
        "of it write-ahead logs": 300,
        "warehouses": 40,
        "lakes": 3,
        "logs": 7 + len(str(tmp_path / "nowhere")),
    }


def test_an_instance_that_has_nothing_yet_has_an_empty_store(tmp_path: Path) -> None:
    assert sizes(RunDir(tmp_path / "run"), Config()) == {"store": 0}
    elsewhere = Config(datastore=DatastoreConfig(directory=str(tmp_path)))
    assert sizes(RunDir(tmp_path / "run"), elsewhere) == {"store": 0}
