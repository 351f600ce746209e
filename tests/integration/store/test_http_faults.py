"""Workers that die, peers that stop half-way, connections that are cut: the client's report, and
the cells in the store afterwards."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from cellfeed.store.http.client import Client
from tests.support.cutting_proxy import cutting_proxy
from tests.support.free_ports import free_port
from tests.support.worker_process import WorkerProcess, worker_process
from tests.support.worker_thread import worker_thread

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("failpoint", ["sqlite.put.before_commit", "sqlite.put.after_commit"])
def test_a_worker_killed_inside_a_put_loses_nothing_and_doubles_nothing(
    tmp_path: Path, failpoint: str
) -> None:
    cells = [(uuid4(), "BASE", 1, {"n": n}) for n in range(1000)]
    with (
        worker_process(tmp_path, failpoints=f"{failpoint}=kill") as doomed,
        Client(doomed.url, "trips", timeout_s=60) as client,
    ):
        replaced: list[WorkerProcess] = []

        def replace() -> None:
            assert doomed.wait() == -signal.SIGKILL
            replaced.append(WorkerProcess(tmp_path, doomed.port))

        replacing = threading.Thread(target=replace)
        replacing.start()
        results = client.put_cells(cells)
        replacing.join()
        assert replaced[0].end(signal.SIGTERM) == 0
    expected = Outcome.EXISTS if failpoint.endswith("after_commit") else Outcome.STORED
    assert {result.outcome for result in results} == {expected}
    with Datastore.open_embedded(tmp_path) as store:
        logs = [store.get_cells_for_shard(shard) for shard in range(store.shards)]
        assert sorted(cell.row_key for log in logs for cell in log.cells) == sorted(
            key for key, *_ in cells
        )
        assert all(
            [cell.added_id for cell in log.cells] == list(range(log.head.next_added_id))
            for log in logs
        )
        found = store.get_cells([(key, column, ref) for key, column, ref, _ in cells])
        assert [cell and (cell.shard, cell.added_id) for cell in found] == [
            (result.shard, result.added_id) for result in results
        ]


def test_a_put_whose_answers_are_cut_off_is_unknown_and_was_written(datastore: Datastore) -> None:
    row = uuid4()
    with (
        worker_thread(datastore) as url,
        cutting_proxy(int(url.rpartition(":")[2])) as proxy,
        Client(proxy.url, "trips", timeout_s=0.5) as client,
    ):
        assert client.shards == 16
        proxy.cut_answers.set()
        with pytest.raises(OutcomeUnknown) as caught:
            client.put_cell(row, "BASE", 1, {})
        assert not caught.value.definite
        with pytest.raises(OutcomeUnknown):
            client.put_cells([(row, "BASE", 2, {})])
        with pytest.raises(StorageUnavailable):
            client.get_row(row)
        assert proxy.answers_cut >= 3
        proxy.cut_answers.clear()
        assert client.put_cell(row, "BASE", 1, {}).outcome is Outcome.EXISTS


def test_an_unknown_put_stays_unknown_when_later_attempts_are_refused(tmp_path: Path) -> None:
    with worker_process(tmp_path, failpoints="sqlite.put.after_commit=kill") as doomed:
        with (
            Client([doomed.url], "trips", timeout_s=1.0) as client,
            pytest.raises(OutcomeUnknown) as caught,
        ):
            client.put_cell(uuid4(), "BASE", 1, {})
        assert doomed.wait() == -signal.SIGKILL
    assert isinstance(caught.value.__cause__, Exception)
    assert "no connection" in str(caught.value.__cause__)


def test_a_put_that_no_worker_took_was_definitely_not_written() -> None:
    with Client([f"http://127.0.0.1:{free_port()}"] * 2, "trips", timeout_s=0.3) as client:
        with pytest.raises(StorageUnavailable) as caught:
            client.put_cell(uuid4(), "BASE", 1, {})
        assert caught.value.definite
        with pytest.raises(StorageUnavailable):
            client.put_cells([(uuid4(), "BASE", 1, {})])


def test_the_client_continues_with_the_other_worker_when_one_is_killed(tmp_path: Path) -> None:
    with (
        worker_process(tmp_path) as first,
        worker_process(tmp_path) as second,
        Client([first.url, second.url], "trips", timeout_s=30) as client,
    ):
        before = [client.put_cell(uuid4(), "BASE", 1, {"n": n}) for n in range(20)]
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        after = [client.put_cell(uuid4(), "BASE", 1, {"n": n}) for n in range(20)]
        assert {result.outcome for result in before + after} == {Outcome.STORED}
        assert sum(head.next_added_id for head in client.heads().values()) == 40
        assert second.process.poll() is None


def test_a_worker_that_is_ended_answers_the_puts_under_way(tmp_path: Path) -> None:
    with (
        worker_process(tmp_path, failpoints="sqlite.put.before_commit=sleep:1.0") as worker,
        Client(worker.url, "trips", timeout_s=30) as client,
    ):
        sent = threading.Timer(0.4, lambda: worker.process.send_signal(signal.SIGTERM))
        sent.start()
        assert client.put_cell(uuid4(), "BASE", 1, {}).outcome is Outcome.STORED
        sent.join()
        assert worker.wait() == 0


def test_a_silent_server_delays_a_call_no_longer_than_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with Client(url, "trips", timeout_s=0.3) as client:
            with pytest.raises(StorageUnavailable):
                client.get_row(uuid4())
            with pytest.raises(OutcomeUnknown):
                client.put_cell(uuid4(), "BASE", 1, {})


def test_a_server_that_drips_bytes_cannot_stretch_the_deadline() -> None:
    ended = threading.Event()
    dripped = []

    def drip(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not ended.wait(0.02):
                peer.sendall(b" ")
                dripped.append(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            with (
                Client(
                    f"http://127.0.0.1:{listener.getsockname()[1]}", "trips", timeout_s=0.5
                ) as client,
                pytest.raises(StorageUnavailable),
            ):
                client.get_row(uuid4())
        finally:
            ended.set()
            thread.join()
    assert dripped
