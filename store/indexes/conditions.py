"""Whether an entry that was made again still meets a query's filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cellfeed.store.engines.contract.index_values import Condition, Entry


def meets(entry: Entry, condition: Condition) -> bool:
    """Whether an entry meets a condition, as the SQL statement would say. A missing field meets
    none."""
    value: Any = entry.values[condition.field]
    if value is None:
        return False
    if condition.operator == "in":
        return value in condition.values
    other: Any = condition.values[0]
    return bool(_COMPARISONS[condition.operator](value, other))


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": lambda value, other: value == other,
    "!=": lambda value, other: value != other,
    "<": lambda value, other: value < other,
    "<=": lambda value, other: value <= other,
    ">": lambda value, other: value > other,
    ">=": lambda value, other: value >= other,
}
