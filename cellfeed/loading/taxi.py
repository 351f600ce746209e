"""How the New York taxi trips that the product ships (``cellfeed/data/taxis.csv``, 6,433 trips of
March 2019) become cells.

A trip's row key is made from its five fields :data:`TRIP_NAME_FIELDS`, which no two trips share, by
:mod:`cellfeed.loading.row_keys`; so ``cellfeed load --row-key-from
pickup,dropoff,pickup_zone,dropoff_zone,total`` gives the same row keys. All cells have ref key 1.

===============  ==========================================================================
BASE             the trip: times as ISO text, money in integer cents, ``passengers`` 0 and zones ""
                 where the meter's record lacks them
NOTES            only for trips that lack something:
                 ``{"missing": ["passengers", "pickup_zone", …], "text": …}``
FARE_ADJUSTMENT  only for trips with tolls: ``{"kind": "tolls", "amount_cents": …}`` (part of
                 the total already)
===============  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from cellfeed.loading.load import OnProgress, load_cells
from cellfeed.loading.records import FileFormat, read_records
from cellfeed.loading.report import LoadReport
from cellfeed.loading.row_keys import row_key_from
from cellfeed.loading.spec import LineCell
from cellfeed.store.api import CellStore, CellToPut
from cellfeed.store.errors import CellfeedError, InvalidRequest

BASE: Final = "BASE"
NOTES: Final = "NOTES"
FARE_ADJUSTMENT: Final = "FARE_ADJUSTMENT"
REF_KEY: Final = 1

CARD: Final = "credit card"
CASH: Final = "cash"

TRIP_NAME_FIELDS: Final = ("pickup", "dropoff", "pickup_zone", "dropoff_zone", "total")

_MAY_BE_MISSING: Final = ("passengers", "pickup_zone", "dropoff_zone")


@dataclass(frozen=True, slots=True)
class TaxiFigures:
    """The figures that a file of trips must give, computed from the text with decimal arithmetic
    and without the store: the other side of the demo's proof."""

    trips: int
    base_cells: int
    notes_cells: int
    fare_adjustment_cells: int
    card_trips: int
    card_cents: int
    cash_trips: int
    cash_cents: int
    other_trips: int

    @property
    def cells(self) -> int:
        return self.base_cells + self.notes_cells + self.fare_adjustment_cells


def shipped_csv() -> Path:
    """The taxi trips that are installed with the product."""
    return Path(str(files("cellfeed") / "data" / "taxis.csv"))


def trip_row_key(fields: Mapping[str, str]) -> UUID:
    """The row key of a trip as the CSV has it."""
    return row_key_from(fields, TRIP_NAME_FIELDS)


def cells_of_trip(fields: Mapping[str, str]) -> list[CellToPut]:
    """The cells of one trip: BASE, then NOTES and FARE_ADJUSTMENT where it has them. Raises
    InvalidRequest naming the value that is no taxi trip's."""
    row_key = trip_row_key(fields)
    base = _base(fields)
    cells = [CellToPut(row_key, BASE, REF_KEY, base)]
    missing = [name for name in _MAY_BE_MISSING if not base[name]]
    if missing:
        text = f"The meter's record lacks {', '.join(name.replace('_', ' ') for name in missing)}."
        cells.append(CellToPut(row_key, NOTES, REF_KEY, {"missing": missing, "text": text}))
    if base["tolls_cents"] > 0:
        cells.append(
            CellToPut(
                row_key,
                FARE_ADJUSTMENT,
                REF_KEY,
                {"kind": "tolls", "amount_cents": base["tolls_cents"]},
            )
        )
    return cells


def load_taxi(
    store: CellStore, path: Path | None = None, on_progress: OnProgress | None = None
) -> LoadReport:
    """Loads a file of taxi trips, the shipped one by default. Loading it again changes nothing."""
    return load_cells(_line_cells(path or shipped_csv()), store, on_progress)


def expected_figures(path: Path | None = None) -> TaxiFigures:
    """The figures that :func:`load_taxi` and billing must give, from the CSV alone. Raises
    InvalidRequest when a line is no taxi trip."""
    counts = dict.fromkeys((BASE, NOTES, FARE_ADJUSTMENT), 0)
    trips, cents = dict.fromkeys((CARD, CASH, ""), 0), dict.fromkeys((CARD, CASH, ""), Decimal(0))
    for record in read_records(path or shipped_csv(), FileFormat.CSV):
        if record.fields is None:
            raise InvalidRequest(f"line {record.line}: {record.error}")
        fields = record.fields
        counts[BASE] += 1
        counts[NOTES] += fields["passengers"] in ("", "0") or "" in (
            fields["pickup_zone"],
            fields["dropoff_zone"],
        )
        counts[FARE_ADJUSTMENT] += Decimal(fields["tolls"]) > 0
        trips[fields["payment"]] += 1
        cents[fields["payment"]] += Decimal(fields["total"]) * 100
    return TaxiFigures(
        trips=counts[BASE],
        base_cells=counts[BASE],
        notes_cells=counts[NOTES],
        fare_adjustment_cells=counts[FARE_ADJUSTMENT],
        card_trips=trips[CARD],
        card_cents=_whole(cents[CARD]),
        cash_trips=trips[CASH],
        cash_cents=_whole(cents[CASH]),
        other_trips=trips[""],
    )


def _line_cells(path: Path) -> Iterator[LineCell]:
    for record in read_records(path, FileFormat.CSV):
        if record.fields is None:
            yield LineCell(record.line, None, record.read_bytes, record.error)
            continue
        try:
            cells = cells_of_trip(record.fields)
        except CellfeedError as error:
            yield LineCell(record.line, None, record.read_bytes, error)
            continue
        for cell in cells:
            yield LineCell(record.line, cell, record.read_bytes)


def _base(fields: Mapping[str, str]) -> dict[str, Any]:
    name = ""
    try:
        body: dict[str, Any] = {}
        for name in ("pickup", "dropoff"):
            body[name] = datetime.fromisoformat(fields[name]).isoformat()
        name = "passengers"
        body[name] = int(fields[name] or 0)
        name = "distance"
        body["distance_miles"] = float(fields[name])
        for name in ("fare", "tip", "tolls", "total"):
            body[f"{name}_cents"] = _whole(Decimal(fields[name]) * 100)
        for name in (
            "color",
            "payment",
            "pickup_zone",
            "dropoff_zone",
            "pickup_borough",
            "dropoff_borough",
        ):
            body[name] = fields[name]
    except KeyError:
        raise InvalidRequest(f"no field {name!r}: this is not a file of taxi trips") from None
    except (ValueError, InvalidOperation):
        raise InvalidRequest(
            f"field {name!r} holds {fields[name]!r:.80}, which no taxi trip has there"
        ) from None
    return body


def _whole(cents: Decimal) -> int:
    if cents != cents.to_integral_value():
        raise ValueError(f"{cents} cents is not a whole number of cents")
    return int(cents)
