"""A process's knowledge of dictionaries: each is looked up once, and an id means one content."""

from __future__ import annotations

import threading

import pytest

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import (
    decode_body,
)
from cellfeed.store.cells.dictionary import Dictionary, from_line, id_of, to_line
from cellfeed.store.errors import DataDamaged, InvalidRequest, ProtectData, StorageUnavailable
from tests.support.dictionaries_known import encoded, first, second
from tests.support.rides import rides

pytestmark = pytest.mark.usefixtures("no_other_stores")


def test_a_dictionary_that_was_never_seen_is_looked_up_once(source: dict[int, Dictionary]) -> None:
    bodies, asked = encoded(), []

    def find(dictionary_id: int) -> Dictionary | None:
        asked.append(dictionary_id)
        return first()

    known_dictionaries.add_source(find)
    try:
        readers = [
            threading.Thread(target=lambda: [decode_body(body) for body in bodies])
            for _ in range(4)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert [decode_body(body) for body in bodies] == [cell.body_json for cell in rides(0, 20)]
    finally:
        known_dictionaries.remove_source(find)
    assert asked == [first().dictionary_id]


def test_an_unknown_dictionary_is_named(source: dict[int, Dictionary]) -> None:
    with pytest.raises(
        DataDamaged, match=f"names dictionary {first().name}, which no open store has"
    ):
        decode_body(encoded()[0])
    source[first().dictionary_id] = first()
    assert decode_body(encoded()[0]) == rides(0, 1)[0].body_json


def test_a_store_that_does_not_answer_is_not_taken_for_one_that_lost_its_dictionary(
    source: dict[int, Dictionary],
) -> None:
    def silent(_: int) -> Dictionary | None:
        raise StorageUnavailable("away")

    known_dictionaries.add_source(silent)
    try:
        with pytest.raises(
            StorageUnavailable,
            match=f"dictionary {first().name} .* cannot be looked up just now: away",
        ):
            decode_body(encoded()[0])
        source[first().dictionary_id] = first()
        assert decode_body(encoded()[0]) == rides(0, 1)[0].body_json
    finally:
        known_dictionaries.remove_source(silent)


def test_an_id_means_one_content() -> None:
    assert id_of(first().sha256) == first().dictionary_id != second().dictionary_id
    known_dictionaries.know(first())
    twin = Dictionary("BASE", second().content, 0, 0)
    twin.__dict__["sha256"] = (
        first().sha256
    )  # two contents with one id, which nobody can make in a test's time
    with pytest.raises(ProtectData, match="two dictionaries have the id"):
        known_dictionaries.know(twin)


def test_an_exported_line_is_imported_again_and_a_damaged_one_is_refused() -> None:
    line = to_line(first())
    assert from_line(line) == first()
    for damaged in (
        line[:-5],
        line.replace(first().name.encode(), b"00000000"),
        b"{}",
        line.replace(b'content":"', b'content":"AAAA'),
    ):
        with pytest.raises(InvalidRequest):
            from_line(damaged)
