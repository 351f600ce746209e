"""Waiting for an outlet: one suite, in process and over HTTP. The outlets' positions are moved by
hand here; ``tests/unit/bridge/outlets/test_real_outlets.py`` has real ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway.cluster_id import cluster_id_of
from cellfeed.bridge.groups.control import EXPORTS, group_prefix
from cellfeed.bridge.groups.definition import Definition, check_definition
from cellfeed.bridge.outlets.find import outlets
from cellfeed.bridge.outlets.lakes import LakeLook, LakeTable
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.api import CellStore
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.token import Token
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    InvalidRequest,
    NotFound,
    OtherHistory,
    Overloaded,
    UnknownShard,
    WaitTimedOut,
)
from cellfeed.store.http.async_client import AsyncClient
from cellfeed.store.indexes.definition import IndexColumn, IndexDefinition, IndexField
from cellfeed.store.waits import outlet_watch, waiting, watched_outlet
from cellfeed.store.waits.waiting import Place
from tests.support.parked import parked_cell
from tests.support.waiting import wait_until
from tests.support.worker_thread import worker_thread

KINDS = ("trigger", "index", "group", "export", "lake")
GROUPS = {
    "trigger": "billing",
    "index": "index.by_driver.v1",
    "group": "analytics",
    "export": f"{EXPORTS}lake",
}
NAMES = {
    "trigger": "billing",
    "index": "by_driver",
    "group": "analytics",
    "export": "lake",
    "lake": "tables",
}


class Outlets:
    """One of each kind, whose positions the test moves."""

    def __init__(self, datastore: Datastore) -> None:
        self.datastore = datastore
        self.coordinator = StoreCoordinator(datastore.state)
        self.move("group", 0, 0)
        self._loaded: dict[int, int] = {}

    def lakes(self) -> dict[str, LakeTable]:
        source = f"{cluster_id_of(self.datastore)}/{self.datastore.name}/topic"
        return {NAMES["lake"]: LakeTable("loaders", lambda: LakeLook(source, dict(self._loaded)))}

    def move(self, kind: str, shard: int, position: int, **entries: bytes) -> None:
        if kind == "lake":
            self._loaded[shard] = position
            return
        key = self.datastore.name, shard
        self.coordinator.commit_offsets(
            GROUPS[kind], {key: CommittedOffset(position)}, entries=entries
        )

    def pass_(self, kind: str, result: PutResult, **entries: bytes) -> None:
        assert result.shard is not None
        assert result.added_id is not None
        self.move(kind, result.shard, result.added_id + 1, **entries)


@pytest.fixture(scope="module")
def moved(datastore: Datastore) -> Iterator[Outlets]:
    opened = Outlets(datastore)
    datastore.waits.find = outlets(datastore, StoreCoordinator(datastore.state), opened.lakes)
    check_definition(datastore.state, "billing", Definition(["BASE"], "app:bill"))
    datastore.state.commit({f"{group_prefix(f'{EXPORTS}lake')}ran": b"{}"})
    catalog = datastore.indexes.catalog
    fields = [IndexField("driver", ["driver"], "uuid")]
    made = catalog.create(
        IndexDefinition("by_driver", datastore.name, [IndexColumn("BASE", fields)])
    )
    catalog.switch("by_driver", made.number)
    yield opened
    datastore.waits.find = None


def put(store: CellStore) -> PutResult:
    return store.put_cell(uuid4(), "BASE", 1, {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_ends_when_the_outlet_passes_the_place_and_not_before(
    store: CellStore, moved: Outlets, kind: str
) -> None:
    result = put(store)
    assert result.shard is not None
    assert result.added_id is not None
    moved.move(kind, result.shard, result.added_id)  # it takes the cell next
    wanted: dict[str, Any] = {kind: NAMES[kind]}
    with pytest.raises(WaitTimedOut) as over:
        store.wait_for(result, timeout_s=0.1, **wanted)
    assert isinstance(over.value, TimeoutError)
    assert over.value.missing == ((result.shard, result.added_id, result.added_id),)
    assert f"shard {result.shard} is at {result.added_id}" in str(over.value)

    passed_at_s: list[float] = []

    def move() -> None:
        passed_at_s.append(time.monotonic())
        moved.pass_(kind, result)

    timer = threading.Timer(0.3, move)
    timer.start()
    passed = store.wait_for(str(result.token), **wanted)
    ended_s = time.monotonic()
    timer.join()

    assert passed.handled
    assert NAMES[kind] in passed.outlet
    assert passed_at_s[0] <= ended_s


def test_the_answer_names_the_parked_cells_of_a_batch(store: CellStore, moved: Outlets) -> None:
    results = store.put_cells([(uuid4(), "BASE", 1, {}) for _ in range(40)])
    shards = sorted({result.shard for result in results if result.shard is not None})
    bad = results[7]
    assert bad.shard is not None
    assert bad.added_id is not None
    cell = parked_cell(bad.shard, bad.added_id, topic=moved.datastore.name)
    parked = ParkedCells(moved.datastore.state)
    moved.datastore.state.commit(dict(parked.entry(cell)))
    for shard in shards:
        moved.move(
            "trigger", shard, 1 + max(each.added_id or 0 for each in results if each.shard == shard)
        )
    token = Token.of(results)

    passed = store.wait_for(results, trigger="billing")
    assert passed.parked == [Place(bad.shard, bad.added_id)]
    assert not passed.handled
    assert store.wait_for(bad, trigger="billing").parked == passed.parked

    parked.resolved(cell)
    assert store.wait_for(token, trigger="billing").handled


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_an_error_at_once_that_lists_the_names(
    store: CellStore, moved: Outlets, kind: str
) -> None:
    wanted: dict[str, Any] = {kind: "nobody"}
    began_s = time.monotonic()
    with pytest.raises(NotFound, match=f"no .*'nobody'.*{NAMES[kind]}"):
        store.wait_for(put(store), timeout_s=30, **wanted)
    assert time.monotonic() - began_s < 10
    other: dict[str, Any] = {kind: NAMES["index" if kind == "trigger" else "trigger"]}
    with pytest.raises(NotFound):
        store.wait_for(put(store), timeout_s=30, **other)


def test_a_token_of_another_store_is_refused_with_both_ids(
    store: CellStore, moved: Outlets
) -> None:
    own = str(put(store).token).partition(":")[0]
    with pytest.raises(OtherHistory, match="f" * 32) as refused:
        store.wait_for(f"{'f' * 32}:0.0", trigger="billing")
    assert (own or "(none)") in str(refused.value)
    with pytest.raises(UnknownShard):
        store.wait_for(f"{own}:4000.0", trigger="billing")


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"trigger": "billing", "index": "by_driver"},
        {"trigger": ""},
        {"trigger": "billing", "timeout_s": -1},
        {"trigger": "billing", "timeout_s": float("nan")},
        {"trigger": "billing", "timeout_s": waiting.WAIT_S_MAX + 1},
    ],
)
def test_a_wait_names_one_outlet_and_a_time(
    store: CellStore, moved: Outlets, wanted: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest):
        store.wait_for(put(store), **wanted)
    with pytest.raises(InvalidRequest, match="not of the form"):
        store.wait_for("3/17", trigger="billing")


def test_a_wait_of_no_time_looks_once(store: CellStore, moved: Outlets) -> None:
    result = put(store)
    moved.pass_("trigger", result)
    assert store.wait_for(result, trigger="billing", timeout_s=0).handled


def test_waiters_are_limited_and_cost_nothing_once_they_have_gone(
    store: CellStore, moved: Outlets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_watch, "WAITERS_MAX", 1)
    monkeypatch.setattr(watched_outlet, "LINGER_S", 0.0)
    monkeypatch.setattr("cellfeed.store.http.calls.waits.LONG_POLL_S_MAX", 0.2)
    result, ended = put(store), threading.Event()

    def wait() -> None:
        store.wait_for(result, trigger="billing", timeout_s=20)
        ended.set()

    first = threading.Thread(target=wait)
    first.start()
    waits, token = moved.datastore.waits, Token.of(result)
    wait_until(lambda: waits.waiters == 1, "it waits")
    target = waits.target(token, "index", "by_driver")
    with pytest.raises(Overloaded, match="1 callers"), waits.at(target, token, lambda: None):
        pass
    moved.pass_("trigger", result)
    assert ended.wait(20)
    first.join()
    wait_until(lambda: not waits.waiters and not waits.watched, "nobody waits any more", 10)
    wait_until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("wait-")],
        "their threads have ended",
    )


def test_a_wait_whose_client_has_gone_ends_at_once(
    moved: Outlets, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("calls.waits", "server.wait"):
        monkeypatch.setattr(f"cellfeed.store.http.{place}.LONG_POLL_S_MAX", 600.0)
    result, waits = put(moved.datastore), moved.datastore.waits

    async def cancel(url: str) -> None:
        async with AsyncClient(url, "trips") as opened:
            waiting = asyncio.create_task(opened.wait_for(result, trigger="billing", timeout_s=600))
            await asyncio.to_thread(wait_until, lambda: waits.waiters == 1, "it waits")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.to_thread(wait_until, lambda: not waits.waiters, "the wait has ended")

    with worker_thread(moved.datastore) as url:
        asyncio.run(cancel(url))
