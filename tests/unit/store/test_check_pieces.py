"""A check in pieces comes to the end of a log that is damaged as well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cellfeed.store.engines.contract.piecewise import UNIT_BYTES, piece_of
from cellfeed.store.engines.contract.values import Head

NEXT_ID, CELLS = 300, 100
HEAD = Head(0, NEXT_ID, NEXT_ID, 0, 0)

Answer = Callable[[int], list[tuple[int, int]]]


def log(body_bytes: int = 0) -> Answer:
    return lambda first: [(each, body_bytes) for each in range(first, NEXT_ID)][:CELLS]


def walked(answer: Answer) -> list[tuple[int, int]]:
    """The ids of each piece: the first, and the one behind the last."""
    pieces: list[tuple[int, int]] = []
    first: int | None = 0
    while first is not None:
        ends, piece = piece_of(HEAD, first, CELLS, answer(first))
        pieces.append((ends.log_start, ends.next_added_id))
        assert len(pieces) <= NEXT_ID, "it does not come to the end"
        first = piece.next_id
    return pieces


@pytest.mark.parametrize(
    ("body_bytes", "cells"), [(0, 100), (UNIT_BYTES - 1, 100), (UNIT_BYTES, 50), (1 << 20, 1)]
)
def test_pieces_are_of_so_many_cells_or_their_bytes(body_bytes: int, cells: int) -> None:
    assert walked(log(body_bytes)) == [
        (first, min(first + cells, NEXT_ID)) for first in range(0, NEXT_ID, cells)
    ]


def test_cells_from_below_a_piece_end_the_log_and_not_the_progress() -> None:
    """A bit of an inner page has changed: a search for a later id leads to earlier cells."""

    def answer(first: int) -> list[tuple[int, int]]:
        return log()(first if first < 200 else 146)

    assert walked(answer) == [(0, 100), (100, 200), (200, NEXT_ID)]


def test_an_id_beyond_the_log_ends_it() -> None:
    assert walked(lambda first: [(first, 0), (NEXT_ID * 1000, 1 << 20)]) == [(0, NEXT_ID)]
