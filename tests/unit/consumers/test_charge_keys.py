"""Keys of charges: three stores at one provider, a trip that a restore brings to another place, and
stores that an older version has charged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid5

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.start import EARLIEST, StartOfGroup
from cellfeed.consumers.billing.app import STATUS_COLUMN, bill_trip
from cellfeed.consumers.billing.card_provider import SandboxCardProvider, declines_first
from cellfeed.consumers.billing.charge_keys import GROUP, ChargeKeys, key_of_place
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint

SHARDS = 4
NOW_US = 1_800_000_000_000_000
TRIPS = [
    trip
    for trip in (uuid5(UUID(int=0), str(number)) for number in range(60))
    if not declines_first(f"card-of-{trip}")
]


@pytest.fixture
def provider(tmp_path: Path) -> SandboxCardProvider:
    return SandboxCardProvider(tmp_path / "charges.sqlite3")


def put(store: Datastore, trip: UUID) -> Cell:
    store.put_cell(trip, "BASE", 1, {"total_cents": 100, "payment": "credit card"})
    found = store.get_cell(trip, "BASE", 1)
    assert found is not None
    return found


def bill(store: Datastore, provider: SandboxCardProvider, cell: Cell) -> None:
    bill_trip(cell.row_key, cell, store, provider, ChargeKeys())


def begin_group(store: Datastore) -> None:
    StartOfGroup(store, StoreCoordinator(store.state), GROUP, EARLIEST).locations()


def begun_by_an_older_version(store: Datastore, place: str) -> None:
    """Its start names no origin, or there are only offsets."""
    if place == "offsets":
        StoreCoordinator(store.state).commit_offsets(GROUP, {("trips", 0): CommittedOffset(1)})
        begin_group(store)
    elif place == "start":
        begin_group(store)
        [entry] = store.state.list("starts/")
        older = {
            key: value
            for key, value in msgspec.msgpack.decode(entry.value).items()
            if key != "origin_id"
        }
        store.state.commit({entry.key: msgspec.msgpack.encode(older)})


@pytest.fixture
def restored_into(tmp_path: Path) -> Callable[[str, Datastore], Datastore]:
    def restore_it(name: str, source: Datastore) -> Datastore:
        folder = BackupFolder(tmp_path / f"backup-{name}")
        backup = create(folder, Source(source.engine, belongs))
        made = plan(
            folder.chain(backup), restored(read_state(backup), NOW_US), (), {}, NOW_US, "a test"
        )
        with SqliteTarget(tmp_path / name / "trips", "trips", SHARDS) as target:
            restore(made, target)
        return Datastore.open_embedded(tmp_path / name, "trips", SHARDS)

    return restore_it


def test_the_first_trips_of_three_stores_are_three_charges(
    tmp_path: Path, provider: SandboxCardProvider
) -> None:
    places = set()
    for number, name in enumerate(("one", "two", "three")):
        with Datastore.open_embedded(tmp_path / name, shards=1) as store:
            begin_group(store)
            cell = put(store, TRIPS[number])
            places.add((cell.shard, cell.added_id))
            bill(store, provider, cell)
            status = store.get_cell_latest(cell.row_key, STATUS_COLUMN)
            assert status is not None
            assert status.body["charge_id"] in {charge.charge_id for charge in provider.charges()}
    assert places == {(0, 0)}
    assert provider.totals()[0] == 3


def test_a_lost_trip_that_a_restored_store_has_at_another_place_is_charged_once(
    tmp_path: Path,
    provider: SandboxCardProvider,
    restored_into: Callable[[str, Datastore], Datastore],
) -> None:
    lost, others = TRIPS[0], TRIPS[1:20]
    with Datastore.open_embedded(tmp_path / "source", shards=SHARDS) as source:
        begin_group(source)
        bill(source, provider, put(source, TRIPS[20]))
        with restored_into("new", source) as store:
            first = put(source, lost)
            bill(source, provider, first)
            for trip in others:
                put(store, trip)
            again = put(store, lost)
            assert again.added_id != first.added_id
            bill(store, provider, again)
    assert provider.totals()[0] == 2


@pytest.mark.parametrize("known_by", ["start", "offsets", "neither"])
def test_a_charge_made_by_an_older_version_before_it_died_is_not_made_again(
    tmp_path: Path,
    provider: SandboxCardProvider,
    known_by: str,
    restored_into: Callable[[str, Datastore], Datastore],
) -> None:
    with Datastore.open_embedded(tmp_path / "source", shards=SHARDS) as source:
        charged = put(source, TRIPS[0])
        begun_by_an_older_version(source, known_by)
        old = provider.charge(
            key_of_place(charged), f"card-of-{charged.row_key}", 100
        )  # and it died before STATUS
        bill(source, provider, charged)
        status = source.get_cell_latest(charged.row_key, STATUS_COLUMN)
        assert status is not None
        assert status.body["charge_id"] == old.charge_id
        new = put(source, TRIPS[1])
        bill(source, provider, new)
        with restored_into("new", source) as store:
            # The record came back with the backup: neither key has changed.
            assert ChargeKeys().of(charged, store) == key_of_place(charged)
            assert (
                ChargeKeys().of(new, store) == f"billing-{source.history_id}-{new.row_key}-BASE-1"
            )
    assert {charge.idempotency_key for charge in provider.charges()} == {
        key_of_place(charged),
        f"billing-{source.history_id}-{new.row_key}-BASE-1",
    }


def test_the_beginning_of_the_new_keys_is_recorded_once(datastore: Datastore) -> None:
    first = put(datastore, TRIPS[0])
    set_failpoint("charge_keys.before_begin", "raise")
    with pytest.raises(FailpointReached):
        ChargeKeys().of(first, datastore)
    assert datastore.state.list("billing/") == []
    clear_failpoints()
    assert ChargeKeys().of(first, datastore) == key_of_place(first)
    second = put(datastore, TRIPS[1])
    assert (
        ChargeKeys().of(second, datastore)
        == ChargeKeys().of(second, datastore)
        != key_of_place(second)
    )


def test_a_store_without_an_identity_keeps_the_older_keys_and_records_nothing(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = put(datastore, TRIPS[0])
    with monkeypatch.context() as patched:
        patched.setattr(Datastore, "origin_id", "")
        begin_group(datastore)
        assert ChargeKeys().of(cell, datastore) == key_of_place(cell)
    assert datastore.state.list("billing/") == []
    assert ChargeKeys().of(cell, datastore) == key_of_place(
        cell
    )  # from `cluster migrate` on it records the heads
    assert (
        ChargeKeys()
        .of(put(datastore, TRIPS[1]), datastore)
        .startswith(f"billing-{datastore.origin_id}-")
    )


def test_older_keys_of_cells_with_one_id_in_two_shards_differ(datastore: Datastore) -> None:
    firsts = {
        cell.shard: cell for cell in (put(datastore, trip) for trip in TRIPS) if cell.added_id == 0
    }
    assert len(firsts) > 1
    assert len({key_of_place(cell) for cell in firsts.values()}) == len(firsts)
