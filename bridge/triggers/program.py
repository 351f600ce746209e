"""The interface for service authors: functions that are called for every new cell of a column.

    from cellfeed import trigger

    @trigger(column="BASE")
    def bill(row_key):
        ...

After Uber's "Using Triggers on Schemaless" (2016).

A trigger's group has the name that its author wrote: ``group=`` in code, else the name of its entry
in the configuration. Nothing is derived from the name of a function: two functions may share that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from cellfeed.bridge.groups.definition import Definition, belongs_to_cellfeed
from cellfeed.bridge.groups.start import EARLIEST, Start, check_start
from cellfeed.bridge.triggers.retry import (
    DEFAULT_RETRY,
    Retry,
    RetryPolicy,
    check_retry,
    policy_for,
)
from cellfeed.bridge.triggers.signature import call_of, keywords_of, named
from cellfeed.store.api import CellStore
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell, check_column_name
from cellfeed.store.errors import InvalidRequest

__all__ = ["BATCH_CELLS_MAX", "RetryPolicy", "Trigger", "trigger"]

BATCH_CELLS_MAX: Final = 10_000
"""Cells of one batch: a worker holds so many of one shard at a time, and so many run again after a
crash."""

PAUSE_ROWS: Final = 5
"""Fewer than a worker has threads, each of which may wait with one cell; more than the bad cells
that usually lie side by side."""

_MARK: Final = "__cellfeed_trigger__"


@dataclass(frozen=True)
class Trigger:
    """A function and the column that it follows. ``group`` names its offsets: workers of one group
    share the work, those of two groups each do all of it. It is empty until the program is loaded,
    where the code does not name it."""

    function: Callable[..., Any]
    column: str
    group: str
    retry: Retry = field(default_factory=lambda: DEFAULT_RETRY)
    parked_max: int = 100
    """Parked cells at which the trigger stops and says so. Cells that only wait behind a parked one
    of their row key do not count."""

    parked_retry_s: float = 60.0
    """How often parked cells are tried again."""

    pause_rows: int | None = PAUSE_ROWS
    """Rows whose cells fail alike, and none runs between them, at which a worker pauses the trigger
    and probes by itself; None: it never does. See ``circuit.py``."""

    start: Start = EARLIEST
    """Where a new group begins, see ``start.py``."""

    batch: int | None = None
    """At most so many cells in one call; None: one cell per call, and the function gets its row
    key."""

    batch_wait_s: float = 0.0
    """How long a batch that is not full waits for more cells."""

    timeout_s: float | None = None
    """How long a call may take before its process ends itself, see ``deadlines.py``."""

    order_by_row_key: bool = False
    """Whether later cells of a row key wait behind its parked ones."""

    more_columns: tuple[str, ...] = ()
    """Columns that it follows besides ``column``, in the one order of the log."""

    saves_lazily: bool = False
    """Whether an offset may wait to be saved though nothing else is to be done: for functions that
    lose nothing by running again. A save is a commit, and one behind every cell costs more than
    running a few cells again."""

    together: Callable[[Mapping[int, Sequence[StoredCell]]], object] | None = None
    """Does the function's work for cells of several shards, by shard, or raises; None: nothing
    does. For functions that take batches and wait for nothing, see
    :mod:`cellfeed.bridge.triggers.shard.sweep`."""

    backlog_turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Held while a shard that is behind is brought on by a chunk: a lock where threads that catch
    up would only be in each other's way. A shard that has caught up never waits for it."""

    entry: str = ""
    """The name of its entry in the configuration; empty without one."""

    earlier_group: str = ""
    """The group that earlier versions gave it, by its function's name, where the code names
    none."""

    @cached_property
    def columns(self) -> frozenset[str]:
        """Whose cells it gets."""
        return frozenset((self.column, *self.more_columns))

    def takes(self, cell: StoredCell) -> bool:
        """Whether it gets a cell: of one of its columns, and not erased. The cell that marks an
        erasure is for triggers that follow its column."""
        return cell.column_name in self.columns and (
            cell.column_name == ERASED_COLUMN or not is_erased(cell.body)
        )

    def policy_for(self, kind: type[BaseException]) -> RetryPolicy:
        """The retry policy for an error of that kind."""
        return policy_for(self.retry, kind)

    def caller(self, store: CellStore, shard: int) -> Callable[[Sequence[StoredCell]], object]:
        """A call that runs the function for cells of a shard (one, where it takes no batches) with
        the arguments of its signature.

        A body is decoded only for a function that takes the cell. A coroutine function's call ends
        when its coroutine has.
        """
        return call_of(self.function, store, shard, takes_batches=self.batch is not None)

    @property
    def function_name(self) -> str:
        """As people see it: ``program.<locals>.bill``."""
        return str(named(self.function).__qualname__)

    @property
    def definition(self) -> Definition | None:
        """The definition that its group records; None for a group whose name says all of that."""
        application = f"{named(self.function).__module__}:{self.function_name}"
        return Definition(sorted(self.columns), application, self.entry)


def trigger(
    column: str,
    *,
    group: str | None = None,
    start: Start = EARLIEST,
    batch: int | None = None,
    batch_wait_s: float = 0.0,
    retry: Retry = DEFAULT_RETRY,
    timeout_s: float | None = None,
    order_by_row_key: bool = False,
    parked_max: int = 100,
    parked_retry_s: float = 60.0,
    pause_rows: int | None = PAUSE_ROWS,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a function to be called with the row key (UUID) of every new cell of ``column``: at
    least once, in log order within a shard.

    The function may also take ``cell`` (the cell itself) and ``store`` (the datastore) by keyword.
    A coroutine function's coroutine runs to its end before the shard's next cell, and its ``store``
    is an :class:`~cellfeed.bridge.triggers.async_store.AsyncStore`. The function must be safe to
    run again for the same cell: after a crash it is. ``group`` is the name of
    the configuration's entry where it is left out. A cell that still fails after ``retry`` (a
    policy, or one for each error type) is parked and the shard continues; ``parked_max`` parked
    cells stop the trigger.

    ``start`` says where a new group begins. With ``batch`` the function gets a list of 1 to
    ``batch`` cells of one shard in log order; one that is not full waits ``batch_wait_s`` seconds
    for more. ``timeout_s``: seconds after which the process ends itself and the call counts as
    failed. ``order_by_row_key``: while a cell is parked, later ones of its row key wait parked
    behind it. When cells of ``pause_rows`` rows fail alike and none runs between them, the worker
    pauses the trigger and probes until one runs; None: never. Raises InvalidRequest for settings
    that cannot be meant.
    """
    check_column_name(column)
    if batch is not None and (type(batch) is not int or not 1 <= batch <= BATCH_CELLS_MAX):
        raise InvalidRequest(f"batch={batch!r}: 1 to {BATCH_CELLS_MAX} cells")
    if batch_wait_s < 0 or (batch_wait_s and batch is None):
        raise InvalidRequest(
            f"batch_wait_s={batch_wait_s!r}: seconds from 0 on, for triggers that take batches"
        )
    if timeout_s is not None and not timeout_s > 0:
        raise InvalidRequest(f"timeout_s={timeout_s!r}: more than 0 seconds, or None")
    if group is not None and (not group or belongs_to_cellfeed(group)):
        raise InvalidRequest(
            f"group={group!r}: a name that is not empty, and not that of an export (export/NAME),"
            " an index (index.NAME.vN) or the gateways (__gateways)"
        )
    if pause_rows is not None and (type(pause_rows) is not int or pause_rows < 1):
        raise InvalidRequest(f"pause_rows={pause_rows!r}: 1 row or more, or None")
    checked_retry, checked_start = check_retry(retry), check_start(start)

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        if batch is not None and "cell" in keywords_of(function):
            raise InvalidRequest(
                f"{name} takes batches: it gets a list of cells as its first argument, and no"
                " keyword 'cell'"
            )
        made = Trigger(
            function,
            column,
            group or "",
            checked_retry,
            parked_max,
            parked_retry_s,
            pause_rows,
            checked_start,
            batch,
            batch_wait_s,
            timeout_s,
            order_by_row_key,
            earlier_group="" if group else f"triggers.{name}",
        )
        setattr(function, _MARK, made)
        return function

    return mark
