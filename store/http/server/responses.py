"""Answers: messages to bytes in the form that the caller asked for, errors as
``{"error", "message", "retriable", "definite"}``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.errors import (
    CellfeedError,
    OutcomeUnknown,
    QuotaExceeded,
    UnsupportedMediaType,
)
from cellfeed.store.http.messages import JSON, MSGPACK, NDJSON
from cellfeed.store.http.server.asgi import Headers, Scope, Send, header


def _hook(value: Any) -> Any:
    if isinstance(value, CellfeedError):
        return value.as_json()
    raise TypeError(f"no wire form for {type(value).__name__}")


_json_encoder: Final = msgspec.json.Encoder(enc_hook=_hook)
_encode_json: Final = _json_encoder.encode
_encode_msgpack: Final = msgspec.msgpack.Encoder(enc_hook=_hook).encode


def media_type_of(scope: Scope, allowed: Sequence[str] = (JSON, MSGPACK)) -> str:
    """The request's media type. Raises UnsupportedMediaType.

    It must be named: a page in a browser can send text/plain or form data to a loopback port
    without asking, but not JSON.
    """
    given = header(scope, b"content-type").decode("latin-1")
    media_type = given.partition(";")[0].strip().lower()
    if media_type == "application/x-msgpack" or media_type == "application/vnd.msgpack":
        media_type = MSGPACK
    if media_type not in allowed:
        raise UnsupportedMediaType(
            f"Content-Type {ascii(given)[:80]} is not read here; send {' or '.join(allowed)}"
        )
    return media_type


def wants_msgpack(scope: Scope) -> bool:
    """Whether the answer goes out as MessagePack: the caller accepts it and did not ask for
    JSON."""
    accept = header(scope, b"accept")
    return b"msgpack" in accept and b"json" not in accept


def encoded(message: Any, *, msgpack: bool) -> bytes:
    """A message as bytes."""
    if not msgpack:
        return _encode_json(message)
    # Bodies are JSON slices inside the message; MessagePack needs their values.
    return _encode_msgpack(msgspec.json.decode(_encode_json(message)))


def result_lines(results: Iterable[PutResult]) -> bytes:
    """Results as NDJSON."""
    return _json_encoder.encode_lines(results)


async def send_message(
    send: Send, scope: Scope, message: Any, status: int = 200, headers: Headers = ()
) -> None:
    """Sends one whole answer."""
    msgpack = wants_msgpack(scope)
    content = encoded(message, msgpack=msgpack)
    await send_content(send, status, content, MSGPACK if msgpack else JSON, headers)


async def send_error(send: Send, scope: Scope, error: CellfeedError) -> None:
    """Sends an error with its own status."""
    headers = []
    if isinstance(error, QuotaExceeded):
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
    await send_message(send, scope, error, error.http_status, headers)


async def send_content(
    send: Send, status: int, content: bytes, media_type: str, headers: Headers = ()
) -> None:
    """Sends bytes with their length."""
    fixed = [
        (b"content-type", media_type.encode()),
        (b"content-length", b"%d" % len(content)),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": fixed})
    await send({"type": "http.response.body", "body": content})


def last_answer(error: CellfeedError) -> bytes:
    """The answer, with its head, behind which the connection ends."""
    content = encoded(error, msgpack=False)
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
        % (
            error.http_status,
            HTTPStatus(error.http_status).phrase.encode(),
            JSON.encode(),
            len(content),
            content,
        )
    )


async def start_stream(send: Send) -> None:
    """Starts an NDJSON answer."""
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", NDJSON.encode())],
        }
    )


def as_put_error(error: BaseException) -> CellfeedError:
    """The error of a put. An error that was not raised on purpose leaves the fate of its cells
    open."""
    if isinstance(error, CellfeedError):
        return error
    return OutcomeUnknown(
        f"{type(error).__name__} while the cells were written; put them again to learn whether they"
        " were"
    )
