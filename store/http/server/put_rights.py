"""The right to put, for each cell of a request."""

from __future__ import annotations

from collections.abc import Iterable

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.server.requests import PutItem
from cellfeed.store.security.callers import Caller


def columns_of(items: Iterable[PutItem]) -> set[str]:
    """The columns that are to be written."""
    return {item.column_name for item in items if isinstance(item, NewCell)}


def allowed(item: PutItem, caller: Caller, shards: int) -> PutItem:
    """The item, or the result of a cell that the caller may not put."""
    if not isinstance(item, NewCell) or caller.may_column("put", item.column_name):
        return item
    try:
        caller.check_columns("put", (item.column_name,))
    except CellfeedError as error:
        return PutResult.of_error(error, shard_of(item.row_key, shards))
    return item
