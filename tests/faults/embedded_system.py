"""The parts of a fault run on an embedded store: a worker process on its files, and callers that
put each cell once and believe the answer."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import UUID

from cellfeed.store.cells import canonical_json
from tests.faults.ledger import Ledger, Put

ROOT = Path(__file__).parents[2]
CALLERS = 4
CALL_TIMEOUT_S = 30.0


class Worker:
    """An HTTP worker as a process of its own, with a log."""

    def __init__(self, directory: Path, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            command = [
                sys.executable,
                "-m",
                "tests.support.http_worker_process",
                str(directory),
            ]
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.pid = self.process.pid

    def __str__(self) -> str:
        return f"worker with pid {self.pid}"

    def kill(self) -> None:
        """kill -9; again does nothing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=30)

    def warnings(self, text: str) -> int:
        return self._log.read_text().count(text)

    def ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_TIMEOUT_S)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        finally:
            connection.close()


class Callers:
    """Threads that put one cell after the other at a worker, each over one connection, and write
    down the answers."""

    def __init__(
        self, worker: Worker, ledger: Ledger, chance: random.Random, text_bytes: int
    ) -> None:
        self._worker, self._ledger, self._text_bytes = worker, ledger, text_bytes
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(chance.getrandbits(64)),))
            for _ in range(CALLERS)
        ]
        self.longest_call_s = 0.0

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, chance: random.Random) -> None:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._worker.port, timeout=CALL_TIMEOUT_S
        )
        while not self._stop.is_set():
            row_key, body = (
                UUID(int=chance.getrandbits(128)),
                {"text": chance.randbytes(self._text_bytes).hex()},
            )
            put = self._ledger.begin(row_key, "BASE", 1, canonical_json.canonical(body))
            try:
                self._put(connection, put)
            except (OSError, http.client.HTTPException):
                connection.close()  # of unknown outcome: no answer is on record
                time.sleep(0.01)
            self.longest_call_s = max(self.longest_call_s, time.monotonic() - put.begun_s)
        connection.close()

    def _put(self, connection: http.client.HTTPConnection, put: Put) -> None:
        cell = {
            "row_key": str(put.row_key),
            "column_name": put.column_name,
            "ref_key": put.ref_key,
            "body": json.loads(put.body_json),
        }
        connection.request(
            "POST", "/v1/trips/cell", json.dumps(cell), {"content-type": "application/json"}
        )
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status == 200:
            self._ledger.answer(put, answer["outcome"], answer["shard"], answer["added_id"])
        else:
            self._ledger.answer(put, "failed" if answer["definite"] else "unknown", None, None)
            time.sleep(0.005)
