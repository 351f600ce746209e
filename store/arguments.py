"""The checks of arguments that a datastore, its client and its indexes share. Each raises the error
that names the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from cellfeed.store.api import Location
from cellfeed.store.cells.cell import NewCell, check_row_key, new_cell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import CellfeedError, InvalidLocation, InvalidRequest
from cellfeed.store.limits import ADDED_ID_MAX, READ_KEYS_MAX, SCAN_CELLS_MAX


def check_datastore_name(name: object) -> str:
    """A datastore's name: it is a Kafka topic, a folder and part of a database's name. Raises
    InvalidRequest."""
    if (
        isinstance(name, str)
        and 0 < len(name) <= 48
        and name.isascii()
        and name[0].isalpha()
        and name.replace("_", "a").isalnum()
        and name.islower()
    ):
        return name
    raise InvalidRequest(
        f"datastore name {ascii(name)[:80]} must be 1 to 48 of a-z, 0-9 and _, beginning with a"
        " letter"
    )


def check_key_count(keys: Sequence[object]) -> None:
    """Raises InvalidRequest when a batch read asks for more than ``READ_KEYS_MAX`` keys."""
    if len(keys) > READ_KEYS_MAX:
        raise InvalidRequest(
            f"a read of {len(keys)} keys; at most {READ_KEYS_MAX} are allowed in one call"
        )


def check_read_from(read_from: object) -> Replica:
    """Where a read goes first: ``master`` or ``minion``. Raises InvalidRequest."""
    try:
        return Replica(read_from)  # type: ignore[arg-type]  # whatever it is, an unknown value is refused
    except ValueError:
        raise InvalidRequest(
            f"read_from {ascii(read_from)[:80]} must be {' or '.join(map(repr, map(str, Replica)))}"
        ) from None


def check_scan_limit(limit: object) -> int:
    """Raises InvalidRequest unless ``limit`` is 1 to ``SCAN_CELLS_MAX``."""
    if type(limit) is not int or not 1 <= limit <= SCAN_CELLS_MAX:
        raise InvalidRequest(f"limit {limit!r} must be 1 to {SCAN_CELLS_MAX} cells")
    return limit


def check_location(location: object) -> Location:
    """A location: an added_id from 0 on, or an aware datetime. Raises InvalidLocation."""
    if type(location) is int and 0 <= location <= ADDED_ID_MAX:
        return location
    if isinstance(location, datetime) and location.tzinfo is not None:
        return location
    raise InvalidLocation(
        f"location {ascii(location)[:80]} must be an added_id (0 to {ADDED_ID_MAX}) or a datetime"
        " with a time zone"
    )


def checked_item(item: object, shards: Callable[[], int]) -> NewCell | PutResult:
    """One item of ``put_cells``: its cell, or the result of an item that is refused. A
    :class:`NewCell` is one that :func:`new_cell` or an equal of it has checked.

    ``shards`` gives the number of shards. It is called only for a refused item whose row key is
    one, since a client may have to ask a worker.
    """
    if isinstance(item, NewCell):
        return item
    try:
        if not isinstance(item, tuple) or len(item) != 4:
            raise InvalidRequest(
                "a cell to put is a tuple (row_key, column_name, ref_key, body), not"
                f" {ascii(item)[:80]}"
            )
        return new_cell(*item)
    except CellfeedError as error:
        return PutResult.of_error(error, _shard_of_refused(item, shards))


def _shard_of_refused(item: object, shards: Callable[[], int]) -> int | None:
    try:
        return (
            shard_of(check_row_key(item[0]), shards()) if isinstance(item, tuple) and item else None
        )
    except InvalidRequest:
        return None
