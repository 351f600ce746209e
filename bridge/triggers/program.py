"""What a service author writes: functions that are called for every new cell of a column.

    from cellfeed import trigger

    @trigger(column="BASE")
    def bill(row_key):
        ...

A program is a module with such functions, a list of them, or a function that makes the list from settings. After Uber's "Using Triggers on Schemaless" (2016).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from store.api import CellStore
from store.cells import Cell, check_column_name
from store.errors import InvalidRequest

_DOUBLINGS_MAX: Final = 40
"""Beyond it every wait is the longest one: a store may be away for a million tries."""

_MARK: Final = "__cellfeed_trigger__"


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failing cell is tried before it is parked, and how long between the tries: doubling from ``first_wait_s`` to ``longest_wait_s``."""

    attempts: int = 5
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0

    def wait_s(self, attempt: int) -> float:
        """Seconds before the next try, after ``attempt`` tries."""
        return min(self.first_wait_s * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX), self.longest_wait_s)


@dataclass(frozen=True)
class Trigger:
    """A function and the column that it follows. ``group`` names its offsets: two triggers of one group share the work, of two groups each do all of it."""

    function: Callable[..., Any]
    column: str
    group: str
    retry: RetryPolicy = RetryPolicy()
    parked_max: int = 100
    """Parked cells at which the trigger stops and says so."""

    parked_retry_s: float = 60.0
    """How often parked cells are tried again."""

    def call(self, cell: Cell, store: CellStore) -> None:
        """Runs the function with what its signature asks for: the row key, and by keyword ``cell`` and ``store``."""
        extras = {"cell": cell, "store": store}
        self.function(cell.row_key, **{name: extras[name] for name in self._wanted})

    @cached_property
    def _wanted(self) -> list[str]:
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return [parameter.name for parameter in parameters if parameter.name in ("cell", "store")]


def trigger(
    column: str, *, group: str | None = None, retry: RetryPolicy = RetryPolicy(), parked_max: int = 100, parked_retry_s: float = 60.0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a function to be called with the row key (UUID) of every new cell of ``column``: at least once, in log order within a shard.

    The function may also take ``cell`` (the cell itself) and ``store`` (the datastore) by keyword. It must be safe to run again for the same cell:
    after a crash it is. ``group`` defaults to ``triggers.<function name>``. A cell that still fails after ``retry`` is parked and the shard goes on;
    ``parked_max`` parked cells stop the trigger.
    """
    check_column_name(column)

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        setattr(function, _MARK, Trigger(function, column, group or f"triggers.{name}", retry, parked_max, parked_retry_s))
        return function

    return mark


def load_program(source: str, settings: Mapping[str, Any] | None = None) -> list[Trigger]:
    """The triggers of ``module``, ``module:name``, ``file.py`` or ``file.py:name``.

    ``name`` may be one trigger, a list of them, or a function that takes the settings (a dict) and gives the list. Raises InvalidRequest with what is wrong.
    """
    place, _, name = source.partition(":")
    module = _module(place, source)
    if not name:
        found = [value for value in vars(module).values() if hasattr(value, _MARK)]
    else:
        value = getattr(module, name, None)
        if value is None:
            raise InvalidRequest(f"{source}: {place} has no {name!r}")
        if callable(value) and not hasattr(value, _MARK):
            value = value(dict(settings or {}))
        found = list(value) if isinstance(value, Sequence) else [value]
    if not found or not all(hasattr(value, _MARK) or isinstance(value, Trigger) for value in found):
        raise InvalidRequest(f"{source}: no triggers found; mark functions with @trigger(column=...)")
    triggers = [value if isinstance(value, Trigger) else getattr(value, _MARK) for value in found]
    groups = [each.group for each in triggers]
    if len(set(groups)) != len(groups):
        raise InvalidRequest(f"{source}: two triggers have the group {max(groups, key=groups.count)!r}; give each its own")
    return triggers


def _module(place: str, source: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).resolve()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise InvalidRequest(f"{source}: there is no file {place}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    except ImportError as error:
        raise InvalidRequest(f"{source}: {error}") from error
    return module
