"""The parts, groups and cells of an instance to which a caller's rights reach."""

from __future__ import annotations

from collections.abc import Iterable

from cellfeed.bridge.groups.control import EXPORTS
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.status.stuck_part import Stuck
from cellfeed.store.cells.cell import Cell
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.security.callers import Caller

_GROUPS = {"trigger": "", "group": "", "export": EXPORTS}
"""Kinds of parts that are groups, with the beginning of their groups' names."""


def sees_all(caller: Caller) -> bool:
    """Whether the caller may know how the whole instance stands."""
    return caller.may_datastore("describe")


def seen(caller: Caller, parts: Iterable[Stuck]) -> list[Stuck]:
    """Of the parts that stand still those that the caller may know."""
    return [each for each in parts if _sees(caller, each)]


def _sees(caller: Caller, part: Stuck) -> bool:
    if part.kind in _GROUPS:
        return caller.sees_group(_GROUPS[part.kind] + part.name)
    return sees_all(caller)


def readable(caller: Caller, cells: Iterable[Cell]) -> list[Cell]:
    """Of some cells those of columns that the caller may read."""
    if caller.may_all("read"):
        return list(cells)
    return [each for each in cells if caller.may_column("read", each.column_name)]


def readable_parked(caller: Caller, cells: Iterable[ParkedCell]) -> list[ParkedCell]:
    """Of parked cells those of groups that the caller may know, and of columns that it may read:
    errors quote bodies."""
    return [
        each
        for each in cells
        if caller.sees_group(each.group) and caller.may_column("read", each.column_name)
    ]


def check_number(name: str, text: str) -> int:
    """A number that somebody typed. Raises InvalidRequest."""
    if not (text.strip().isascii() and text.strip().isdigit() and len(text.strip()) <= 18):
        raise InvalidRequest(f"{name} is {ascii(text)[:40]}: a whole number from 0 on")
    return int(text)
