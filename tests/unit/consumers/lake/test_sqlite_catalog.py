"""The embedded catalog, opened by several at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from cellfeed.consumers.lake.iceberg_catalog import sqlite_catalog


def test_a_new_catalog_may_be_opened_by_several_at_once(tmp_path: Path) -> None:
    def opened(folder: Path, barrier: Barrier) -> int:
        barrier.wait(10)
        return len(sqlite_catalog(folder).list_namespaces())

    with ThreadPoolExecutor(4) as threads:
        for attempt in range(20):
            barrier = Barrier(4)
            found = [threads.submit(opened, tmp_path / str(attempt), barrier) for _ in range(4)]
            assert [each.result(30) for each in found] == [0] * 4
