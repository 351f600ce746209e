"""The chain of a shard's commits has no gap in Kafka's offsets either, with any ids."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cellfeed.consumers.warehouse.layout import commit_file, decode_commit, encode_commit
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import make_table
from cellfeed.store.errors import DataDamaged
from tests.support.warehouse_log import SHARD, Log, feed


def test_a_commit_that_starts_at_another_offset_than_the_last_one_ended_is_damage(
    tmp_path: Path,
) -> None:
    make_table(tmp_path, "trips")
    loader, log = ShardLoader(tmp_path, SHARD), Log(range(20))
    for count in (8, 8):
        feed(loader, log, count)
        assert loader.flush() is not None
    path = commit_file(tmp_path, SHARD, 8)
    second = decode_commit(path.read_bytes(), path)
    path.write_bytes(encode_commit(msgspec.structs.replace(second, start_offset=9)))
    with pytest.raises(DataDamaged, match="starts at offset 9; the commit before it ended at 8"):
        ShardLoader(tmp_path, SHARD)
