"""Codec 3: bodies that are encoded with dictionaries come back, and damaged ones are refused."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellfeed.store.cells import canonical_json, known_dictionaries
from cellfeed.store.cells.body_codec import (
    CODEC_JSON_DICTIONARY,
    CODEC_JSON_ZSTD,
    CODEC_MSGPACK_ZLIB,
    ERASED_BODY,
    decode_bodies,
    decode_body,
    decoded_bytes_bound,
    forget_dictionaries,
)
from cellfeed.store.cells.body_encoding import (
    DICTIONARY_BODY_BYTES_MAX,
    encode_bodies,
    encode_cells,
    encode_with,
)
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.errors import DataDamaged
from tests.support.dictionaries_known import encoded, first, second
from tests.support.rides import rides

pytestmark = pytest.mark.usefixtures("no_other_stores")


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.integers(-5, 5) | st.text(max_size=300)),
        max_size=20,
    )
)
def test_any_bodies_are_decoded_to_their_original(bodies: list[dict[str, object]]) -> None:
    dictionary = known_dictionaries.know(first())
    texts = [canonical_json.canonical(body) for body in bodies]
    for stored, text in zip(encode_with(dictionary, texts), texts, strict=True):
        assert stored[:5] == bytes([CODEC_JSON_DICTIONARY]) + first().dictionary_id.to_bytes(4)
        assert decode_body(stored) == text
        assert decoded_bytes_bound(stored) == len(text)


def test_only_short_bodies_of_columns_with_a_dictionary_use_it() -> None:
    base, status = rides(0, 30), rides(0, 30, "STATUS")
    long = [
        NewCell(
            b"\0" * 16, "BASE", 1, canonical_json.canonical({"x": "y" * DICTIONARY_BODY_BYTES_MAX})
        )
    ]
    cells = [*base[:10], *status, *long, *base[10:]]
    bodies = encode_cells(cells, {"BASE": known_dictionaries.know(first())})
    assert [body[0] for body in bodies] == [3] * 10 + [2] * 31 + [3] * 20
    assert [decode_body(body) for body in bodies] == [cell.body_json for cell in cells]
    assert {body[0] for body in encode_cells(cells, {})} == {CODEC_JSON_ZSTD}


def test_damaged_bodies_are_always_refused(
    source: dict[int, Dictionary],
) -> None:
    source[first().dictionary_id], source[second().dictionary_id] = first(), second()
    [stored] = encoded(count=1)
    text = decode_body(stored)
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 0x55
        with suppress(DataDamaged):
            assert decode_body(bytes(damaged)) == text
    for length in range(1, len(stored)):
        with pytest.raises(DataDamaged):
            decode_body(stored[:length])
    with pytest.raises(DataDamaged):
        decode_body(stored + b"\0")
    with pytest.raises(DataDamaged):
        decode_body(stored[:1] + second().dictionary_id.to_bytes(4) + stored[5:])


def mixed(source: dict[int, Dictionary], each: int) -> tuple[list[bytes], list[bytes]]:
    """Encoded bodies of every codec and of two dictionaries, one behind the other, and their
    values."""
    source[first().dictionary_id], source[second().dictionary_id] = first(), second()
    texts = [cell.body_json for cell in rides(0, each)]
    kinds = [
        encoded(first(), each),
        encoded(second(), each),
        encode_bodies(texts),
        encode_bodies(texts, CODEC_MSGPACK_ZLIB)[: each // 100],
        [ERASED_BODY] * each,
    ]
    stored = [
        body for number in range(each) for kind in kinds for body in kind[number : number + 1]
    ]
    return stored, [decode_body(body) for body in stored]


@pytest.mark.parametrize("each", [1, 10, 400])
def test_many_bodies_of_any_codecs_are_decoded_as_one_by_one(
    source: dict[int, Dictionary], each: int
) -> None:
    stored, texts = mixed(source, each)
    forget_dictionaries()
    assert decode_bodies(stored) == texts
    assert decode_bodies(encoded(first(), each)) == [cell.body_json for cell in rides(0, each)]
    assert decode_bodies([]) == []


def test_a_damaged_body_among_many_is_refused(
    source: dict[int, Dictionary],
) -> None:
    for many in (
        encoded(source.setdefault(first().dictionary_id, first()), 100),
        encode_bodies([cell.body_json for cell in rides(0, 100)]),
    ):
        texts = [decode_body(body) for body in many]
        for position in range(len(many[50])):
            damaged = bytearray(many[50])
            damaged[position] ^= 0x55
            with suppress(DataDamaged):
                assert decode_bodies([*many[:50], bytes(damaged), *many[51:]]) == texts
        for length in range(1, len(many[50])):
            with pytest.raises(DataDamaged):
                decode_bodies([*many[:50], many[50][:length], *many[51:]])


def test_among_many_a_body_without_a_checksum_is_not_believed(
    source: dict[int, Dictionary],
) -> None:
    source[first().dictionary_id] = first()
    many = encoded(first(), 100)
    bare = bytearray(many[50])
    bare[9] &= ~4  # the frame says now that nothing follows its content
    bare[-10] ^= 1
    with pytest.raises(DataDamaged):
        decode_bodies([*many[:50], bytes(bare), *many[51:]])


def test_threads_that_encode_and_decode_at_once_do_not_meet(source: dict[int, Dictionary]) -> None:
    source[first().dictionary_id], source[second().dictionary_id] = first(), second()
    expected = [cell.body_json for cell in rides(0, 50)]
    wrong: list[object] = []

    def work() -> None:
        for dictionary in (first(), second()) * 10:
            bodies = encode_with(
                known_dictionaries.known_dictionary(dictionary.dictionary_id), expected
            )
            if [decode_body(body) for body in bodies] != expected:
                wrong.append(dictionary)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
