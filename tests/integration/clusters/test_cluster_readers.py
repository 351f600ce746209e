"""The readers of a fault run find wrong reads: a cell that is left out of the warehouse, a charge
too many, a record that a client never got."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.events.formats import JsonFormat
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from tests.faults import export_faults
from tests.faults.cluster_readers import CLIENT_PATHS, Followed, following
from tests.faults.cluster_system import seen_stored
from tests.faults.invariants import Violations
from tests.faults.ledger import Ledger
from tests.faults.shown import Shown

pytestmark = pytest.mark.integration

NAMESPACE = UUID("5d1c3e0e-55a4-4b5e-9a55-7b7d2f1f0a41")
SHARDS = 2


def test_the_fault_run_finds_a_planted_wrong_read(tmp_path: Path) -> None:
    left_out = list[int]()
    add = ShardLoader.add

    def add_but_one(loader: ShardLoader, offset: int, *record: object) -> bool:
        if offset == 20 and loader.shard == 0:
            left_out.append(offset)
            return True
        return add(loader, offset, *record)  # type: ignore[arg-type]

    with (
        Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore,
        following(SqliteEngine(tmp_path / "trips", "trips", SHARDS), Shown()) as followed,
    ):
        put(datastore, 0, 30)
        assert told(followed, datastore) == {}
        with patch.object(ShardLoader, "add", add_but_one):
            put(datastore, 30, 60)
            found = told(followed, datastore)
        assert left_out
        assert found == {
            "I16": [
                "the warehouse: 0 went from 19 to 21",
                "the warehouse: 0 lacks 1 cells, the first at 20",
            ]
        }
        # Once more for a cell, under a key of its own: as a trigger whose key does not follow from
        # the cell.
        followed.provider.charge("billing-0-3-again", "card", 3)
        assert "charge billing-0-3-again belongs to no cell" in told(followed, datastore)["I16"]
        followed.assigned.remove((1, 7))
        followed.grouped.append((1, 10_000))
        with patch.object(export_faults, "LIMIT_S", 0.1):
            found = told(followed, datastore)
        assert set(found) == {"I2", "I7", "I8", "I16"}
        assert found["I8"] == ["the assigned client lacks [(1, 7)]"]


def test_a_charge_of_another_body_than_the_logs_is_found(tmp_path: Path) -> None:
    with (
        Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore,
        following(SqliteEngine(tmp_path / "trips", "trips", SHARDS), Shown()) as followed,
    ):
        followed.provider.charge("billing-0-0", "card", 77_000)
        put(datastore, 0, 10)
        with patch.object(export_faults, "LIMIT_S", 3.0):
            found = told(followed, datastore)
        assert found["I14"] == ["the trigger lacks [(0, 0)]"], (
            "the provider refuses a second amount under the same key"
        )
        assert found["I16"] == ["billing-0-0 took 77000 cents"]


def test_a_row_that_is_twice_in_the_warehouse_ends_the_checks_with_a_verdict(
    tmp_path: Path,
) -> None:
    add = ShardLoader.add

    def add_twice(loader: ShardLoader, offset: int, *record: object) -> bool:
        added = add(loader, offset, *record)  # type: ignore[arg-type]
        if offset == 5:
            loader._buffer.add(loader._buffer.rows[-1])
        return added

    engine = SqliteEngine(tmp_path / "trips", "trips", SHARDS)
    with (
        patch.object(ShardLoader, "add", add_twice),
        Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore,
        following(engine, Shown()) as followed,
    ):
        put(datastore, 0, 30)
        assert set(told(followed, datastore)) & {"I16", "errors"}


def test_a_false_body_that_kafka_clients_are_given_is_found(tmp_path: Path) -> None:
    shown, engine = Shown(), SqliteEngine(tmp_path / "trips", "trips", SHARDS)
    encode = JsonFormat.encode_many

    def encode_false(
        self: JsonFormat, shard: int, cells: Any, keys: Any, bodies_json: Sequence[bytes]
    ) -> list[bytes]:
        return encode(
            self, shard, cells, keys, [body.replace(b'"n":7}', b'"n":8}') for body in bodies_json]
        )

    with (
        patch.object(JsonFormat, "encode_many", encode_false),
        Datastore.open_embedded(tmp_path, shards=SHARDS) as datastore,
    ):
        with following(engine, shown) as followed:
            put(datastore, 0, 10)
            told(followed, datastore)
        shown.log(
            "the log",
            {
                shard: [seen_stored(cell) for cell in datastore.engine.scan(shard, 0, 100)]
                for shard in range(SHARDS)
            },
        )
    assert shown.violations(Ledger(), (), CLIENT_PATHS)["I3"]


def put(datastore: Datastore, first: int, end: int) -> None:
    for result in datastore.put_cells(
        [(uuid5(NAMESPACE, str(number)), "BASE", 1, {"n": number}) for number in range(first, end)]
    ):
        result.or_raise()


def told(followed: Followed, datastore: Datastore) -> Violations:
    return {
        invariant: sentences
        for invariant, sentences in followed.violations(datastore).items()
        if sentences
    }
