"""Billing, the model trigger: a trip's BASE cell is charged once and its STATUS cell written.

    run again before the charge            nothing has happened: it is charged
    run again between charge and STATUS    the provider knows the key and gives the same charge
                                           back; STATUS is written
    run again after STATUS                 STATUS is there: nothing to do
    two workers at once                    one charge (one key), one STATUS (the same triple with
                                           the same body)

So a charge exists exactly once per trip although the trigger runs at least once (I16). The key
follows from the cell (:mod:`cellfeed.consumers.billing.charge_keys`). Money is integer cents from
the cell, never a float.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from cellfeed.bridge.triggers.program import RetryPolicy, Trigger, trigger
from cellfeed.consumers.billing.card_provider import (
    CardDeclined,
    CardProvider,
    Charge,
    KeyReused,
    SandboxCardProvider,
)
from cellfeed.consumers.billing.charge_keys import GROUP, ChargeKeys
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.failpoints import declare, failpoint

declare("billing.before_charge", "billing.after_charge", "billing.after_status")

BASE_COLUMN: Final = "BASE"
STATUS_COLUMN: Final = "STATUS"
STATUS_REF_KEY: Final = 1


def card_of(row_key: UUID) -> str:
    """The token of the card that a trip was paid with: the taxi records have none, so the trip
    stands for it."""
    return f"card-of-{row_key}"


def bill_trip(
    row_key: UUID, cell: Cell, store: Datastore, provider: CardProvider, keys: ChargeKeys
) -> None:
    """Settles one trip. Card trips are charged; cash was paid in the car; a trip without a payment
    type is settled unpaid, for people to look at.

    Raises CardDeclined (the trigger tries again, and parks the cell at last), InvalidRequest for a
    BASE cell that is not a trip.
    """
    if store.get_cell_latest(row_key, STATUS_COLUMN) is not None:
        return
    amount_cents = cell.body.get("total_cents")
    if type(amount_cents) is not int or amount_cents < 0:
        raise InvalidRequest(
            f"trip {row_key}: total_cents is {amount_cents!r}, not a number of cents"
        )
    charge: Charge | None = None
    match cell.body.get("payment"):
        case "credit card":
            failpoint("billing.before_charge")
            charge = provider.charge(keys.of(cell, store), card_of(row_key), amount_cents)
            failpoint("billing.after_charge")
            status = "charged"
        case "cash":
            status = "settled_cash"
        case "":
            status = "settled_unpaid"
        case other:
            raise InvalidRequest(
                f"trip {row_key}: payment is {other!r}, which billing does not know"
            )
    body = {
        "status": status,
        "amount_cents": amount_cents,
        "charge_id": charge.charge_id if charge else None,
    }
    store.put_cell(row_key, STATUS_COLUMN, STATUS_REF_KEY, body)
    failpoint("billing.after_status")


FOR_A_PERSON: Final = RetryPolicy(attempts=5, first_wait_s=0.02, longest_wait_s=2.0)
"""For errors that waiting does not mend: such a trip is parked within a second. All else has the
defaults, which outlast a provider that is started again."""


def program(settings: Mapping[str, Any]) -> list[Trigger]:
    """The billing trigger for ``cellfeed``; setting ``billing_dir`` is where the sandbox provider
    keeps its books."""
    directory = settings.get("billing_dir")
    if not isinstance(directory, str) or not directory:
        raise InvalidRequest(
            "billing needs the setting billing_dir: a folder for the card provider's books"
        )
    provider = SandboxCardProvider(Path(directory) / "charges.sqlite3")
    keys = ChargeKeys()

    @trigger(
        column=BASE_COLUMN,
        group=GROUP,
        retry=dict.fromkeys((InvalidRequest, CardDeclined, KeyReused), FOR_A_PERSON),
    )
    def bill(row_key: UUID, *, cell: Cell, store: Datastore) -> None:
        bill_trip(row_key, cell, store, provider, keys)

    found: Trigger = bill.__cellfeed_trigger__  # type: ignore[attr-defined]
    return [found]
