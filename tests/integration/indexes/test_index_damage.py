"""Every damage of an index is found and mended, beside live writes too."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import Entry
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from cellfeed.store.indexes.check import IndexCheck
from cellfeed.store.indexes.repair import IndexRepair
from cellfeed.store.indexes.version import IndexVersion
from tests.support.kept_index import caught_up, index_worker, made_index
from tests.support.small_index import SMALL, put_trip


def test_a_check_mends_every_planted_damage_and_no_sound_entry(datastore: Datastore) -> None:
    with index_worker(datastore) as coordinator:
        version = made_index(datastore, SMALL)
        chosen = random.Random(7)
        for row in range(200):
            put_trip(datastore, row, 1, chosen.choice(["ann", "bob"]), str(row))
        for row in range(0, 200, 5):
            put_trip(datastore, row, 2, chosen.choice(["ann", "bob"]), str(row))
        caught_up(datastore, version)
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
        assert list(check.run()) == []
        assert (check.report.cells, check.report.entries) == (240, 200)
        planted = plant(datastore, version)
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
        found = list(check.run())
        assert sorted((each.kind, UUID(bytes=each.row_key).int) for each in found) == sorted(
            planted
        )
        for difference in found:
            # A kill in the middle of a repair costs nothing: the next one finds the rest.
            set_failpoint("index.repair.between", "raise")
            with suppress(FailpointReached):
                IndexRepair(datastore.engine, version, check.report).repair(difference)
            clear_failpoints()
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
        for difference in check.run():
            IndexRepair(datastore.engine, version, check.report).repair(difference)
        assert (
            list(IndexCheck(datastore.engine, version, index_positions(coordinator, "trips")).run())
            == []
        )


def test_a_repair_keeps_the_entry_of_a_late_writer_from_coming_back(datastore: Datastore) -> None:
    with index_worker(datastore) as coordinator:
        version = made_index(datastore, SMALL)
        put_trip(datastore, 1, 1, "ann")
        caught_up(datastore, version)
        store, place = (
            datastore.engine.indexes,
            (version.shard_of_value(b"ann"), b"ann", UUID(int=1).bytes),
        )
        [late] = store.find(version.table, [place])
        assert late is not None
        put_trip(datastore, 1, 2, "bob")
        caught_up(datastore, version)
        [tombstone] = store.find(version.table, [place])
        assert tombstone is not None
        store.remove(version.table, version.by_shard([tombstone]))
        store.apply(version.table, version.by_shard([late]))
        check = IndexCheck(datastore.engine, version, index_positions(coordinator, "trips"))
        [difference] = check.run()
        assert difference.kind == "stale"
        IndexRepair(datastore.engine, version, check.report).repair(difference)
        assert store.find(version.table, [place]) == [tombstone]
        store.apply(version.table, version.by_shard([late]))
        assert (
            list(IndexCheck(datastore.engine, version, index_positions(coordinator, "trips")).run())
            == []
        )


def plant(datastore: Datastore, version: IndexVersion) -> list[tuple[str, int]]:
    """Damage of each kind, and the kinds that a check must report."""
    store = datastore.engine.indexes
    entries = {
        UUID(bytes=entry.row_key).int: entry
        for shard in range(datastore.shards)
        for entry in store.walk(version.table, shard, None, 1000)
        if entry.live
    }

    def remove(entry: Entry) -> None:
        store.remove(version.table, version.by_shard([entry]))

    def put(entry: Entry) -> None:
        store.apply(version.table, version.by_shard([entry]))

    remove(entries[1])
    put(entries[2]._replace(refs=(99,), values=(entries[2].values[0], None)))
    put(entries[3]._replace(refs=(99,), live=False))
    here = entries[4].values[0]
    put(entries[4]._replace(refs=(99,), values=(b"ann" if here == b"bob" else b"bob", None)))
    put(entries[5]._replace(row_key=UUID(int=5000).bytes))
    remove(entries[6])
    put(entries[6]._replace(refs=(0,)))
    return [
        ("missing", 1),
        ("stale", 2),
        ("missing", 3),
        ("invented", 4),
        ("invented", 5000),
        ("stale", 6),
    ]


def test_a_check_beside_live_writes_reports_no_false_differences(
    datastore: Datastore, tmp_path: Path
) -> None:
    with index_worker(datastore) as coordinator:
        version = made_index(datastore, SMALL)
        for row in range(100):
            put_trip(datastore, row, 0, "ann")
        check, number = (
            IndexCheck(datastore.engine, version, index_positions(coordinator, "trips")),
            0,
        )

        def write(_: int) -> None:
            nonlocal number
            for row in range(0, 100, 3):
                number += 1
                put_trip(datastore, row, number, "ann" if number % 2 else "bob")

        assert list(check.run(write)) == []
        assert number > 100
