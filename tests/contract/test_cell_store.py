"""The calls of a datastore (:mod:`cellfeed.store.api`): one suite, in process and over HTTP, over
both engines. It imports only the client, so that it runs where nothing else is installed
(``tests/integration/cli/test_client_alone.py``)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from cellfeed.store.api import CellStore, ErasedRow, ReadFrom
from cellfeed.store.cells.cell import ERASED_COLUMN, Outcome
from cellfeed.store.cells.token import Token
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import (
    BodyTooLarge,
    CellConflict,
    InvalidBody,
    InvalidColumn,
    InvalidLocation,
    InvalidRefKey,
    InvalidRequest,
    InvalidRowKey,
    RowErased,
    Trimmed,
    UnknownShard,
)
from cellfeed.store.limits import (
    BATCH_CELLS_MAX,
    BODY_BYTES_MAX,
    BODY_DEPTH_MAX,
    READ_KEYS_MAX,
    SCAN_CELLS_MAX,
)

if TYPE_CHECKING:
    from cellfeed.store.datastore import Datastore


@pytest.fixture
def row() -> UUID:
    return uuid4()


ODD_BODIES: list[dict[str, Any]] = [
    {},
    {"": ""},
    {'quote"and\\slash': "line\nbreak\x00nul"},
    {
        "emoji": "🚕",
        "combining": "e\u0301",
        "astral": "\U0010ffff",
        "bom": "\ufeff",
        "rtl": "\u202eabc",
    },
    {
        "min": -(1 << 63),
        "max": (1 << 64) - 1,
        "zero": 0,
        "float": 1e308,
        "tiny": 5e-324,
        "negative zero": -0.0,
    },
    {"nested": [[], {}, [None, True, False, {"a": [1.5, "x"]}]]},
    {"row_key": "not the key", "body": {"body": 1}, "cells": []},
    {"long": "x" * 200_000},
]

BAD_BODIES: list[object] = [
    None,
    [],
    "text",
    {"nan": math.nan},
    {"infinite": [math.inf]},
    {"too big": 1 << 64},
    {"too small": -(1 << 63) - 1},
    {"lone": "\ud800"},
    {"\udfff": 1},
    {1: "key is a number"},
    {"tuple": (1, 2)},
    {"set": {1}},
    {"bytes": b"x"},
    {"when": datetime(2020, 1, 1, tzinfo=UTC)},
]


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
def test_a_body_comes_back_as_it_was_put(store: CellStore, row: UUID, body: dict[str, Any]) -> None:
    result = store.put_cell(row, "BASE", 1, body)
    assert result.outcome is Outcome.STORED
    found = store.get_cell(row, "BASE", 1)
    assert found is not None
    assert found.body == body
    assert (found.row_key, found.column_name, found.ref_key, found.shard, found.added_id) == (
        row,
        "BASE",
        1,
        result.shard,
        result.added_id,
    )
    assert abs(found.created_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_put_again_with_the_same_body_exists_with_the_same_id(
    store: CellStore, row: UUID
) -> None:
    first = store.put_cell(row, "BASE", 1, {"b": 1, "a": 2})
    again = store.put_cell(str(row).upper(), "BASE", 1, {"a": 2, "b": 1})
    assert (again.outcome, again.shard, again.added_id) == (
        Outcome.EXISTS,
        first.shard,
        first.added_id,
    )


def test_a_result_has_the_token_of_the_cells_place(store: CellStore, row: UUID) -> None:
    stored = store.put_cell(row, "BASE", 1, {"a": 1})
    again, conflict, other = store.put_cells(
        [(row, "BASE", 1, {"a": 1}), (row, "BASE", 1, {"a": 2}), (row, "BASE", 2, {})]
    )

    assert stored.token is not None
    assert stored.token.partition(":")[2] == f"{stored.shard}.{stored.added_id}"
    assert again.token == stored.token
    assert conflict.token is None
    assert str(Token.of([stored, again, other])) == f"{stored.token}-{other.added_id}"


def test_another_body_for_the_same_key_is_a_conflict(store: CellStore, row: UUID) -> None:
    store.put_cell(row, "BASE", 1, {"a": 1})
    with pytest.raises(CellConflict, match="written once") as caught:
        store.put_cell(row, "BASE", 1, {"a": 2})
    assert caught.value.definite
    assert not caught.value.retriable
    found = store.get_cell(row, "BASE", 1)
    assert found is not None
    assert found.body == {"a": 1}


def test_the_latest_cell_has_the_highest_ref_key_in_any_order_of_puts(
    store: CellStore, row: UUID
) -> None:
    for ref_key in (5, -(1 << 63), (1 << 63) - 1, 0):
        store.put_cell(row, "BASE", ref_key, {"ref": ref_key})
    latest = store.get_cell_latest(row, "BASE")
    assert latest is not None
    assert latest.ref_key == (1 << 63) - 1
    assert [store.get_cell(row, "BASE", ref) is not None for ref in (5, -(1 << 63), 1)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "column",
    ["BASE", "a b+c%2F/d?e&f=g#h", "Ünïcode-🚕", "..", '"quoted"\\', "x" * 128, " ", "𝔘" * 32],
)
def test_a_column_name_is_told_from_every_other(store: CellStore, row: UUID, column: str) -> None:
    store.put_cell(row, column, 1, {"column": column})
    store.put_cell(
        row, column.swapcase() if column.swapcase() != column else "other", 1, {"column": "other"}
    )
    found = store.get_cell_latest(row, column)
    assert found is not None
    assert found.body == {"column": column}
    assert column in store.get_row(row)
    [batch] = store.get_cells([(row, column, 1)])
    assert batch == found


def test_a_row_is_the_latest_cell_of_each_column(store: CellStore, row: UUID) -> None:
    for column, ref_key in (("BASE", 1), ("BASE", 2), ("STATUS", 1)):
        store.put_cell(row, column, ref_key, {"at": ref_key})
    assert {column: cell.ref_key for column, cell in store.get_row(row).items()} == {
        "BASE": 2,
        "STATUS": 1,
    }
    assert store.get_row(uuid4()) == {}


def test_what_is_not_there_is_none(store: CellStore, row: UUID) -> None:
    assert store.get_cell(row, "BASE", 1) is None
    assert store.get_cell_latest(row, "BASE") is None
    assert store.get_cells([(row, "BASE", 1)]) == [None]
    assert store.get_cells_latest([(row, "BASE")]) == [None]
    assert store.get_rows([row]) == [{}]


def test_a_batch_gives_a_result_per_item_in_order(store: CellStore) -> None:
    a, b = uuid4(), uuid4()
    store.put_cell(a, "BASE", 1, {"n": 0})
    results = store.put_cells(
        [
            (a, "BASE", 1, {"n": 0}),
            (b, "BASE", 1, {"n": 1}),
            (a, "BASE", 1, {"n": 2}),
            ("no uuid", "BASE", 1, {}),
            (b, "BA\x00SE", 1, {}),
            (b, "BASE", "1", {}),  # type: ignore[list-item]
            (b, "BASE", 2, {"x": math.nan}),
            (b, "BASE", 1, {"n": 1}),
            (a, "BASE"),  # type: ignore[list-item]
            (b, "STATUS", 1, {"n": 3}),
        ]
    )
    outcomes = [result.outcome.value for result in results]
    assert outcomes == [
        "exists",
        "stored",
        "conflict",
        "failed",
        "failed",
        "failed",
        "failed",
        "exists",
        "failed",
        "stored",
    ]
    errors = [type(result.error) for result in results]
    none = type(None)
    assert errors == [
        none,
        none,
        CellConflict,
        InvalidRowKey,
        InvalidColumn,
        InvalidRefKey,
        InvalidBody,
        none,
        InvalidRequest,
        none,
    ]
    assert [result.shard for result in results[3:6]] == [None, store.shard_of(b), store.shard_of(b)]
    assert results[7].added_id == results[1].added_id


def test_a_batch_of_nothing_is_well(store: CellStore) -> None:
    assert store.put_cells([]) == []
    assert store.get_cells([]) == []
    assert store.get_cells_latest([]) == []
    assert store.get_rows([]) == []
    assert store.get_cells_for_shards({}) == {}


@pytest.mark.parametrize("count", [BATCH_CELLS_MAX, 2 * BATCH_CELLS_MAX + 1])
def test_a_batch_of_any_size_is_written_whole(store: CellStore, count: int) -> None:
    cells = [(uuid4(), "BASE", 1, {"n": n}) for n in range(count)]
    results = store.put_cells(cells)
    assert {result.outcome for result in results} == {Outcome.STORED}
    keys = [(key, column, ref_key) for key, column, ref_key, _ in cells]
    found = [
        cell
        for start in range(0, count, READ_KEYS_MAX)
        for cell in store.get_cells(keys[start : start + READ_KEYS_MAX])
    ]
    assert [cell and cell.body for cell in found] == [body for *_, body in cells]
    assert [cell and (cell.shard, cell.added_id) for cell in found] == [
        (result.shard, result.added_id) for result in results
    ]


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


def test_many_large_bodies_in_one_call_are_written(store: CellStore) -> None:
    cells = [(uuid4(), "BASE", 1, {"x": "y" * 900_000, "n": n}) for n in range(20)]
    assert {result.outcome for result in store.put_cells(cells)} == {Outcome.STORED}


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


def test_a_shards_log_is_read_from_any_location(store: CellStore) -> None:
    keys = [key for key in (uuid4() for _ in range(400)) if store.shard_of(key) == 3][:10]
    start = store.heads()[3].next_added_id
    store.put_cells([(key, "BASE", 1, {"n": n}) for n, key in enumerate(keys)])
    whole = store.get_cells_for_shard(3, start)
    assert [cell.row_key for cell in whole.cells] == keys
    assert [cell.added_id for cell in whole.cells] == list(range(start, start + len(keys)))
    assert whole.next_location == whole.head.watermark == start + len(keys)
    piece = store.get_cells_for_shard(3, start + 2, 3)
    assert piece.cells == whole.cells[2:5]
    assert piece.next_location == start + 5
    end = store.get_cells_for_shard(3, whole.next_location)
    assert (end.cells, end.next_location) == ([], whole.next_location)


def test_a_timestamp_is_a_location(store: CellStore) -> None:
    key = next(key for key in iter(uuid4, None) if store.shard_of(key) == 5)
    store.put_cell(key, "BASE", 1, {})
    cell = store.get_cell(key, "BASE", 1)
    assert cell is not None
    odd_zone = timezone(timedelta(hours=5, minutes=53, seconds=28))
    for moment in (cell.created_at, cell.created_at.astimezone(odd_zone)):
        found = store.get_cells_for_shard(5, moment)
        assert all(each.created_at >= cell.created_at for each in found.cells)
        assert cell in found.cells
    long_ago = store.get_cells_for_shard(5, datetime(1, 1, 1, tzinfo=UTC), 1)
    assert [each.added_id for each in long_ago.cells] == [0]
    far = store.get_cells_for_shard(5, datetime(9999, 12, 31, tzinfo=UTC))
    assert (far.cells, far.next_location) == ([], store.heads()[5].next_added_id)


def test_a_log_is_not_read_from_below_where_it_was_trimmed(
    store: CellStore, datastore: Datastore
) -> None:
    shard = 7
    keys = [key for key in (uuid4() for _ in range(600)) if store.shard_of(key) == shard][:10]
    results = store.put_cells([(key, "BASE", 1, {}) for key in keys])
    start = (results[0].added_id or 0) + 4
    while datastore.trim(shard, start) < start:
        pass
    assert store.heads()[shard].log_start == start
    for location in (0, start - 1):
        with pytest.raises(Trimmed, match=f"begins at {start}"):
            store.get_cells_for_shard(shard, location)
        with pytest.raises(Trimmed):
            store.get_cells_for_shards({3: 0, shard: location})
    assert [cell.row_key for cell in store.get_cells_for_shard(shard, start).cells] == keys[4:]
    assert (
        store.get_cells_for_shard(shard, datetime(1, 1, 1, tzinfo=UTC), 1).cells[0].added_id
        == start
    )
    assert [cell is None for cell in store.get_cells_latest([(key, "BASE") for key in keys])] == [
        True
    ] * 4 + [False] * 6
    assert store.put_cell(keys[0], "BASE", 1, {}).outcome is Outcome.STORED


def test_many_shards_are_read_at_once(store: CellStore) -> None:
    heads = store.heads()
    keys = [uuid4() for _ in range(100)]
    store.put_cells([(key, "BASE", 1, {}) for key in keys])
    pieces = store.get_cells_for_shards(
        {shard: head.next_added_id for shard, head in heads.items()}, limit=200
    )
    assert {cell.row_key for piece in pieces.values() for cell in piece.cells} == set(keys)
    for shard, piece in pieces.items():
        assert piece == store.get_cells_for_shard(shard, heads[shard].next_added_id, 200)


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


def test_both_tell_the_same_of_the_same_cells(
    datastore: Datastore, remote: CellStore, row: UUID
) -> None:
    for ref_key, body in enumerate(ODD_BODIES):
        datastore.put_cell(row, "BASE", ref_key, body)
    triples = [(row, "BASE", ref_key) for ref_key in range(len(ODD_BODIES) + 1)]
    assert remote.get_cells(triples) == datastore.get_cells(triples)
    assert remote.get_cell_latest(row, "BASE") == datastore.get_cell_latest(row, "BASE")
    assert remote.get_cells_latest([(row, "BASE"), (row, "X")]) == datastore.get_cells_latest(
        [(row, "BASE"), (row, "X")]
    )
    assert remote.get_row(row) == datastore.get_row(row)
    assert remote.get_rows([row]) == datastore.get_rows([row])
    assert remote.heads() == datastore.heads()
    assert (remote.name, remote.shards, remote.shard_of(row)) == (
        datastore.name,
        datastore.shards,
        datastore.shard_of(row),
    )
    shard = datastore.shard_of(row)
    starts = {each: head.log_start for each, head in datastore.heads().items()}  # some are trimmed
    assert remote.get_cells_for_shard(shard, starts[shard]) == datastore.get_cells_for_shard(
        shard, starts[shard]
    )
    assert remote.get_cells_for_shards(starts) == datastore.get_cells_for_shards(starts)


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


@pytest.mark.parametrize("read_from", ["master", "minion", Replica.MINION])
def test_without_minions_a_read_from_either_is_of_the_same_store(
    store: CellStore, row: UUID, read_from: ReadFrom
) -> None:
    for ref_key in (1, 2):
        store.put_cell(row, "BASE", ref_key, {"at": ref_key})
    first, latest = store.get_cell(row, "BASE", 1), store.get_cell_latest(row, "BASE")
    assert first is not None
    assert latest is not None
    assert store.get_cell(row, "BASE", 1, read_from=read_from) == first
    assert store.get_cell_latest(row, "BASE", read_from=read_from) == latest
    assert store.get_row(row, read_from=read_from) == {"BASE": latest}
    assert store.get_cells([(row, "BASE", 1), (row, "BASE", 3)], read_from=read_from) == [
        first,
        None,
    ]
    assert store.get_cells_latest([(row, "BASE"), (row, "STATUS")], read_from=read_from) == [
        latest,
        None,
    ]
    assert store.get_rows([row, uuid4()], read_from=read_from) == [{"BASE": latest}, {}]
    assert store.get_cell_latest(row, "STATUS", read_from=read_from) is None
    assert not first.stale
    assert not latest.stale


@pytest.mark.parametrize("read_from", ["MINION", "", "replica", None, 1])
def test_a_read_from_anywhere_else_is_refused_with_what_there_is(
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


def test_an_erased_row_is_found_by_no_key_refuses_puts_and_keeps_its_places_in_the_log(
    store: CellStore, row: UUID
) -> None:
    other = uuid4()
    places = [store.put_cell(row, "BASE", ref_key, {"secret": ref_key}) for ref_key in range(3)]
    store.put_cell(other, "BASE", 1, {"kept": 1})
    shard = store.shard_of(row)
    erased = store.erase_row(row)
    assert (erased.shard, erased.cells) == (shard, 3)
    assert store.get_row(row) == {}
    assert store.get_cell(row, "BASE", 1) is None
    assert store.get_cell_latest(row, "BASE") is None
    assert store.get_cells([(row, "BASE", 2), (other, "BASE", 1)])[0] is None
    assert [list(found) for found in store.get_rows([row, other])] == [[], ["BASE"]]
    location = places[0].added_id
    assert location is not None
    piece = [
        cell
        for cell in store.get_cells_for_shard(shard, location, 1_000).cells
        if cell.row_key == row
    ]
    assert [(cell.column_name, cell.ref_key, cell.erased) for cell in piece] == [
        *(("BASE", n, True) for n in range(3)),
        (ERASED_COLUMN, 0, True),
    ]
    assert [cell.added_id for cell in piece] == [
        *(each.added_id for each in places),
        erased.added_id,
    ]
    with pytest.raises(RowErased, match="it has no body"):
        _ = piece[0].body
    with pytest.raises(RowErased, match="put under another row key") as refused:
        store.put_cell(row, "BASE", 1, {"secret": 1})
    assert (refused.value.definite, refused.value.retriable, refused.value.http_status) == (
        True,
        False,
        410,
    )
    assert [
        result.outcome for result in store.put_cells([(row, "NEW", 1, {}), (other, "NEW", 1, {})])
    ] == [Outcome.FAILED, Outcome.STORED]
    assert store.erase_row(row) == ErasedRow(shard, erased.added_id, 0)


def test_the_column_that_tells_of_erasures_takes_no_puts(store: CellStore, row: UUID) -> None:
    with pytest.raises(InvalidColumn, match="marks erased rows"):
        store.put_cell(row, ERASED_COLUMN, 0, {})
    with pytest.raises(InvalidRowKey):
        store.erase_row("nobody")
