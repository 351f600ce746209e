"""Rows that come in pages: a row larger than a page continues in the next, behind a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cellfeed.store.cells.cell import Cell


class RowsPage(NamedTuple):
    """The first of the rows asked for. ``next_row``: the number of the row to continue with, its
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
    """Rows and a page of them from number ``first`` on. The page's first row may add columns to the
    last of those rows."""
    if first < len(rows) and page:
        rows[first].update(page[0])
        page = page[1:]
    return [*rows, *map(dict, page)]
