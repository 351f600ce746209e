"""Billing's trigger: whom it runs for, which cells it writes, and that a trip settled before or
impossible to settle writes none."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.retry import policy_for
from cellfeed.consumers.billing.app import STATUS_COLUMN, STATUS_REF_KEY, card_of, program
from cellfeed.consumers.billing.card_provider import (
    CardDeclined,
    KeyReused,
    SandboxCardProvider,
    declines_first,
)
from cellfeed.consumers.billing.charge_keys import ChargeKeys, key_of_place
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint

TRIP = next(
    trip
    for trip in (uuid5(UUID(int=1), str(number)) for number in range(100))
    if not declines_first(card_of(trip))
)


@pytest.fixture
def billing(tmp_path: Path) -> Trigger:
    [made] = program({"billing_dir": str(tmp_path)})
    return made


@pytest.fixture
def provider(tmp_path: Path, billing: Trigger) -> SandboxCardProvider:
    """The books that the trigger writes."""
    del billing
    return SandboxCardProvider(tmp_path / "charges.sqlite3")


def put(store: Datastore, payment: str, column: str = "BASE") -> Cell:
    store.put_cell(TRIP, column, 1, {"total_cents": 1250, "payment": payment})
    found = store.get_cell(TRIP, column, 1)
    assert found is not None
    return found


@pytest.mark.parametrize("settings", [{}, {"billing_dir": ""}, {"billing_dir": 7}])
def test_billing_does_not_begin_without_a_folder_for_the_books(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="billing needs the setting billing_dir"):
        program(settings)


def test_billing_runs_for_base_cells_in_its_own_group(billing: Trigger) -> None:
    assert (billing.column, billing.group) == ("BASE", "billing")


def test_lasting_failures_are_parked_soon_and_an_outage_is_waited_out(
    billing: Trigger,
) -> None:
    def lasts_s(error: type[Exception]) -> float:
        policy = policy_for(billing.retry, error)
        return sum(policy.wait_s(attempt) for attempt in range(1, policy.attempts))

    for person_needed in (InvalidRequest, CardDeclined, KeyReused):
        assert lasts_s(person_needed) < 1
    for outage in (ConnectionError, sqlite3.OperationalError):
        assert lasts_s(outage) > 120


@pytest.mark.parametrize(
    ("payment", "status", "is_charged"),
    [
        ("credit card", "charged", True),
        ("cash", "settled_cash", False),
        ("", "settled_unpaid", False),
    ],
)
def test_the_status_cell_names_the_outcome_and_the_charge(
    datastore: Datastore,
    billing: Trigger,
    provider: SandboxCardProvider,
    payment: str,
    status: str,
    is_charged: bool,
) -> None:
    cell = put(datastore, payment)
    billing.function(TRIP, cell=cell, store=datastore)
    charges = provider.charges()
    assert [charge.amount_cents for charge in charges] == [1250] * is_charged
    written = datastore.get_cell(TRIP, STATUS_COLUMN, STATUS_REF_KEY)
    assert written is not None
    assert written.body == {
        "status": status,
        "amount_cents": 1250,
        "charge_id": charges[0].charge_id if is_charged else None,
    }


def test_a_trip_that_is_paid_in_an_unknown_way_is_neither_charged_nor_settled(
    datastore: Datastore, billing: Trigger, provider: SandboxCardProvider
) -> None:
    cell = put(datastore, "seashells")
    with pytest.raises(InvalidRequest, match="'seashells', which billing does not know"):
        billing.function(TRIP, cell=cell, store=datastore)
    assert provider.totals() == (0, 0, 0)
    assert datastore.get_cell_latest(TRIP, STATUS_COLUMN) is None


def test_a_trip_that_has_a_status_is_not_charged_even_by_a_provider_that_forgot_it(
    datastore: Datastore, billing: Trigger, provider: SandboxCardProvider
) -> None:
    cell = put(datastore, "credit card")
    datastore.put_cell(TRIP, STATUS_COLUMN, 7, {"status": "settled by hand"})
    billing.function(TRIP, cell=cell, store=datastore)
    assert provider.totals() == (0, 0, 0)
    assert datastore.get_cell(TRIP, STATUS_COLUMN, STATUS_REF_KEY) is None


def test_keys_of_one_store_are_not_those_of_the_next(tmp_path: Path) -> None:
    """One worker of billing may look at two stores in its life."""
    keys, told = ChargeKeys(), []
    for name in ("one", "two", "one"):
        with Datastore.open_embedded(tmp_path / name) as store:
            cell = put(store, "cash")
            keys.of(cell, store)  # records where the keys by origin begin
            told.append(keys.of(put(store, "cash", "NEW"), store))
            assert store.origin_id in told[-1]
    assert told[0] != told[1]
    assert told[0] == told[2]


def test_of_two_first_workers_one_records_where_the_new_keys_begin(datastore: Datastore) -> None:
    """The slower one looked at the heads later: by them the cell between would have another key."""
    cells: list[Cell] = []
    told: list[str] = []

    def overtaken() -> None:
        unwatch_failpoint("charge_keys.before_begin")
        cells.append(put(datastore, "cash"))
        told.append(ChargeKeys().of(cells[0], datastore))

    first = put(datastore, "cash", "FIRST")
    watch_failpoint("charge_keys.before_begin", overtaken)
    assert ChargeKeys().of(first, datastore) == key_of_place(first)
    assert told == [ChargeKeys().of(cells[0], datastore)]
