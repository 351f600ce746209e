"""Calls that every store refuses with a reason, in process and over HTTP."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from cellfeed.store.api import CellStore
from cellfeed.store.errors import (
    BodyTooLarge,
    InvalidBody,
    InvalidColumn,
    InvalidLocation,
    InvalidRefKey,
    InvalidRequest,
    InvalidRowKey,
    UnknownShard,
)
from cellfeed.store.limits import BODY_BYTES_MAX, BODY_DEPTH_MAX, READ_KEYS_MAX, SCAN_CELLS_MAX
from tests.support.odd_bodies import BAD_BODIES

if TYPE_CHECKING:
    from cellfeed.store.datastore import Datastore


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_body_that_json_cannot_carry_is_refused(store: CellStore, row: UUID, body: Any) -> None:
    with pytest.raises(InvalidBody) as caught:
        store.put_cell(row, "BASE", 1, body)
    assert caught.value.definite
    assert store.get_row(row) == {}


def test_a_body_at_its_limits_is_kept_and_one_beyond_is_refused(
    store: CellStore, row: UUID
) -> None:
    overhead = len('{"x":""}')
    store.put_cell(row, "BASE", 1, {"x": "y" * (BODY_BYTES_MAX - overhead)})
    with pytest.raises(BodyTooLarge):
        store.put_cell(row, "BASE", 2, {"x": "y" * (BODY_BYTES_MAX - overhead + 1)})
    deep: dict[str, Any] = {}
    for _ in range(BODY_DEPTH_MAX - 1):
        deep = {"d": deep}
    store.put_cell(row, "DEEP", 1, deep)
    with pytest.raises(InvalidBody, match="deeper"):
        store.put_cell(row, "DEEP", 2, {"d": deep})


@pytest.mark.parametrize(
    "row_key",
    [
        "",
        "x",
        7,
        None,
        b"short",
        "0" * 32,
        "{00000000-0000-0000-0000-000000000000}",
        "0000000-00000-0000-0000-000000000000",
    ],
)
def test_a_row_key_that_is_no_uuid_is_refused(store: CellStore, row_key: Any) -> None:
    for call in (
        lambda: store.put_cell(row_key, "BASE", 1, {}),
        lambda: store.get_cell(row_key, "BASE", 1),
        lambda: store.get_cell_latest(row_key, "BASE"),
        lambda: store.get_row(row_key),
        lambda: store.get_cells([(row_key, "BASE", 1)]),
        lambda: store.get_cells_latest([(row_key, "BASE")]),
        lambda: store.get_rows([row_key]),
        lambda: store.shard_of(row_key),
    ):
        with pytest.raises(InvalidRowKey):
            call()


@pytest.mark.parametrize(
    "column", ["", "x" * 129, "𝔘" * 33, "tab\t", "nul\x00", "\x7f", "lone \ud800", 7, None, b"BASE"]
)
def test_a_column_name_that_breaks_a_rule_is_refused(
    store: CellStore, row: UUID, column: Any
) -> None:
    for call in (
        lambda: store.put_cell(row, column, 1, {}),
        lambda: store.get_cell(row, column, 1),
        lambda: store.get_cell_latest(row, column),
    ):
        with pytest.raises(InvalidColumn):
            call()


@pytest.mark.parametrize("ref_key", [1 << 63, -(1 << 63) - 1, 1.0, "1", None, True])
def test_a_ref_key_that_is_no_signed_64_bit_integer_is_refused(
    store: CellStore, row: UUID, ref_key: Any
) -> None:
    for call in (
        lambda: store.put_cell(row, "BASE", ref_key, {}),
        lambda: store.get_cell(row, "BASE", ref_key),
    ):
        with pytest.raises(InvalidRefKey):
            call()


def test_bad_locations_limits_and_shards_are_refused(store: CellStore) -> None:
    for location in (-1, 1 << 47, 1.5, "0", None, datetime(2020, 1, 1)):  # noqa: DTZ001
        with pytest.raises(InvalidLocation):
            store.get_cells_for_shard(0, location)  # type: ignore[arg-type]
    for limit in (0, -1, SCAN_CELLS_MAX + 1, 1.5, True):
        with pytest.raises(InvalidRequest):
            store.get_cells_for_shard(0, 0, limit)  # type: ignore[arg-type]
    for shard in (-1, 16, "0", None, True, 1.0):
        with pytest.raises(UnknownShard):
            store.get_cells_for_shard(shard)  # type: ignore[arg-type]
        with pytest.raises(UnknownShard):
            store.get_cells_for_shards({shard: 0})  # type: ignore[dict-item]


def test_a_read_of_too_many_keys_is_refused(store: CellStore, row: UUID) -> None:
    with pytest.raises(InvalidRequest, match=str(READ_KEYS_MAX)):
        store.get_cells([(row, "BASE", 1)] * (READ_KEYS_MAX + 1))
    with pytest.raises(InvalidRequest, match=str(READ_KEYS_MAX)):
        store.get_rows([row] * (READ_KEYS_MAX + 1))


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.put_cell(UUID(int=1), "BASE", 1, {"n": "another"}),
        lambda s: s.put_cell("x", "BASE", 1, {}),
        lambda s: s.put_cell(UUID(int=1), "", 1, {}),
        lambda s: s.put_cell(UUID(int=1), "B", 1, {"n": math.nan}),
        lambda s: s.get_cells_for_shard(99),
        lambda s: s.get_cells_for_shard(0, limit=0),
    ],
)
def test_both_refuse_in_the_same_words(datastore: Datastore, remote: CellStore, call: Any) -> None:
    datastore.put_cell(UUID(int=1), "BASE", 1, {"n": "first"})
    messages = []
    for store in (datastore, remote):
        with pytest.raises(Exception) as caught:
            call(store)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("read_from", ["MINION", "", "replica", None, 1])
def test_a_read_from_anywhere_else_is_refused_with_the_choices(
    store: CellStore, row: UUID, read_from: Any
) -> None:
    reads = (
        lambda: store.get_cell(row, "BASE", 1, read_from=read_from),
        lambda: store.get_cell_latest(row, "BASE", read_from=read_from),
        lambda: store.get_row(row, read_from=read_from),
        lambda: store.get_cells([(row, "BASE", 1)], read_from=read_from),
        lambda: store.get_cells_latest([(row, "BASE")], read_from=read_from),
        lambda: store.get_rows([row], read_from=read_from),
    )
    for read in reads:
        with pytest.raises(InvalidRequest, match="'master' or 'minion'"):
            read()
