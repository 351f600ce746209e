"""Nothing of a single row key comes into a dictionary: neither a value, nor a member's name, nor a
row's combination of them."""

from __future__ import annotations

import json
import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellfeed.store.cells import canonical_json
from cellfeed.store.dictionaries.blanking import SHARED_ROW_KEYS_MIN, blanked
from cellfeed.store.dictionaries.training import SAMPLES_MIN, NotWorthIt, Sample, train
from tests.support.rides import ZONES, ride, rider, rides

ROWS = 600


def key(number: int) -> bytes:
    return UUID(int=number).bytes


def samples(bodies: list[dict[str, Any]]) -> list[Sample]:
    return [
        Sample(key(number), canonical_json.canonical(body)) for number, body in enumerate(bodies)
    ]


def of_rides(count: int) -> list[Sample]:
    return [Sample(cell.row_key, cell.body_json) for cell in rides(0, count)]


def test_only_values_that_many_row_keys_share_stay_readable_and_the_others_keep_their_shape() -> (
    None
):
    copies = [json.loads(copy) for copy in blanked(of_rides(ROWS))]
    assert {copy["pickup_zone"] for copy in copies} == set(ZONES)
    assert {copy["payment"] for copy in copies} == {"cash", "credit card"}
    assert not {copy["rider"] for copy in copies} & {rider(number) for number in range(ROWS)}
    assert {len(copy["rider"]) for copy in copies} == {32}
    assert {len(str(copy["phone"])) for copy in copies} == {14}


def test_how_many_share_a_value_is_looked_at_in_all_samples_where_only_some_are_copied() -> None:
    bodies = [
        {"rider": "alice" if number % 8 == 0 and number < 240 else None, "n": number}
        for number in range(800)
    ]
    copies = [json.loads(copy) for copy in blanked(samples(bodies), every=8)]
    assert len(copies) == 100
    named = {copy["rider"] for copy in copies}
    assert len(named) > 2, "thirty of 800 row keys share a value, and of those copied 30 of 100"
    assert "alice" not in named


def test_values_of_one_row_stay_together_in_no_copy_more_often_than_by_chance() -> None:
    # 600 rows with a pair each of 25 by 24 values, every pair once: as much in common as there can
    # be, and each pair is one row's own.
    bodies = [
        {"a": f"left{number % 25:02}", "b": f"right{number // 25:02}", "n": number}
        for number in range(ROWS)
    ]
    copies = [json.loads(copy) for copy in blanked(samples(bodies), random.Random(7))]
    same = sum(
        (copy["a"], copy["b"]) == (body["a"], body["b"])
        for copy, body in zip(copies, bodies, strict=True)
    )
    assert same < 30  # one or so by chance


def test_the_row_key_with_most_rows_is_no_more_public_than_the_others() -> None:
    bodies = [
        {"driver": "d-popular" if number % 5 == 0 else f"d-{number:07}", "city": "Berlin"}
        for number in range(ROWS)
    ]
    copies = b"".join(blanked(samples(bodies)))
    assert b"popular" not in copies
    assert copies.count(b'"city":"Berlin"') == ROWS


def test_a_value_of_one_row_key_is_not_shared_however_many_cells_it_has() -> None:
    body = canonical_json.canonical({"name": "Ada Lovelace"})
    others = samples([{"name": "nobody"} for _ in range(ROWS)])
    assert b"Lovelace" not in b"".join(
        blanked([*others, *[Sample(key(99_999), body)] * (5 * SHARED_ROW_KEYS_MIN)])
    )


def test_a_members_name_that_few_have_is_left_out_with_its_value() -> None:
    bodies: list[dict[str, Any]] = [
        {"by": {f"user{number}@example.com": {"ok": True}}, "all": 1} for number in range(ROWS)
    ]
    assert set(blanked(samples(bodies))) == {b'{"all":1,"by":{}}'}


def test_lists_deep_objects_and_odd_numbers_are_blanked_too() -> None:
    bodies = [
        {
            "l": [number + 0.25, {"x": f"secret-{number:05}"}, [None, True]],
            "f": 1e300 / (number + 1),
            "z": -number,
        }
        for number in range(ROWS)
    ]
    copies = blanked(samples(bodies))
    assert len(copies) == ROWS
    assert not [number for number in range(ROWS) if b"secret-%05d" % number in b"".join(copies)]
    assert {json.dumps(json.loads(copy)["l"][2]) for copy in copies} == {"[null, true]"}


PLANTED = st.text(
    alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789äöüß漢字",
    min_size=12,
    max_size=40,
)


@settings(max_examples=8)
@given(
    planted=st.lists(PLANTED, min_size=3, max_size=3, unique=True),
    times=st.integers(1, SHARED_ROW_KEYS_MIN - 1),
)
def test_a_trained_dictionary_has_no_planted_value_of_few_row_keys(
    planted: list[str], times: int
) -> None:
    text, name, in_list = planted
    found = of_rides(ROWS)
    for number in range(times):
        body = json.loads(ride(number).body_json) | {"payment": text, name: 1, "notes": [in_list]}
        found[number * 3] = Sample(key(number), canonical_json.canonical(body))
    dictionary = train("BASE", found).dictionary
    for value in planted:
        assert value.encode() not in dictionary.content
    assert b"credit card" in dictionary.content


def test_a_dictionary_has_no_rider_of_any_row() -> None:
    content = train("BASE", of_rides(1_500)).dictionary.content
    assert not [number for number in range(1_500) if rider(number).encode() in content]
    assert not [
        number for number in range(1_500) if str(49_170_000_000_000 + number).encode() in content
    ]


def of_drivers(count: int, fields: int = 2) -> tuple[list[Sample], list[tuple[str, str]]]:
    """Trips of a small fleet, each driver with as many as the others; and the names and telephone
    numbers."""
    chance = random.Random(count)
    drivers = [
        (
            f"Surname{chance.randrange(10**6):06} {number}",
            f"+49 30 {chance.randrange(10**8, 10**9)}",
        )
        for number in range(count)
    ]
    found = []
    for number, cell in enumerate(rides(0, 2_000)):
        told = dict(zip(("driver", "phone")[:fields], drivers[number % count], strict=False))
        found.append(
            Sample(cell.row_key, canonical_json.canonical(json.loads(cell.body_json) | told))
        )
    return found, drivers


@pytest.mark.parametrize(("count", "fields"), [(49, 2), (49, 1), (12, 1), (5, 2), (2, 2)])
def test_no_driver_of_a_small_fleet_is_in_a_dictionary_though_each_has_many_trips(
    count: int, fields: int
) -> None:
    found, drivers = of_drivers(count, fields)
    content = train("BASE", found).dictionary.content
    assert not [
        value
        for driver in drivers
        for value in driver
        if value.encode() in content or value[:13].encode() in content
    ]
    assert b"credit card" in content


def test_numbers_of_two_digits_stay_on_a_path_of_many_values() -> None:
    bodies = [{"tip": 0.0 if number % 2 else number / 7} for number in range(ROWS)]
    copies = [json.loads(copy)["tip"] for copy in blanked(samples(bodies))]
    assert copies.count(0.0) >= ROWS // 2


def test_too_few_bodies_or_row_keys_train_nothing() -> None:
    with pytest.raises(NotWorthIt, match=f"{SAMPLES_MIN - 1} bodies"):
        train("BASE", of_rides(SAMPLES_MIN - 1))
    with pytest.raises(NotWorthIt, match="of 1 row keys"):
        train("BASE", [Sample(key(0), ride(number).body_json) for number in range(ROWS)])


def test_bodies_that_share_nothing_make_no_dictionary() -> None:
    noise = random.Random(3)
    with pytest.raises(NotWorthIt):
        train("BASE", samples([{str(noise.random()): noise.random()} for _ in range(ROWS)]))
