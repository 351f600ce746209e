"""Bodies: JSON objects that come back exactly as they were put, or are refused with the reason.

A body is kept as canonical JSON: keys sorted by code point, no spaces, UTF-8 without needless
escapes, the shortest digits that name the same number. So "the same body" is a comparison of bytes,
and a reader in any language gets plain JSON.

Refused: anything but an object at the top; keys that are not text; duplicate keys; NaN and
infinities; integers outside -2**63 … 2**64-1 (codec 1 cannot hold them); lone surrogates; tuples,
sets, bytes, dates and other Python values that JSON would turn into something else; nesting beyond
``BODY_DEPTH_MAX``; more than ``BODY_BYTES_MAX`` bytes. A number with a fraction or an exponent is
an IEEE 754 double (RFC 8259 §6, RFC 7493 §2.2): its value survives, its spelling does not.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

import msgspec

from cellfeed.store.errors import BodyTooLarge, InvalidBody
from cellfeed.store.limits import BODY_BYTES_MAX, BODY_DEPTH_MAX, JSON_INTEGER_MAX, JSON_INTEGER_MIN

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder().decode
_DIGITS_AS_ZEROS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_LONG_ZEROS: Final = b"0" * 19


def canonical(body: object) -> bytes:
    """Canonical JSON of a Python dict. Raises InvalidBody (which value, which rule) or
    BodyTooLarge."""
    if not isinstance(body, dict):
        raise InvalidBody(f"body is {type(body).__name__}, not an object (dict)")
    try:
        text = _encode(body)
        same = _decode(text) == body
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        _explain(body, error)
    # Values that JSON lacks decode to other ones (NaN as null, a tuple as a list, a date as text):
    # the comparison finds them.
    if not same or (_has_long_digits(text) and not _integers_fit(body)):
        _explain(body, None)
    return _within_limits(text)


def canonical_from_json(text: bytes) -> bytes:
    """Canonical JSON of JSON text from outside. Raises InvalidBody (with the rule that the text
    breaks) or BodyTooLarge."""
    if len(text) > 4 * BODY_BYTES_MAX:
        raise BodyTooLarge(
            f"body has {len(text)} bytes of JSON text; at most {BODY_BYTES_MAX} in canonical form"
            " are allowed"
        )
    try:
        body = _decode(text)
        result = _encode(body)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        _explain_text(text, error)
    if not isinstance(body, dict):
        raise InvalidBody(f"body is {_json_kind(body)}, not an object")
    # A duplicate key is lost in decoding. Without backslashes every string costs two quote signs in
    # both texts, so equal counts mean that no key was dropped; with backslashes the slow reader
    # looks at each key.
    if b"\\" in text or text.count(b'"') != result.count(b'"'):
        _explain_text(text, None)
    if _has_long_digits(result) and not _integers_fit(body):
        _explain(body, None)
    return _within_limits(result)


def canonical_of_decoded(body: object) -> bytes:
    """Canonical JSON of a value that msgspec decoded from JSON text with unique keys, as the caller
    knows. Raises InvalidBody or BodyTooLarge."""
    if not isinstance(body, dict):
        raise InvalidBody(f"body is {_json_kind(body)}, not an object")
    try:
        text = _encode(body)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        _explain(body, error)
    if _has_long_digits(text) and not _integers_fit(body):
        _explain(body, None)
    return _within_limits(text)


def parse(text: bytes) -> dict[str, Any]:
    """The Python dict of canonical JSON."""
    body: dict[str, Any] = _decode(text)
    return body


def _has_long_digits(text: bytes) -> bool:
    # Fewer than 19 digits always fit 64 bits. Two passes of C code: six times faster than a regular
    # expression, and on every body's way.
    return _LONG_ZEROS in text.translate(_DIGITS_AS_ZEROS)


def _within_limits(text: bytes) -> bytes:
    if len(text) > BODY_BYTES_MAX:
        raise BodyTooLarge(
            f"body has {len(text)} bytes as canonical JSON; at most {BODY_BYTES_MAX} are allowed"
        )
    # Openers bound the depth from above; only a text with many of them is walked.
    if (
        text.count(b"{") + text.count(b"[") > BODY_DEPTH_MAX
        and _depth(parse(text)) > BODY_DEPTH_MAX
    ):
        raise InvalidBody(f"body is nested deeper than {BODY_DEPTH_MAX} levels")
    return text


def _depth(value: object) -> int:
    deepest, level = 0, [value]
    while level:
        level = [child for parent in level for child in _children(parent)]
        deepest += 1
    return deepest - 1  # the last level holds only scalars, or nothing


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values()) or [None]
    if isinstance(value, list):
        return list(value) or [None]
    return []


def _integers_fit(value: object) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, int) and not JSON_INTEGER_MIN <= item <= JSON_INTEGER_MAX:
            return False
    return True


def _explain_text(text: bytes, error: Exception | None) -> None:
    """Raises InvalidBody with the rule that ``text`` breaks; returns only when every key is unique
    and nothing else is wrong."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as problem:
        raise InvalidBody(f"body is not UTF-8: {problem.reason} at byte {problem.start}") from None
    try:
        parsed = json.loads(decoded, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except InvalidBody:
        raise
    except RecursionError:
        raise InvalidBody(f"body is nested deeper than {BODY_DEPTH_MAX} levels") from None
    except ValueError as problem:
        raise InvalidBody(f"body is not JSON: {problem}") from None
    if error is not None:
        canonical(parsed)
        raise InvalidBody(f"body is not JSON: {error}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidBody(f"body holds the key {key!a} twice in one object")
            seen.add(key)
    return result


def _no_constant(name: str) -> NoReturn:
    raise InvalidBody(f"body holds {name}, which JSON has no number for")


def _explain(body: object, error: Exception | None) -> NoReturn:
    """Walks a body that was refused and raises InvalidBody naming the first value that breaks a
    rule and where it stands."""
    stack: list[tuple[object, str, int]] = [(body, "body", 0)]
    while stack:
        value, path, depth = stack.pop()
        if depth > BODY_DEPTH_MAX:
            raise InvalidBody(f"body is nested deeper than {BODY_DEPTH_MAX} levels")
        reason = _why_refused(value)
        if reason:
            raise InvalidBody(f"{path[:200]} {reason}")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise InvalidBody(
                        f"{path[:200]} holds the key {ascii(key)[:80]}, which is"
                        f" {type(key).__name__}, not text"
                    )
                if (key_reason := _why_refused(key)) is not None:
                    raise InvalidBody(
                        f"{path[:200]} holds the key {ascii(key)[:80]}, which {key_reason}"
                    )
            stack.extend(
                (child, f"{path}[{ascii(key)[:80]}]", depth + 1) for key, child in value.items()
            )
        elif isinstance(value, list):
            stack.extend(
                (child, f"{path}[{index}]", depth + 1) for index, child in enumerate(value)
            )
    raise InvalidBody(f"body cannot be kept as JSON exactly{f': {error}' if error else ''}")


def _why_refused(value: object) -> str | None:
    if isinstance(value, bool) or value is None or isinstance(value, (dict, list)):
        return None
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"holds a lone surrogate: {ascii(value)[:80]}"
        return None
    if isinstance(value, int):
        if JSON_INTEGER_MIN <= value <= JSON_INTEGER_MAX:
            return None
        return (
            f"is {str(value)[:40] if abs(value) < 10**39 else 'an integer'}, beyond 64 bits; write"
            " such numbers as text"
        )
    if isinstance(value, float):
        return (
            None
            if value == value and abs(value) != float("inf")
            else f"is {value}, which JSON has no number for"
        )
    return f"is {type(value).__name__}, which JSON cannot carry exactly"


def _json_kind(value: object) -> str:
    kinds = {
        list: "an array",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return kinds.get(type(value), type(value).__name__)
