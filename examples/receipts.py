"""A trigger: every trip (BASE) gets a receipt (RECEIPT).

It may run again for the same trip. The receipt follows from the trip alone, so the second put finds
the first one's cell and changes nothing.
"""

from __future__ import annotations

from uuid import UUID

from cellfeed import Cell, trigger
from cellfeed.store.api import CellStore

VAT_PERCENT = 9


@trigger(column="BASE")
def write_receipt(row_key: UUID, *, cell: Cell, store: CellStore) -> None:
    fare_cents = cell.body["fare_cents"]
    vat_cents = fare_cents * VAT_PERCENT // (100 + VAT_PERCENT)
    receipt = {"fare_cents": fare_cents, "vat_cents": vat_cents}
    store.put_cell(row_key, "RECEIPT", cell.ref_key, receipt)
