"""The knowledge of a fault run's writers: their puts, the answers, and when these came."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from uuid import UUID


@dataclass
class Put:
    """One put as its caller saw it. Times are monotonic seconds; ``answered_s`` is None when no
    answer came."""

    row_key: UUID
    column_name: str
    ref_key: int
    body_json: bytes
    begun_s: float
    outcome: str | None = None
    shard: int | None = None
    added_id: int | None = None
    answered_s: float | None = None

    @property
    def triple(self) -> tuple[UUID, str, int]:
        return self.row_key, self.column_name, self.ref_key

    @property
    def acknowledged(self) -> bool:
        return self.outcome in ("stored", "exists", "buffered")


@dataclass
class Ledger:
    """Thread-safe; entries are only ever added and answered."""

    puts: list[Put] = field(default_factory=list)
    by_row: dict[UUID, Put] = field(default_factory=dict)
    """The last put of each row."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, row_key: UUID, column_name: str, ref_key: int, body_json: bytes) -> Put:
        put = Put(row_key, column_name, ref_key, body_json, time.monotonic())
        with self._lock:
            self.puts.append(put)
            self.by_row[row_key] = put
        return put

    def answer(self, put: Put, outcome: str, shard: int | None, added_id: int | None) -> None:
        put.outcome, put.shard, put.added_id, put.answered_s = (
            outcome,
            shard,
            added_id,
            time.monotonic(),
        )

    def acknowledged_between(self, start_s: float, end_s: float) -> int:
        """Puts acknowledged within a span: a fault run proves by it that operations ran."""
        return sum(
            1
            for put in list(self.puts)
            if put.acknowledged
            and put.answered_s is not None
            and start_s <= put.answered_s <= end_s
        )
