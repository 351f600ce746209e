"""A client and the store that it works with: another one at the same address is refused before
anything is written."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from cellfeed import connect
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, NotFound, OtherHistory
from cellfeed.store.http.client import Client
from tests.support.worker_thread import worker_thread

pytestmark = pytest.mark.integration


def cells_in(store: Datastore) -> int:
    return sum(head.next_added_id for head in store.heads().values())


def open_store(tmp_path: Path, name: str) -> Datastore:
    return Datastore.open_embedded(tmp_path / name, shards=2)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_client_writes_nothing_into_a_neighbours_store_that_took_the_address(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path, "mine") as mine, open_store(tmp_path, "fresh") as fresh:
        with worker_thread(mine) as url, Client(url, "trips", timeout_s=5) as client:
            client.put_cell(uuid4(), "BASE", 1, {})
            assert client.history == mine.history_id
            port = port_of(url)
        with (
            Client(f"http://127.0.0.1:{port}", "trips", history=mine.history_id) as client,
            worker_thread(fresh, port=port),
        ):
            calls = (
                lambda: client.put_cell(uuid4(), "BASE", 1, {}),
                lambda: client.put_cells([(uuid4(), "BASE", 1, {})] * 10),
                lambda: client.get_row(uuid4()),
                lambda: client.heads(),
                lambda: client.erase_row(uuid4()),
            )
            for call in calls:
                with pytest.raises(OtherHistory, match=fresh.history_id) as refused:
                    call()
                assert refused.value.definite
        assert cells_in(fresh) == 0
        assert cells_in(mine) == 1


def test_a_client_remembers_the_first_answer(tmp_path: Path) -> None:
    with open_store(tmp_path, "mine") as mine, open_store(tmp_path, "fresh") as fresh:
        with worker_thread(mine) as url:
            client = Client(url, "trips", timeout_s=5)
            client.put_cell(uuid4(), "BASE", 1, {})
        with worker_thread(fresh, port=port_of(url)), client, pytest.raises(OtherHistory):
            client.put_cell(uuid4(), "BASE", 1, {})
        assert cells_in(fresh) == 0


def test_the_same_store_behind_a_new_worker_has_the_same_history(tmp_path: Path) -> None:
    with open_store(tmp_path, "mine") as mine:
        with worker_thread(mine) as url:
            client = Client(url, "trips", timeout_s=5)
            client.put_cell(uuid4(), "BASE", 1, {})
        with worker_thread(mine, port=port_of(url)), client:
            client.put_cell(uuid4(), "BASE", 1, {})


def test_a_client_skips_the_worker_of_another_store(tmp_path: Path) -> None:
    with open_store(tmp_path, "mine") as mine, open_store(tmp_path, "other") as other:
        with (
            worker_thread(mine) as one,
            worker_thread(other) as two,
            Client([two, one], "trips", timeout_s=5, history=mine.history_id) as client,
        ):
            for _ in range(10):
                client.put_cell(uuid4(), "BASE", 1, {})
            assert len(client.heads()) == 2
        assert (cells_in(mine), cells_in(other)) == (10, 0)


def test_workers_of_two_stores_are_refused_when_every_one_has_another_history(
    tmp_path: Path,
) -> None:
    with (
        open_store(tmp_path, "one") as one,
        open_store(tmp_path, "two") as two,
        worker_thread(one) as first,
        worker_thread(two) as second,
        Client([first, second], "trips", timeout_s=5, history="x") as client,
        pytest.raises(OtherHistory),
    ):
        client.heads()


def test_a_datastore_of_another_name_is_refused_by_its_name(tmp_path: Path) -> None:
    with open_store(tmp_path, "mine") as mine, worker_thread(mine) as url:
        with (
            connect(url, datastore="rides") as client,
            pytest.raises(NotFound, match="'rides' is not served here"),
        ):
            client.put_cells([(uuid4(), "BASE", 1, {})] * 10)
        assert cells_in(mine) == 0


@pytest.mark.parametrize("history", ["", "a\r\nb", "ä"])
def test_a_history_that_is_none_is_refused(history: str) -> None:
    with pytest.raises(InvalidRequest, match="history"):
        Client("http://127.0.0.1:1", "trips", history=history)
