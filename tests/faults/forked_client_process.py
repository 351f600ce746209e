"""A process whose threads put and read by key through one client, and which forks meanwhile: both
sides continue with the same client.

``python -m tests.faults.forked_client_process URL DIRECTORY SEED FORKS [MEND…]``. Each process
writes its requests and their answers to a file of its own, ``PID.ndjson``. For planted faults the
mends named are undone: ``forks`` (connections are the process's own), ``numbers`` (an answer
carries the number of its request), ``contents`` (the answer is compared with the request).
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import msgspec

from cellfeed.store import forks
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.cell import Cell
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.calls import answers as client_answers
from cellfeed.store.http.calls import wire as client_wire
from cellfeed.store.http.client import Client

THREADS: Final = 8
PAUSE_MAX_S: Final = 0.03
"""Behind each call: so at any moment some of the connections are idle, and a fork copies them."""

FORK_EVERY_S: Final = 0.25
CHILD_S: Final = 0.8
CALL_TIMEOUT_S: Final = 5.0


class PutAnswered(msgspec.Struct, tag="put"):
    """One put and its answer. Times are those of the machine's monotonic clock; ``error`` is the
    code of the error that came instead."""

    row_key: UUID
    body_json: str
    begun_s: float
    answered_s: float
    outcome: str | None = None
    shard: int | None = None
    added_id: int | None = None
    error: str | None = None


class CellSeen(msgspec.Struct):
    row_key: UUID
    column_name: str
    ref_key: int
    body_json: str
    shard: int
    added_id: int


class GetAnswered(msgspec.Struct, tag="get"):
    """One read of the cell ``(row_key, BASE, 1)`` and its answer."""

    row_key: UUID
    got: CellSeen | None = None
    error: str | None = None


Answered = PutAnswered | GetAnswered


class Side:
    """The threads of one process."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client, self._seed = client, seed
        self._stop = threading.Event()
        self.answers: list[Answered] = []
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(THREADS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(4 * CALL_TIMEOUT_S)

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed}-{os.getpid()}-{number}")
        rows: list[UUID] = []
        while not self._stop.is_set():
            row_key = uuid4()
            if self._put(row_key):
                rows.append(row_key)
            time.sleep(chance.uniform(0, PAUSE_MAX_S))
            if rows:
                some = [chance.choice(rows) for _ in range(3)]
                self._get(some[:1], lambda keys: [self._client.get_cell(keys[0], "BASE", 1)])
                self._get(
                    some, lambda keys: self._client.get_cells([(key, "BASE", 1) for key in keys])
                )
            time.sleep(chance.uniform(0, PAUSE_MAX_S))

    def _put(self, row_key: UUID) -> bool:
        body = {"row_key": str(row_key), "pid": os.getpid()}
        begun_s = time.monotonic()
        put = PutAnswered(row_key, canonical_json.canonical(body).decode(), begun_s, 0.0)
        try:
            result = self._client.put_cell(row_key, "BASE", 1, body)
            put.outcome, put.shard, put.added_id = (
                result.outcome.value,
                result.shard,
                result.added_id,
            )
        except CellfeedError as error:
            put.error = error.code
        put.answered_s = time.monotonic()
        self.answers.append(put)
        return put.outcome is not None

    def _get(
        self, keys: Sequence[UUID], read: Callable[[Sequence[UUID]], list[Cell | None]]
    ) -> None:
        try:
            found = read(keys)
        except CellfeedError as error:
            self.answers += [GetAnswered(key, error=error.code) for key in keys]
            return
        for number, key in enumerate(
            keys
        ):  # an answer that is too short is not there for the last ones
            self.answers.append(
                GetAnswered(key, _seen(found[number]) if number < len(found) else None)
            )


def _seen(cell: Cell | None) -> CellSeen | None:
    if cell is None:
        return None
    return CellSeen(
        cell.row_key,
        cell.column_name,
        cell.ref_key,
        cell.body_json.decode(),
        cell.shard,
        cell.added_id,
    )


def undo(mends: Sequence[str]) -> None:
    """Plants the faults."""
    if "forks" in mends:
        os.register_at_fork(after_in_child=lambda: setattr(forks, "generation", 0))
    if "numbers" in mends:
        client_wire.AnswerReader.on_header = lambda *_: None  # type: ignore[method-assign]
    if "contents" in mends:
        client_answers._wrong = lambda *_: None  # type: ignore[assignment]


def main(url: str, directory: Path, seed: int, count: int, mends: Sequence[str]) -> None:
    undo(mends)
    client = Client(url, "trips", timeout_s=CALL_TIMEOUT_S)
    chance = random.Random(f"forks-{seed}")
    side = Side(client, seed)
    side.start()
    children = []
    for _ in range(count):
        time.sleep(FORK_EVERY_S * chance.uniform(0.5, 1.5))
        pid = os.fork()
        if pid == 0:
            _run_child(client, directory, seed)
        children.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    side.stop()
    _write(directory, side)
    sys.exit(0 if not any(statuses) else f"children ended with {statuses}")


def _run_child(client: Client, directory: Path, seed: int) -> None:
    try:
        side = Side(client, seed)
        side.start()
        time.sleep(CHILD_S)
        side.stop()
        _write(directory, side)
        os._exit(0)
    finally:
        os._exit(1)


def _write(directory: Path, side: Side) -> None:
    (directory / f"{os.getpid()}.ndjson").write_bytes(
        msgspec.json.Encoder().encode_lines(side.answers)
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
