"""The configuration and output that the tests of commands share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.model import Config, DatastoreConfig, WarehouseConfig, WorkerConfig
from cellfeed.store.datastore import Datastore
from tests.support.parked import parked_cell

NAMESPACE = UUID("11b1f6c2-55cf-5a57-8e5b-6f2f0d8a6f10")

KEY = str(uuid5(NAMESPACE, "one"))

SHARDS = 4

CONFIG = Config(
    datastore=DatastoreConfig(shards=SHARDS),
    workers=[WorkerConfig(port=0)],
    gateways=[GatewayProcessConfig(port=0)],
    warehouses=[WarehouseConfig()],
)


@dataclass
class Said:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Said]


def fill(store: Datastore, cells: int) -> None:
    store.put_cells([(uuid5(NAMESPACE, str(n)), "BASE", 1, {"n": n}) for n in range(cells)])


def park(opened: Datastore, added_id: int) -> None:
    now_us = time.time_ns() // 1000
    parked = ParkedCells(opened.state)
    cell = parked_cell(
        1,
        added_id,
        row_key=KEY,
        error="Traceback\nCardDeclined: no [/money]",
        attempts=5,
        parked_at_us=now_us,
        last_tried_at_us=now_us,
    )
    opened.state.commit(parked.entry(cell))
