"""Dictionaries and bodies that the tests of dictionaries share."""

from __future__ import annotations

from functools import cache

from cellfeed.store.cells.body_encoding import encode_with
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.known_dictionaries import KnownDictionary
from cellfeed.store.dictionaries.training import Sample, train
from tests.support.rides import rides


@cache
def first() -> Dictionary:
    """Trained when a test wants it: every worker of a run imports this file."""
    return _trained(0)


@cache
def second() -> Dictionary:
    return _trained(600)


def _trained(start: int) -> Dictionary:
    samples = [Sample(cell.row_key, cell.body_json) for cell in rides(start, 600)]
    return train("BASE", samples).dictionary


def encoded(dictionary: Dictionary | None = None, count: int = 20) -> list[bytes]:
    return encode_with(
        KnownDictionary(dictionary or first()), [cell.body_json for cell in rides(0, count)]
    )
