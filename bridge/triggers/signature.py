"""The function of a trigger: its name, the keywords that it takes, and the call with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from cellfeed.bridge.triggers.async_store import AsyncStore
from cellfeed.bridge.triggers.coroutines import finished, is_coroutine_function
from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.from_stored import cell_from_stored


def call_of(
    function: Callable[..., Any], store: CellStore, shard: int, *, takes_batches: bool
) -> Callable[[Sequence[StoredCell]], object]:
    """As :meth:`Trigger.caller <cellfeed.bridge.triggers.program.Trigger.caller>`."""
    wanted = keywords_of(function)
    extras: dict[str, object] = {}
    if "store" in wanted:
        extras["store"] = AsyncStore(store) if is_coroutine_function(function) else store
    if takes_batches:
        return lambda cells: finished(
            function([cell_from_stored(shard, cell) for cell in cells], **extras)
        )
    if "cell" in wanted:
        return lambda cells: finished(
            function(UUID(bytes=cells[0].row_key), cell=cell_from_stored(shard, cells[0]), **extras)
        )
    return lambda cells: finished(function(UUID(bytes=cells[0].row_key), **extras))


def named(function: Any) -> Any:
    """The object with a function's name: itself, the function of a partial, or the class of a
    callable object."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """The keywords among ``cell`` and ``store`` that the function takes."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return [parameter.name for parameter in parameters if parameter.name in ("cell", "store")]
