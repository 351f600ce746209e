"""The server behind a managed endpoint is killed while eight writers in two processes put cells and
a follower reads the logs: nothing is lost, skipped, doubled or changed (I1 to I8)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import Unavailable
from tests.support.managed_endpoint import SHARDS, ManagedEndpoint
from tests.support.waiting import wait_until
from tests.support.writer_process import acknowledgements, row_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.xdist_group("mysql-managed"),
]

ROOT = Path(__file__).parents[4]
WRITERS, THREADS = 2, 4
CELLS_BETWEEN = 300
"""Acknowledged cells of each writer before the server is killed, and again behind it."""


@contextmanager
def writer(endpoint: ManagedEndpoint, number: int) -> Iterator[Path]:
    """A writer process; yields the file with its output. Ended in good order."""
    output = endpoint.directory / f"writer-{number}.log"
    with output.open("w") as file, output.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.managed_writer"),
                *(str(endpoint.config()), str(number), str(THREADS)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=errors,
        )
    try:
        yield output
    finally:
        process.communicate(timeout=60)
    assert process.returncode == 0


class Follower(threading.Thread):
    """Reads every log from 0, and remembers its place alone. ``seen``: the cells by shard."""

    def __init__(self, endpoint: ManagedEndpoint) -> None:
        super().__init__(daemon=True)
        self.store = endpoint.open()
        self.seen: dict[int, list[StoredCell]] = {shard: [] for shard in range(SHARDS)}
        self.away = 0
        """Reads that met a server that was away."""
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.wait(0.01):
                self.step()
        except BaseException as error:
            self.error = error

    def step(self) -> None:
        try:
            heads = self.store.engine.heads()
            for shard, cells in self.seen.items():
                while len(cells) < heads[shard].watermark:
                    piece = self.store.engine.scan(shard, len(cells), 500)
                    assert [cell.added_id for cell in piece] == list(
                        range(len(cells), len(cells) + len(piece))
                    )
                    cells += piece
                    if not piece:
                        break
        except Unavailable:
            self.away += 1


def acknowledged(outputs: list[Path]) -> list[dict[int, tuple[int, int]]]:
    return [acknowledgements(each.read_text())[1] for each in outputs]


def test_a_kill_of_the_server_loses_doubles_and_changes_nothing(
    endpoint: ManagedEndpoint,
) -> None:
    def all_have(count: int) -> bool:
        return all(len(each) >= count for each in acknowledged(outputs))

    with ExitStack() as stack:
        follower = Follower(endpoint)
        stack.callback(follower.store.close)
        stack.callback(follower.join, 30)
        stack.callback(follower.stop.set)
        follower.start()
        with ExitStack() as writing:
            outputs = [writing.enter_context(writer(endpoint, each)) for each in range(WRITERS)]
            wait_until(lambda: all_have(CELLS_BETWEEN), "both writers are at work")
            killed = endpoint.server.process
            endpoint.server.kill()
            before = [len(each) for each in acknowledged(outputs)]
            endpoint.server.start()
            assert endpoint.server.process is not killed
            target = max(before) + CELLS_BETWEEN
            wait_until(lambda: all_have(target), "both writers are at work again", 120)
        follower.stop.set()
        follower.join(30)
        assert follower.error is None
        shown = {shard: list(cells) for shard, cells in follower.seen.items()}
        with endpoint.open() as store:
            logs = {shard: store.engine.scan(shard, 0, 1_000_000) for shard in range(SHARDS)}
    for shard, cells in logs.items():
        assert [cell.added_id for cell in cells] == list(range(len(cells)))
        assert shown[shard] == cells[: len(shown[shard])], "a cell that was shown is another (I3)"
    places = {cell.row_key: (shard, cell) for shard, cells in logs.items() for cell in cells}
    assert len(places) == sum(map(len, logs.values())), "a triple is in the log twice (I5)"
    for number, each in enumerate(acknowledged(outputs)):
        for n, (shard, added_id) in each.items():
            found_in, cell = places[row_of(number, n).bytes]
            assert (found_in, cell.added_id) == (shard, added_id), "not where it was said (I4)"
