"""The parts of a query of an index: its values, its cursor, and the ids that it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from cellfeed.store.engines.contract.index_values import Condition, Entry
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.checked_request import checked_request
from cellfeed.store.indexes.conditions import meets
from cellfeed.store.indexes.cursor import cursor_text
from cellfeed.store.indexes.definition import FIELDS_MAX
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.request import IndexRequest, check_wait_for
from cellfeed.store.indexes.values import STRING_BYTES_MAX, encode_given

DEFINITION = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields:"
    " [{field: driver, type: string}, {field: fare, type: int}]}]}"
)
PLACE = (5, b"k" * 16)


def request(version: int = 3, **changes: Any) -> IndexRequest:
    asked: dict[str, Any] = {
        "shard_value": ["ann", "bob"],
        "where": [("fare", ">", 2)],
        "order_by": "fare",
        "descending": False,
        "limit": 10,
        "cursor": None,
        "fields": None,
        "columns": None,
        "mode": "fresh",
        "read_from": Replica.MASTER,
    }
    return checked_request(DEFINITION, version, **(asked | changes))


def test_a_cursor_is_valid_only_for_its_version() -> None:
    cursor = cursor_text(request(), 3, PLACE)
    assert request(cursor=cursor).after == PLACE
    for version in (2, 4):
        with pytest.raises(InvalidRequest, match="begin again without it"):
            request(version, cursor=cursor)


def test_a_cursor_goes_with_its_shard_values_in_any_order_and_with_no_others() -> None:
    cursor = cursor_text(request(), 3, PLACE)
    assert request(shard_value=["bob", "ann", "ann"], cursor=cursor).after == PLACE
    with pytest.raises(InvalidRequest, match="of another query"):
        request(shard_value=["ann"], cursor=cursor)


def test_a_wait_for_two_ids_of_a_shard_awaits_the_later_one() -> None:
    for pairs in ([(1, 9), (1, 4), (0, 2)], [(1, 4), (0, 2), (1, 9)]):
        assert check_wait_for(pairs, 2) == {0: 2, 1: 9}


@pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">=", "in"])
def test_a_missing_field_meets_no_condition(operator: str) -> None:
    missing = Entry(b"k" * 16, True, (1,), (b"ann", None))
    assert not meets(missing, Condition(1, operator, (5,)))


def test_the_length_of_a_string_counts_in_bytes() -> None:
    fits = "é" * (STRING_BYTES_MAX // 2)
    assert encode_given("driver", "string", fits) == fits.encode()
    with pytest.raises(InvalidRequest, match="is not a value of type string"):
        encode_given("driver", "string", fits + "a")


def test_fields_of_all_columns_together_are_limited() -> None:
    def columns(fields: int) -> str:
        half = [
            ", ".join(f"{{field: {name}{number}, type: int}}" for number in range(count))
            for name, count in (("a", fields // 2), ("b", fields - fields // 2))
        ]
        return (
            "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields:"
            f" [{half[0]}]}}, {{column_name: STATUS, fields: [{half[1]}]}}]}}"
        )

    assert len(parse_definition(columns(FIELDS_MAX)).fields) == FIELDS_MAX
    with pytest.raises(InvalidRequest, match=f"at most {FIELDS_MAX} are allowed"):
        parse_definition(columns(FIELDS_MAX + 1))
