"""Followers whose workers are killed, stand still, are cut off or replaced; and slow ones."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import closing
from itertools import islice
from pathlib import Path
from uuid import uuid4

import pytest

from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import DataDamaged, OtherHistory, Overloaded
from cellfeed.store.followed import FollowedCell, Follower
from cellfeed.store.following.reading import Piece, read_pieces
from cellfeed.store.http.async_client import AsyncClient
from cellfeed.store.http.client import Client
from cellfeed.store.http.server import follow
from tests.support.cutting_proxy import cutting_proxy
from tests.support.free_ports import free_port
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess, worker_process
from tests.support.worker_thread import worker_thread

pytestmark = pytest.mark.integration


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store") as opened:
        yield opened


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def put_some(store: Datastore, count: int) -> list[PutResult]:
    return store.put_cells([(uuid4(), "BASE", 1, {"n": n}) for n in range(count)])


def assert_whole(cells: list[FollowedCell], put: list[PutResult]) -> None:
    """Each cell that was put came once, in the order of its log."""
    places = [(each.shard, each.added_id) for each in cells]
    for shard in {each.shard for each in put}:
        expected = sorted(each.added_id or 0 for each in put if each.shard == shard)
        assert [added_id for of, added_id in places if of == shard] == expected


def test_no_cell_is_lost_or_doubled_while_workers_are_killed(tmp_path: Path) -> None:
    ports, rounds = [free_port(), free_port()], 6
    put: list[PutResult] = []
    with Datastore.open_embedded(tmp_path) as store:
        workers = [WorkerProcess(tmp_path, port) for port in ports]
        try:
            with Client([each.url for each in workers], "trips", timeout_s=60) as client:
                follower = client.follow()
                cells: list[FollowedCell] = []
                for number in range(rounds):
                    doomed, other = number % 2, 1 - number % 2
                    assert workers[other].process.poll() is None
                    put += put_some(store, 50)
                    cells += islice(follower, 20)
                    assert workers[doomed].end(signal.SIGKILL) == -signal.SIGKILL
                    put += put_some(store, 50)
                    cells += islice(follower, 60)
                    pid = workers[doomed].process.pid
                    workers[doomed] = WorkerProcess(tmp_path, ports[doomed])
                    assert workers[doomed].process.pid != pid
                    cells += islice(follower, 20)
                follower.close()
        finally:
            for worker in workers:
                worker.end(signal.SIGKILL)
    assert len(cells) == rounds * 100
    assert_whole(cells, put)


def test_a_token_resumes_in_another_process_after_every_worker_died(tmp_path: Path) -> None:
    with Datastore.open_embedded(tmp_path) as store:
        with worker_process(tmp_path) as first, Client(first.url, "trips") as client:
            with client.follow() as follower:
                put = put_some(store, 30)
                cells = list(islice(follower, 11))
            assert first.end(signal.SIGKILL) == -signal.SIGKILL
        with (
            worker_process(tmp_path) as second,
            Client(second.url, "trips") as client,
            client.follow(start=cells[-1].token) as follower,
        ):
            cells += islice(follower, 19)
    assert_whole(cells, put)


def test_a_follower_whose_connections_are_cut_misses_nothing(
    datastore: Datastore, record_property: Callable[[str, object], None]
) -> None:
    seed = random.randrange(1 << 32)
    record_property("seed", seed)
    chance = random.Random(seed)
    with (
        worker_thread(datastore) as url,
        cutting_proxy(port_of(url)) as proxy,
        Client(proxy.url, "trips", timeout_s=60) as client,
        client.follow() as follower,
    ):
        cells: list[FollowedCell] = []
        put: list[PutResult] = []
        for _ in range(10):
            put += put_some(datastore, 20)
            cells += islice(follower, len(put) - len(cells) - chance.randrange(15))
            cut = proxy.answers_cut
            proxy.cut_answers.set()
            put += put_some(datastore, 20)
            wait_until(lambda cut=cut: proxy.answers_cut > cut, "an answer that is cut")  # type: ignore[misc]
            proxy.cut_answers.clear()
        cells += islice(follower, len(put) - len(cells))
    assert_whole(cells, put)


@pytest.mark.slow
def test_a_worker_that_stands_still_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.http.calls.blocking_follower.SILENT_S", 3.0)
    with (
        Datastore.open_embedded(tmp_path) as store,
        worker_process(tmp_path) as first,
        worker_process(tmp_path) as second,
        Client([first.url, second.url], "trips", timeout_s=60) as client,
        client.follow() as one,
        client.follow() as two,  # one at each worker
    ):
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            put = put_some(store, 10)
            for follower in (one, two):
                assert_whole(list(islice(follower, 10)), put)
            state = Path(f"/proc/{first.process.pid}/stat").read_text().rpartition(")")[2]
            assert state.split()[0] == "T"
        finally:
            os.kill(first.process.pid, signal.SIGCONT)


def test_another_store_at_the_address_is_refused_with_both_ids(tmp_path: Path) -> None:
    with (
        Datastore.open_embedded(tmp_path / "mine") as mine,
        Datastore.open_embedded(tmp_path / "other") as other,
    ):
        with worker_thread(mine) as url:
            client = Client(url, "trips", timeout_s=20)
            follower = client.follow()
            put_some(mine, 1)
            next(follower)
        put_some(other, 1)
        with worker_thread(other, port_of(url)), client, follower:
            with pytest.raises(OtherHistory, match=other.history_id) as refused:
                next(follower)
            assert mine.history_id in str(refused.value)
            with (
                Client(url, "trips") as later,
                pytest.raises(OtherHistory, match=mine.history_id) as refused,
            ):
                later.follow(start=follower.token)
            assert other.history_id in str(refused.value)


@pytest.mark.parametrize("where", ["client", "store"])
def test_a_damaged_cell_is_an_error_behind_the_cells_before_it(tmp_path: Path, where: str) -> None:
    row = uuid4()
    with Datastore.open_embedded(tmp_path) as store:
        store.put_cells([(row, "BASE", n, {"n": n}) for n in range(40)])
        shard = store.shard_of(row)
    file = tmp_path / "trips" / CELLS_FILE
    with closing(sqlite3.connect(file)) as connection:
        changed = connection.execute(
            "UPDATE cell SET body = x'04' WHERE position = ?", (position_of(shard, 25),)
        )
        assert changed.rowcount == 1
        connection.commit()
    with (
        Datastore.open_embedded(tmp_path) as store,
        worker_thread(store) as url,
        Client(url, "trips") as client,
    ):
        reader = client if where == "client" else store
        with reader.follow(start="earliest") as follower:
            assert [each.ref_key for each in islice(follower, 25)] == list(range(25))
            with pytest.raises(DataDamaged, match=r"added_id 25 .* damaged"):
                next(follower)


def test_a_client_that_reads_no_bytes_stops_the_reading_of_cells(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(engine: Engine, ranges: list[LogRange], columns: Set[str] | None) -> list[Piece]:
        found = read_pieces(engine, ranges, columns)
        read.append(sum(len(each.body_json) for piece in found for each in piece.cells))
        return found

    monkeypatch.setattr(follow, "read_pieces", counted)
    for _ in range(8):
        datastore.put_cells([(uuid4(), "BASE", n, {"text": "x" * 900_000}) for n in range(8)])
    with (
        worker_thread(datastore) as url,
        Client(url, "trips") as client,
        client.follow(start="earliest") as follower,
    ):
        next(follower)
        wait_until(lambda: len(read) > 0, "a first piece")
        threading.Event().wait(1.0)  # time to read all of it, for a worker that would
        assert sum(read) < 50 << 20
        assert len(list(islice(follower, 63))) == 63
    assert sum(read) >= 64 * 900_000


def test_followers_past_the_limit_are_refused(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "FOLLOWERS_MAX", 2)
    with worker_thread(datastore) as url, Client(url, "trips", timeout_s=0.3) as client:
        first, second = client.follow(), client.follow()
        with pytest.raises(Overloaded, match="2 followers"):
            client.follow()
        first.close()
        second.close()
        with Client(url, "trips") as patient:
            patient.follow().close()


def test_followers_are_woken_and_only_a_lost_wake_up_is_found_by_the_poll(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.http.server.follow_heads.POLL_INTERVAL_S", 1e6)
    monkeypatch.setattr("cellfeed.store.following.in_process.POLL_INTERVAL_S", 1e6)
    with worker_thread(datastore) as url, Client(url, "trips") as client:
        for reader in (client, datastore):
            assert _comes_while_putting(reader.follow(), datastore)


def _comes_while_putting(follower: Follower, store: Datastore) -> bool:
    ended, came = threading.Event(), threading.Event()

    def put() -> None:
        for _ in range(200):  # some may come before the writer knows the follower's address
            if ended.wait(0.1):
                return
            put_some(store, 1)
        follower.close()

    thread = threading.Thread(target=put)
    thread.start()
    try:
        for _ in follower:
            came.set()
            break
    finally:
        ended.set()
        thread.join()
        follower.close()
    return came.is_set()


def test_many_shards_without_new_cells_cost_no_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(engine: Engine, ranges: list[LogRange], columns: Set[str] | None) -> list[Piece]:
        read.append(len(ranges))
        return read_pieces(engine, ranges, columns)

    monkeypatch.setattr(follow, "read_pieces", counted)
    with (
        Datastore.open_embedded(tmp_path, shards=4_096) as store,
        worker_thread(store) as url,
        Client(url, "trips") as client,
        client.follow() as follower,
    ):
        for _ in range(30):
            put_some(store, 1)
            next(follower)
        assert 0 < sum(read) <= 30
        token = follower.token
    assert len(token) < 2_000


@pytest.mark.parametrize("where", ["client", "store"])
def test_a_follower_ends_when_another_thread_closes_it(datastore: Datastore, where: str) -> None:
    with worker_thread(datastore) as url, Client(url, "trips") as client:
        follower = client.follow() if where == "client" else datastore.follow()
        found: list[FollowedCell] = []
        thread = threading.Thread(target=lambda: found.extend(follower))
        thread.start()
        put_some(datastore, 3)
        wait_until(lambda: len(found) == 3, "three cells")
        follower.close()
        thread.join(30)
        assert not thread.is_alive()


def test_a_cancelled_wait_loses_no_cell(datastore: Datastore) -> None:
    async def run(url: str) -> list[FollowedCell]:
        cells: list[FollowedCell] = []
        async with AsyncClient(url, "trips") as client, client.follow() as follower:
            while len(cells) < 60:
                if len(cells) % 20 == 0:
                    put.extend(await asyncio.to_thread(put_some, datastore, 20))
                task = asyncio.ensure_future(anext(follower))
                await asyncio.sleep(0)
                task.cancel()
                try:
                    cells.append(await task)
                except asyncio.CancelledError:
                    cells.append(await anext(follower))
        return cells

    put: list[PutResult] = []
    with worker_thread(datastore) as url:
        cells = asyncio.run(run(url))
    assert_whole(cells, put)


def test_a_client_ends_its_follower_in_order_when_the_worker_ends(tmp_path: Path) -> None:
    with (
        Datastore.open_embedded(tmp_path) as store,
        worker_process(tmp_path) as first,
        worker_process(tmp_path) as second,
        Client([first.url, second.url], "trips", timeout_s=60) as client,
        client.follow() as one,
        client.follow() as two,
    ):
        put = put_some(store, 5)
        cells = [list(islice(each, 5)) for each in (one, two)]
        assert first.end(signal.SIGTERM) == 0
        put += put_some(store, 5)
        for each, before in zip((one, two), cells, strict=True):
            assert_whole([*before, *islice(each, 5)], put)
