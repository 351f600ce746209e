"""Request bodies, from bytes to checked values. Pure functions: bytes in, cells or messages out, or
the error that names the fault.

A batch of JSON is decoded once, bodies included, and each body encoded once, in canonical form.
Decoding loses a duplicate key, so quote signs are counted. Where no backslash is, each string costs
two; the envelope of a put has six strings, and a body as many as its canonical form. A text with
just that many quote signs holds no key twice. Any other text is read again by a slow reader that
looks at every key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

import msgspec

from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.canonical_json import canonical_of_decoded
from cellfeed.store.cells.cell import (
    NewCell,
    check_new_column,
    check_ref_key,
    check_row_key,
    new_cell,
)
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.errors import CellfeedError, InvalidBody, InvalidRequest
from cellfeed.store.http.messages import JSON, PutMessage
from cellfeed.store.http.server.documents import document_from
from cellfeed.store.limits import BATCH_CELLS_MAX

PutItem = NewCell | PutResult
"""A checked cell, or the result of one that was refused."""

_QUOTES_PER_PUT: Final = 12
_PUT_FIELDS: Final = ("row_key", "column_name", "ref_key", "body")

_decode_put: Final = msgspec.json.Decoder(PutMessage).decode


class _DecodedPut(msgspec.Struct, forbid_unknown_fields=True):
    row_key: str
    column_name: str
    ref_key: int
    body: Any


_decode_put_whole: Final = msgspec.json.Decoder(_DecodedPut).decode


class _DecodedPuts(msgspec.Struct, forbid_unknown_fields=True):
    cells: list[_DecodedPut]


_decode_puts: Final = msgspec.json.Decoder(_DecodedPuts).decode


class _RawPuts(msgspec.Struct, forbid_unknown_fields=True):
    cells: list[msgspec.Raw]


_decode_raw_puts: Final = msgspec.json.Decoder(_RawPuts).decode


def put_from(content: bytes, media_type: str) -> NewCell:
    """The cell of a single put. Raises InvalidRequest."""
    return (
        _put_from_json(content)
        if media_type == JSON
        else _put_from_parts(document_from(content, media_type))
    )


def puts_from(content: bytes, media_type: str, shards: int) -> list[PutItem]:
    """The items of a batch put, in order. A refused item becomes its result; raises InvalidRequest
    when the call as a whole is malformed."""
    items = (
        _puts_from_json(content, shards)
        if media_type == JSON
        else _puts_from_document(content, media_type, shards)
    )
    if len(items) > BATCH_CELLS_MAX:
        raise InvalidRequest(
            f"a put call of {len(items)} cells; at most {BATCH_CELLS_MAX} are allowed in one"
        )
    return items


def put_line(line: bytes, shards: int) -> PutItem:
    """One line of a streamed put: its cell, or the result of one that was refused."""
    return _item(lambda: _put_from_json(line), shards, lambda: _row_key_in(line))


def _puts_from_json(content: bytes, shards: int) -> list[PutItem]:
    """The fast reader: the whole text is decoded once, bodies included. Hands over to the slow one
    when it cannot vouch for every key."""
    if b"\\" in content:
        return _puts_one_by_one(content, shards)
    try:
        puts = _decode_puts(content).cells
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _puts_one_by_one(content, shards)
    items: list[PutItem] = []
    quotes = 2 + _QUOTES_PER_PUT * len(puts)
    for put in puts:
        try:
            body = canonical_of_decoded(put.body)
            quotes += body.count(b'"')
            items.append(
                NewCell(
                    check_row_key(put.row_key),
                    check_new_column(put.column_name),
                    check_ref_key(put.ref_key),
                    body,
                )
            )
        except CellfeedError as error:
            if isinstance(error, InvalidBody):
                return _puts_one_by_one(content, shards)  # its quote signs are not known
            items.append(_refused(error, put.row_key, shards))
    return items if content.count(b'"') == quotes else _puts_one_by_one(content, shards)


def _puts_one_by_one(content: bytes, shards: int) -> list[PutItem]:
    """The slow reader: finds the items that are wrong without giving up the others."""
    try:
        lines = [bytes(item) for item in _decode_raw_puts(content).cells]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _puts_from_document(content, JSON, shards)
    if content.count(b'"') != 2 + sum(line.count(b'"') for line in lines):
        return _puts_from_document(content, JSON, shards)
    return [put_line(line, shards) for line in lines]


def _puts_from_document(content: bytes, media_type: str, shards: int) -> list[PutItem]:
    document = document_from(content, media_type)
    if (
        not isinstance(document, dict)
        or list(document) != ["cells"]
        or not isinstance(document["cells"], list)
    ):
        raise InvalidRequest('request must be an object {"cells": [...]}')
    return [
        _item(partial(_put_from_parts, part), shards, partial(_row_key_of, part))
        for part in document["cells"]
    ]


def _put_from_json(text: bytes) -> NewCell:
    """The fast reader: the text is decoded once, its body included. Hands over to the slow one when
    it cannot vouch for every key."""
    if b"\\" not in text:
        try:
            put = _decode_put_whole(text)
            body = canonical_of_decoded(put.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidBody):
            return _put_from_raw_json(text)
        if text.count(b'"') == _QUOTES_PER_PUT + body.count(b'"'):
            return NewCell(
                check_row_key(put.row_key),
                check_new_column(put.column_name),
                check_ref_key(put.ref_key),
                body,
            )
    return _put_from_raw_json(text)


def _put_from_raw_json(text: bytes) -> NewCell:
    try:
        put = _decode_put(text)
        body = bytes(put.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        _explain(text, problem)
    if text.count(b'"') != _QUOTES_PER_PUT + body.count(b'"'):
        document_from(
            text, JSON
        )  # raises when a key stands twice; an escaped quote sign in a column name is well
    return _checked(put, body)


def _checked(put: PutMessage, body: bytes) -> NewCell:
    return NewCell(
        check_row_key(put.row_key),
        check_new_column(put.column_name),
        check_ref_key(put.ref_key),
        canonical_json.canonical_from_json(body),
    )


def _put_from_parts(parts: object) -> NewCell:
    if not isinstance(parts, dict):
        raise InvalidRequest(
            f"a cell to put is an object with {', '.join(_PUT_FIELDS)}, not {type(parts).__name__}"
        )
    for name in parts:
        if name not in _PUT_FIELDS:
            raise InvalidRequest(
                f"a cell to put has no field {ascii(name)[:80]}; its fields are"
                f" {', '.join(_PUT_FIELDS)}"
            )
    for name in _PUT_FIELDS:
        if name not in parts:
            raise InvalidRequest(f"a cell to put needs the field {name}")
    return new_cell(*(parts[name] for name in _PUT_FIELDS))


def _explain(text: bytes, problem: Exception) -> NoReturn:
    """Raises InvalidRequest with the rule that a put's text breaks."""
    _put_from_parts(document_from(text, JSON))
    raise InvalidRequest(f"request: {problem}") from None


def _item(read: Callable[[], NewCell], shards: int, row_key: Callable[[], object]) -> PutItem:
    try:
        return read()
    except CellfeedError as error:
        return _refused(error, row_key(), shards)


def _refused(error: CellfeedError, row_key: object, shards: int) -> PutResult:
    try:
        shard: int | None = shard_of(check_row_key(row_key), shards)
    except CellfeedError:
        shard = None
    return PutResult(Outcome.FAILED, shard, error=error)


def _row_key_in(line: bytes) -> object:
    try:
        return _row_key_of(msgspec.json.decode(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _row_key_of(parts: object) -> object:
    return parts.get("row_key") if isinstance(parts, dict) else None
