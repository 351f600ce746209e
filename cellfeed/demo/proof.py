"""The proof at the end of the demo: figures that were come by in different ways must agree.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cellfeed.loading.taxi import TaxiFigures
from cellfeed.verify.report import VerifyReport


@dataclass(frozen=True)
class Line:
    """One figure, as every place has it. It holds when all are the same."""

    what: str
    figures: Mapping[str, str]

    @property
    def agrees(self) -> bool:
        return len(set(self.figures.values())) == 1


@dataclass(frozen=True)
class Seen:
    """The figures of the demo. Cells by column are counted in the store's logs; ``warehouse_rows``
    by SQL over the Parquet files."""

    cells_by_column: Mapping[str, int]
    records_by_offset: int
    warehouse_rows: int
    charges: int
    charged_cents: int
    warehouse_charged_cents: int
    cash_cents: int
    digests: VerifyReport = field(repr=False)


def proof(expected: TaxiFigures, seen: Seen) -> list[Line]:
    """Every line that must hold. ``expected`` is computed from the CSV's text alone."""
    by_column = seen.cells_by_column
    all_cells = expected.cells + expected.trips  # every trip ends with one STATUS cell
    agree = sum(verdict.equal and verdict.level for verdict in seen.digests.shards)
    return [
        Line(
            "trips (BASE cells)",
            {"CSV": f"{expected.base_cells:,}", "store": f"{by_column.get('BASE', 0):,}"},
        ),
        Line(
            "NOTES cells",
            {"CSV": f"{expected.notes_cells:,}", "store": f"{by_column.get('NOTES', 0):,}"},
        ),
        Line(
            "FARE_ADJUSTMENT cells",
            {
                "CSV": f"{expected.fare_adjustment_cells:,}",
                "store": f"{by_column.get('FARE_ADJUSTMENT', 0):,}",
            },
        ),
        Line(
            "settled trips (STATUS cells)",
            {"CSV": f"{expected.trips:,}", "store": f"{by_column.get('STATUS', 0):,}"},
        ),
        Line(
            "cells, records, rows",
            {
                "CSV": f"{all_cells:,}",
                "store": f"{sum(by_column.values()):,}",
                "Kafka": f"{seen.records_by_offset:,}",
                "Parquet": f"{seen.warehouse_rows:,}",
            },
        ),
        Line("card charges", {"CSV": f"{expected.card_trips:,}", "provider": f"{seen.charges:,}"}),
        Line(
            "charged",
            {
                "CSV": dollars(expected.card_cents),
                "provider": dollars(seen.charged_cents),
                "Parquet": dollars(seen.warehouse_charged_cents),
            },
        ),
        Line(
            "paid in cash",
            {"CSV": dollars(expected.cash_cents), "Parquet": dollars(seen.cash_cents)},
        ),
        Line(
            "shards with one digest everywhere",
            {"all": str(len(seen.digests.shards)), "store = Kafka = Parquet": str(agree)},
        ),
    ]


def dollars(cents: int) -> str:
    """An amount for people."""
    return f"${cents // 100:,}.{cents % 100:02d}"
