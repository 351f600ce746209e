"""The cursor of an answer: a place in the index, good for the same query of the same version."""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Final

import msgspec

from cellfeed.store.engines.contract.index_values import Encoded
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.request import IndexRequest


class _Cursor(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """``version`` of the index, a digest of the query, and the place of the last entry."""

    version: int
    asked: int
    value: int | bytes | None
    row_key: bytes


_cursor_decoder: Final = msgspec.msgpack.Decoder(_Cursor)

_cursor_encode: Final = msgspec.msgpack.Encoder().encode


def cursor_text(request: IndexRequest, version: int, place: tuple[Encoded | None, bytes]) -> str:
    """The cursor behind an entry."""
    return (
        base64.urlsafe_b64encode(_cursor_encode(_Cursor(version, _asked(request), *place)))
        .decode()
        .rstrip("=")
    )


def behind(request: IndexRequest, cursor: str, version: int) -> IndexRequest:
    try:
        found = _cursor_decoder.decode(
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        )
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise InvalidRequest("the cursor is not one of this service's") from None
    if found.asked != _asked(request) or len(found.row_key) != 16:
        raise InvalidRequest(
            "the cursor is of another query: shard values, filters and order must stay the same"
        )
    if found.version != version:
        raise InvalidRequest(
            f"the cursor is of version {found.version} of the index, which is at version {version}"
            " by now: begin again without it"
        )
    return replace(request, after=(found.value, found.row_key))


def _asked(request: IndexRequest) -> int:
    """A digest of the query that a cursor belongs to, of 32 bits."""
    return binascii.crc32(
        _cursor_encode(
            [
                sorted(request.shard_values, key=repr),
                request.conditions,
                request.order,
                request.descending,
            ]
        )
    )
