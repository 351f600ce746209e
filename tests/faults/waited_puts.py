"""The cells of a fault run on waits: threads put them in batches, and wait for each batch at each
kind of outlet."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from cellfeed.store.cells.token import Token
from cellfeed.store.errors import CellfeedError, StorageUnavailable, Unavailable, WaitTimedOut
from cellfeed.store.http.client import Client
from cellfeed.store.indexes.definition_file import parse_definition
from tests.faults.lake_evidence import LAKE
from tests.faults.wait_evidence import CONSUMERS, Batch, Evidence
from tests.faults.waited_program import GROUP

TOPIC: Final = "exported"
INDEX: Final = parse_definition("""
table: cells_by_batch
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: batch, type: string}]
""")
NAMES: Final[Mapping[str, str]] = {
    "trigger": GROUP,
    "index": INDEX.table,
    "group": CONSUMERS,
    "export": TOPIC,
    "lake": LAKE,
}
NAMESPACE: Final = UUID("8c9e64ba-3f0a-5d2f-8f6e-0d6a4e1b7c55")
WAIT_S: Final = 60.0


class WaitScale(NamedTuple):
    """At least ``puts`` in batches of ``batch``, by ``writers`` threads; they rest ``rest_s``
    between two batches. At least ``faults`` faults."""

    puts: int
    batch: int
    writers: int
    faults: int
    rest_s: float = 0.0


BRIEF: Final = WaitScale(puts=300, batch=10, writers=2, faults=3, rest_s=0.1)
FULL: Final = WaitScale(puts=25_000, batch=25, writers=8, faults=12)


@dataclass
class Puts:
    """The batches of a run, put and waited for by threads."""

    client: Client
    evidence: Evidence
    seed: int
    scale: WaitScale
    answered: list[tuple[str, float, float]] = field(default_factory=list)
    """Of each answer the kind, when its batch began, and when it came, by the monotonic clock."""
    places: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _next: int = 0
    _enough: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(self.scale.writers)
        ]
        for each in self._threads:
            each.start()

    @property
    def waited_for(self) -> int:
        """Cells that every kind of outlet has answered for."""
        answers = Counter(kind for kind, *_ in list(self.answered))
        return min(answers[kind] for kind in NAMES) * self.scale.batch

    def stop(self) -> None:
        """Ends behind the batches under way, once there were enough puts."""
        self._enough.set()
        for each in self._threads:
            each.join()

    def _work(self, writer: int) -> None:
        chance = random.Random(f"{self.seed}-{writer}")
        try:
            while (number := self._take()) is not None:
                self._batch(number, chance)
                time.sleep(self.scale.rest_s)
        except Exception as error:
            self.wrong["I21"].append(f"writer {writer} ended: {type(error).__name__}: {error}")

    def _take(self) -> int | None:
        with self._lock:
            number, self._next = self._next, self._next + 1
        done = self._enough.is_set() and number * self.scale.batch >= self.scale.puts
        return None if done else number

    def _batch(self, number: int, chance: random.Random) -> None:
        name, begun_s = f"{self.seed}-{number}", time.monotonic()
        cells: list[Any] = [
            (uuid5(NAMESPACE, f"{name}-{each}"), "BASE", 1, {"batch": name, "n": each})
            for each in range(self.scale.batch)
        ]
        deadline_s = begun_s + WAIT_S
        results = self.client.put_cells(cells)
        while not all(each.token for each in results):
            if time.monotonic() > deadline_s:
                raise StorageUnavailable(f"batch {name} was not put: {results[0]}")
            time.sleep(0.05)
            results = self.client.put_cells(cells)
        token = Token.of(results)
        batch = Batch(name, frozenset(cell[0] for cell in cells), token.places)
        with self._lock:
            self.places[name] = [(each.shard or 0, each.added_id or 0) for each in results]
        for kind in chance.sample(list(NAMES), len(NAMES)):
            self._wait(kind, batch, token)
            self.answered.append((kind, begun_s, time.monotonic()))

    def _wait(self, kind: str, batch: Batch, token: Token) -> None:
        wanted: Any = {kind: NAMES[kind]}
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                passed = self.client.wait_for(token, timeout_s=WAIT_S, **wanted)
                break
            except WaitTimedOut as error:
                self.wrong["I21"].append(str(error))
                return
            except CellfeedError as error:  # both workers are away, or one of them is full
                if not error.retriable or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
        while True:
            try:
                self.evidence.take(kind, batch)
                break
            except Unavailable:  # the storage is failing over
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
        if not passed.handled:
            self.wrong["I14"].append(f"{passed}: nothing was poison, and nobody moved it")
