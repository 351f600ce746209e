"""Amounts and keys of charges: nothing negative, nothing that is no number, no key for two
amounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from cellfeed.consumers.billing.app import STATUS_COLUMN, bill_trip
from cellfeed.consumers.billing.card_provider import (
    CardDeclined,
    KeyReused,
    SandboxCardProvider,
    declines_first,
)
from cellfeed.consumers.billing.charge_keys import ChargeKeys
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest

CARD = next(name for name in map(str, range(100)) if not declines_first(name))
DECLINED = next(name for name in map(str, range(100)) if declines_first(name))


@pytest.fixture
def provider(tmp_path: Path) -> SandboxCardProvider:
    return SandboxCardProvider(tmp_path / "charges.sqlite3")


def trip(datastore: Datastore, number: int, body: dict[str, Any]) -> Cell:
    row_key = uuid5(UUID(int=0), str(number))
    datastore.put_cell(row_key, "BASE", 1, body)
    found = datastore.get_cell(row_key, "BASE", 1)
    assert found is not None
    return found


@pytest.mark.parametrize("amount", [-1, -500, 12.5, "1250", None, True])
@pytest.mark.parametrize("payment", ["credit card", "cash", ""])
def test_an_amount_that_is_no_number_of_cents_is_refused_and_nothing_is_charged_or_settled(
    datastore: Datastore, provider: SandboxCardProvider, amount: object, payment: str
) -> None:
    cell = trip(datastore, 1, {"total_cents": amount, "payment": payment})
    with pytest.raises(InvalidRequest, match="not a number of cents"):
        bill_trip(cell.row_key, cell, datastore, provider, ChargeKeys())
    assert provider.totals() == (0, 0, 0)
    assert datastore.get_cell_latest(cell.row_key, STATUS_COLUMN) is None


def test_a_free_trip_is_not_charged_and_one_without_a_fare_is_settled(
    datastore: Datastore, provider: SandboxCardProvider
) -> None:
    cell = trip(datastore, 1, {"total_cents": 0, "payment": "cash"})
    bill_trip(cell.row_key, cell, datastore, provider, ChargeKeys())
    status = datastore.get_cell_latest(cell.row_key, STATUS_COLUMN)
    assert status is not None
    assert status.body == {"status": "settled_cash", "amount_cents": 0, "charge_id": None}
    assert provider.totals() == (0, 0, 0)


def test_a_key_is_charged_once_and_never_for_another_amount(provider: SandboxCardProvider) -> None:
    first = provider.charge("key", CARD, 100)
    assert provider.charge("key", CARD, 100) == first
    with pytest.raises(KeyReused, match="was charged 100 cents, not 101"):
        provider.charge("key", CARD, 101)
    assert provider.totals() == (1, 100, 0)


def test_a_card_that_is_declined_is_charged_the_second_time(provider: SandboxCardProvider) -> None:
    with pytest.raises(CardDeclined):
        provider.charge("key", DECLINED, 100)
    assert provider.totals() == (0, 0, 1)
    assert provider.charge("key", DECLINED, 100).amount_cents == 100
    assert provider.totals() == (1, 100, 1)
