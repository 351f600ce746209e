"""Bodies come back exactly as they were put, or are refused with the value and the rule."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import pytest
from hypothesis import example, given

from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_codec import CODEC_JSON_ZSTD, CODEC_MSGPACK_ZLIB, decode_body
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.errors import BodyTooLarge, DataDamaged, InvalidBody
from cellfeed.store.limits import BODY_BYTES_MAX, BODY_DEPTH_MAX
from tests.support.json_values import BODIES


def identical(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down (1 is not 1.0, True is not 1, -0.0 is not
    0.0)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return bool(a == b)


@given(BODIES)
@example(
    {
        "zero": -0.0,
        "one": 1.0,
        "int": 1,
        "big": 2**64 - 1,
        "small": -(2**63),
        "tiny": 5e-324,
        "huge": 1.7976931348623157e308,
    }
)
@example({"\x00": "\x7f\u2028", "": {}, "e\u0301": "\u00e9", "\U0001f695": [[], {}]})
def test_every_json_object_round_trips_exactly_through_both_codecs(body: dict[str, Any]) -> None:
    text = canonical_json.canonical(body)
    assert identical(canonical_json.parse(text), body)
    for codec in (CODEC_MSGPACK_ZLIB, CODEC_JSON_ZSTD):
        assert decode_body(encode_body(text, codec)) == text


@given(BODIES)
def test_every_spelling_of_a_body_has_one_canonical_form(body: dict[str, Any]) -> None:
    text = canonical_json.canonical(body)
    spelled = json.dumps(dict(reversed(body.items())), indent=1, ensure_ascii=True)
    assert canonical_json.canonical_from_json(spelled.encode()) == text
    assert canonical_json.canonical_from_json(text) == text


class Oddity(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"fare": float("nan")}, r"body\['fare'\] is nan"),
        ({"a": [0, {"b": float("-inf")}]}, r"body\['a'\]\[1\]\['b'\] is -inf"),
        ({"n": 2**64}, "beyond 64 bits"),
        ({"n": -(2**63) - 1}, "beyond 64 bits"),
        ({"n": [10**400]}, "beyond 64 bits"),
        ({"s": "\ud800"}, "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        ({1: "x"}, "int, not text"),
        ({"t": (1, 2)}, "tuple"),
        ({"t": {1, 2}}, "set"),
        ({"t": b"x"}, "bytes"),
        ({"t": datetime.date(2019, 3, 1)}, "date"),
        ({"t": decimal.Decimal("1.5")}, "Decimal"),
        ({"t": object()}, "object"),
        ([1], "not an object"),
        (None, "not an object"),
        ("{}", "not an object"),
    ],
)
def test_values_that_json_lacks_are_refused_by_name(body: object, reason: str) -> None:
    with pytest.raises(InvalidBody, match=reason):
        canonical_json.canonical(body)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1,"a":2}', "'a' twice"),
        (b'{"a":{"b":1,"c":2,"b":3}}', "'b' twice"),
        (b'{"\\u0061":1,"a":2}', "'a' twice"),
        (b'{"a":"\\"","b":1,"b":2}', "'b' twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "-Infinity"),
        (b'{"a":1e400}', "inf"),
        (b'{"a":18446744073709551616}', "beyond 64 bits"),
        (b'{"a":"\\ud800"}', "lone surrogate"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'\xef\xbb\xbf{"a":1}', "not JSON"),
        (b'{"a":1', "not JSON"),
        (b'{"a":1}}', "not JSON"),
        (b'{"a":01}', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b"", "not JSON"),
        (b"[1]", "an array"),
        (b"null", "null"),
        (b'"x"', "text"),
        (b"1", "a number"),
    ],
)
def test_bad_json_text_is_refused_with_the_rule(text: bytes, reason: str) -> None:
    with pytest.raises(InvalidBody, match=reason):
        canonical_json.canonical_from_json(text)


def nested(levels: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for level in range(levels - 1):
        body = {"a": body} if level % 2 else {"a": [], "b": body}
    return body


def test_nesting_is_bounded_and_the_bound_itself_is_allowed() -> None:
    assert canonical_json.parse(canonical_json.canonical(nested(BODY_DEPTH_MAX))) == nested(
        BODY_DEPTH_MAX
    )
    for levels in (BODY_DEPTH_MAX + 1, 300, 50_000):
        with pytest.raises(InvalidBody, match="nested deeper than 64"):
            canonical_json.canonical(nested(levels))
    with pytest.raises(InvalidBody, match="nested deeper than 64"):
        canonical_json.canonical_from_json(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    wide: dict[str, list[object]] = {str(n): [] for n in range(1000)}
    assert canonical_json.parse(canonical_json.canonical(wide)) == wide


def test_a_body_that_contains_itself_is_refused() -> None:
    body: dict[str, Any] = {}
    body["self"] = body
    with pytest.raises(InvalidBody, match="nested deeper"):
        canonical_json.canonical(body)


def test_a_body_has_at_most_the_limit_of_bytes_as_json() -> None:
    room = BODY_BYTES_MAX - len(b'{"a":""}')
    assert len(canonical_json.canonical({"a": "x" * room})) == BODY_BYTES_MAX
    with pytest.raises(BodyTooLarge, match="1048577 bytes"):
        canonical_json.canonical({"a": "x" * (room + 1)})
    with pytest.raises(BodyTooLarge):
        canonical_json.canonical_from_json(b'{"a":"' + b"x" * (5 * BODY_BYTES_MAX) + b'"}')


@pytest.mark.usefixtures("no_other_stores")
@pytest.mark.parametrize("codec", [CODEC_MSGPACK_ZLIB, CODEC_JSON_ZSTD])
def test_damaged_stored_bodies_are_an_error_and_never_another_body(codec: int) -> None:
    text = canonical_json.canonical({"driver": "x" * 50, "fare": 12.5, "zones": [1, 2, 3]})
    stored = encode_body(text, codec)
    for place in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[place] ^= 1 << bit
            try:
                assert decode_body(bytes(damaged)) == text
            except DataDamaged:
                continue
    for length in range(len(stored)):
        with pytest.raises(DataDamaged):
            decode_body(stored[:length])
    with pytest.raises(DataDamaged):
        decode_body(stored + b"\x00")


def test_a_body_that_inflates_beyond_the_limit_is_stopped() -> None:
    import zlib

    import zstandard

    for bomb in (
        b"\x01" + zlib.compress(b"\x00" * (64 << 20)),
        b"\x02" + zstandard.ZstdCompressor().compress(b"\x00" * (64 << 20)),
    ):
        with pytest.raises(DataDamaged):
            decode_body(bomb)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(DataDamaged, match="codec 9"):
        decode_body(b"\x09abc")
    with pytest.raises(ValueError, match="codec 9 does not exist"):
        encode_body(b"{}", 9)
