"""Request documents: JSON or MessagePack in which no key stands twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import msgpack
import msgspec

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.http.messages import JSON, MSGPACK
from cellfeed.store.limits import READ_KEYS_MAX

Message = TypeVar("Message")


def message_from(content: bytes, media_type: str, kind: type[Message]) -> Message:
    """A request document as ``kind``. Raises InvalidRequest naming the field that is wrong."""
    document = document_from(content, media_type)
    _refuse_many_keys(document)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"request: {error}") from None


def document_from(content: bytes, media_type: str) -> Any:
    """JSON or MessagePack as Python values; every key is text and stands once in its object. Raises
    InvalidRequest."""
    if media_type == JSON and b"\\" not in content:
        # Decoding loses a key that stands twice, with its two quote signs. Where none is lost, and
        # nothing is refused, the slow reader would give the same.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            document = msgspec.json.decode(content)
            if content.count(b'"') == msgspec.json.encode(document).count(b'"'):
                return document
    try:
        if media_type == MSGPACK:
            return msgpack.unpackb(content, object_pairs_hook=_unique_keys, strict_map_key=True)
        return json.loads(
            content.decode(), object_pairs_hook=_unique_keys, parse_constant=_no_constant
        )
    except InvalidRequest:
        raise
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        name = "MessagePack" if media_type == MSGPACK else "JSON"
        raise InvalidRequest(
            f"request is not {name}: {str(error) or type(error).__name__}"
        ) from None


def _refuse_many_keys(document: object) -> None:
    # Before the conversion makes an object of each: every batch read is one list inside one object.
    for value in document.values() if isinstance(document, dict) else ():
        if isinstance(value, list) and len(value) > READ_KEYS_MAX:
            raise InvalidRequest(
                f"a read of {len(value)} keys; at most {READ_KEYS_MAX} are allowed in one call"
            )


def _unique_keys(pairs: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise InvalidRequest(
                f"request holds the key {ascii(key)[:80]}, which is {type(key).__name__}, not text"
            )
        if key in result:
            raise InvalidRequest(f"request holds the key {ascii(key)[:80]} twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"request holds {name}, which JSON has no number for")
