"""Rows that come in pages: one that is larger than a page goes on in the next, behind a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cellfeed.store.cells.cell import Cell


class RowsPage(NamedTuple):
    """The first of the rows asked for. ``next_row``: the number of the row to go on with, its
    columns behind ``after_column``; None at the end."""

    rows: list[dict[str, Cell]]
    next_row: int | None
    after_column: str = ""

    def moved(self, rows: int) -> RowsPage:
        """The same page of a list with so many more rows before it."""
        return self._replace(next_row=None if self.next_row is None else self.next_row + rows)


def with_page(
    rows: list[dict[str, Cell]], page: Sequence[Mapping[str, Cell]], first: int
) -> list[dict[str, Cell]]:
    """Rows and a page of them from number ``first`` on, whose first one may go on with columns of
    the last row."""
    if first < len(rows) and page:
        rows[first].update(page[0])
        page = page[1:]
    return [*rows, *map(dict, page)]
