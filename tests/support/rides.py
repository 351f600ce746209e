"""Bodies that share much, and have something of one person each: the bodies that dictionaries are
trained on in tests."""

from __future__ import annotations

from uuid import NAMESPACE_DNS, UUID, uuid5

from cellfeed.store.cells.cell import NewCell, new_cell

ZONES = (
    "Lenox Hill West",
    "Upper East Side North",
    "Lincoln Square East",
    "Times Sq/Theatre District",
    "East Village",
)


def row_of(number: int) -> UUID:
    return uuid5(NAMESPACE_DNS, f"ride {number}")


def rider(number: int) -> str:
    """A name that only this row has."""
    return uuid5(NAMESPACE_DNS, f"rider {number}").hex


def ride(number: int, column: str = "BASE") -> NewCell:
    body = {
        "pickup_zone": ZONES[number % 5],
        "dropoff_zone": ZONES[number // 5 % 5],
        "payment": "credit card" if number % 3 else "cash",
        "passengers": number % 4 + 1,
        "rider": rider(number),
        "phone": 49_170_000_000_000 + number,
    }
    return new_cell(row_of(number), column, 1, body)


def rides(first: int, count: int, column: str = "BASE") -> list[NewCell]:
    return [ride(number, column) for number in range(first, first + count)]
