"""Fields of requests as a worker takes them, and the parsing of its answers."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from cellfeed.store.api import Location
from cellfeed.store.arguments import (
    check_location,
    check_read_from,
)
from cellfeed.store.cells.cell import (
    NewCell,
    check_row_key,
)
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import (
    CellfeedError,
)
from cellfeed.store.http.calls.answers import (
    Asked,
)

T = TypeVar("T")
_name_json: Final = msgspec.json.encode


def put_json(cell: NewCell) -> bytes:
    return b'{"row_key":"%b","column_name":%b,"ref_key":%d,"body":%b}' % (
        row_key_text(cell.row_key),
        _name_json(cell.column_name),
        cell.ref_key,
        cell.body_json,
    )


def key_fields(asked: Asked) -> dict[str, str | int]:
    key: dict[str, str | int] = {
        "row_key": key_text(asked.row_key),
        "column_name": asked.column_name,
    }
    return key if asked.ref_key is None else {**key, "ref_key": asked.ref_key}


def key_text(row_key: object) -> str:
    return row_key_text(check_row_key(row_key)).decode()


def replica_fields(read_from: object) -> dict[str, str]:
    """Said only where it is not the default: a worker of an earlier version refuses fields that it
    does not know."""
    replica = check_read_from(read_from)
    return {} if replica is Replica.MASTER else {"read_from": replica.value}


def location_text(location: Location) -> str:
    checked = check_location(location)
    return str(checked) if isinstance(checked, int) else checked.isoformat()


def decoded(content: bytes, kind: type[T], error_kind: type[CellfeedError] = CellfeedError) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise error_kind(f"a worker's answer is not as its API says: {error}") from None
