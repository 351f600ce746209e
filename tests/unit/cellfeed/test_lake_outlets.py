"""The tables of a configuration's lakes, as waits read them; and the loaders' end of a wait."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

import cellfeed.consumers
import cellfeed.consumers.lake
from cellfeed.assembly import lake_waiters
from cellfeed.assembly.lake_outlets import lake_tables
from cellfeed.assembly.lake_waiters import LakeWaiters
from cellfeed.bridge.outlets.lakes import LakeLook, LakeTable, watched_name
from cellfeed.config.lake import LakeConfig
from cellfeed.config.model import Config
from cellfeed.consumers.lake.appending import append
from cellfeed.run_dir import RunDir
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, StorageUnavailable, Unavailable
from cellfeed.store.waits.awaited import Watch
from tests.support.lake_tables import FORMATS, SOURCE, addition, make
from tests.support.waiting import wait_until


def tables(folder: Path, kind: str) -> dict[str, LakeTable]:
    entry = LakeConfig(format="delta" if kind == "delta" else "iceberg", group="loaders")
    return dict(lake_tables(Config(lakes=[entry]), RunDir(folder))())


@pytest.mark.parametrize("kind", FORMATS)
def test_a_look_sees_each_commit_and_a_table_that_was_made_again(kind: str, tmp_path: Path) -> None:
    found = tables(tmp_path, kind)["lake"]
    assert found.group == "loaders"
    assert found.look() is None
    table = make(tmp_path / "lake", kind)
    assert found.look() == LakeLook(SOURCE, {})
    append(table, addition(table, {0: 20, 3: 5}))
    assert found.look() == LakeLook(SOURCE, {0: 20, 3: 5})
    append(table, addition(table, {3: 9}, {3: 5}))
    assert found.look() == LakeLook(SOURCE, {0: 20, 3: 9})

    shutil.rmtree(tmp_path / "lake")
    assert found.look() is None
    other = make(tmp_path / "lake", kind, "cluster-b/trips/topic-1")
    append(other, addition(other, {0: 2}, source="cluster-b/trips/topic-1"))
    assert found.look() == LakeLook("cluster-b/trips/topic-1", {0: 2})


def test_a_catalogs_file_that_was_exchanged_is_noticed(tmp_path: Path) -> None:
    found, folder = tables(tmp_path, "iceberg")["lake"], tmp_path / "lake"
    table = make(folder, "iceberg")
    append(table, addition(table, {0: 20}))
    shutil.copy(folder / "catalog.sqlite", tmp_path / "earlier")
    append(table, addition(table, {0: 30}, {0: 20}))
    assert found.look() == LakeLook(SOURCE, {0: 30})
    (tmp_path / "earlier").rename(folder / "catalog.sqlite")
    assert found.look() == LakeLook(SOURCE, {0: 20})


def test_a_table_that_proves_no_position_does_not_answer(tmp_path: Path) -> None:
    found, table = tables(tmp_path, "delta")["lake"], make(tmp_path / "lake", "delta")
    append(table, addition(table, {0: 20}))
    append(table, addition(table, {0: 30}, {0: 20}))
    DeltaTable(table.folder).restore(1)
    with pytest.raises(Unavailable, match=r"lake 'lake' stands still: .*restored"):
        found.look()


def test_a_worker_without_the_formats_libraries_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package that others have imported is in its place again afterwards.
    monkeypatch.setattr(cellfeed.consumers, "lake", cellfeed.consumers.lake)
    for name in [each for each in sys.modules if each.startswith("cellfeed.consumers.lake")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(InvalidRequest, match=r"lake 'lake'.*pip install 'cellfeed\[lake\]'"):
        tables(tmp_path, "iceberg")


@pytest.fixture
def store(tmp_path: Path) -> Callable[[], Datastore]:
    folder = tmp_path / "store"
    return lambda: Datastore.open_embedded(folder, shards=1)


def test_a_loader_hears_of_waiters_and_wakes_them(store: Callable[[], Datastore]) -> None:
    with (
        store() as datastore,
        closing(LakeWaiters("loaders", "lake", store)) as waiters,
        closing(Watch(datastore.state)) as watch,
    ):
        assert not waiters.is_awaited()

        def is_heard() -> bool:
            watch._again_at_s = 0.0
            watch.send_where_due(watched_name("loaders"))
            return waiters.is_awaited()

        wait_until(is_heard, "the loader hears of the waiter")
        watch.wait(0.5)
        watch.is_answered = False
        waiters.wake()
        watch.wait(30)
        assert watch.is_answered
        watch._again_at_s = 0.0
        watch.send_where_due(watched_name("others"))
    assert not waiters.is_awaited()
    waiters.wake()


def test_a_store_that_is_away_keeps_no_loader_from_its_work(
    store: Callable[[], Datastore],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lake_waiters, "AGAIN_S", 0.01)
    tried: list[int] = []

    def open_store() -> Datastore:
        tried.append(1)
        if len(tried) < 4:
            raise StorageUnavailable("the node is away")
        return store()

    with (
        caplog.at_level(logging.WARNING),
        closing(LakeWaiters("loaders", "lake", open_store)) as waiters,
    ):
        assert not waiters.is_awaited()
        waiters.wake()
        wait_until(lambda: waiters._awaited is not None, "the store is open")
    assert len([each for each in caplog.messages if "the node is away" in each]) == 1
