"""Views: one column, conditions on fields of the body, a projection; and cells as CloudEvents."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.cloud_events import CloudEventsFormat, envelope_of
from cellfeed.bridge.events.envelope import decode_envelope
from cellfeed.bridge.events.record_headers import LeaderEpochs, SharedHeaders, added_id_of
from cellfeed.bridge.events.views import Condition, View, ViewReader, project, same_json
from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.canonical_json import canonical
from cellfeed.store.cells.cell import ERASED_COLUMN, ERASED_JSON, StoredCell
from cellfeed.store.errors import DataDamaged, InvalidRequest

ROW_KEY = UUID("2f0a1c6e-3b7d-4f5a-9c8e-0123456789ab")
json_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.floats(-10, 10, allow_nan=False)
    | st.text(max_size=5)
)


def cell(added_id: int, body: dict[str, Any], column: str = "BASE") -> StoredCell:
    return StoredCell(
        added_id, ROW_KEY.bytes, column, 1, 1_700_000_000_123_456, encode_body(canonical(body))
    )


def shown(view: View, *bodies: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    cells, read = ViewReader(view).read([cell(number, body) for number, body in enumerate(bodies)])
    return [(each.added_id, json.loads(body)) for each, body in zip(cells, read, strict=True)]


def test_a_view_shows_a_cell_that_meets_all_conditions_under_its_added_id() -> None:
    conditions = [Condition("payment.kind", "=", value="card"), Condition("tip", "exists")]
    bodies: list[dict[str, Any]] = [
        {"payment": {"kind": "card"}},
        {"payment": {"kind": "card"}, "tip": None},
        {"payment": {"kind": "cash"}, "tip": 1},
        {"payment": "card", "tip": 1},
    ]
    assert [added_id for added_id, _ in shown(View(filter=conditions), *bodies)] == [1]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (Condition("a", "=", value=1), [0, 1]),
        (Condition("a", "!=", value=1), [2, 3, 4]),
        (Condition("a", "in", values=["1", True]), [2, 3]),
        (Condition("a", "exists"), [0, 1, 2, 3]),
    ],
)
def test_values_of_different_kinds_are_different(condition: Condition, wanted: list[int]) -> None:
    found = shown(View(filter=[condition]), {"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": True}, {})
    assert [added_id for added_id, _ in found] == wanted


@given(json_scalars, json_scalars)
def test_equality_is_that_of_json_texts_but_for_numbers(one: Any, other: Any) -> None:
    numbers = all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other)
    )
    assert same_json(one, other) == (
        one == other if numbers else json.dumps(one) == json.dumps(other)
    )


def test_a_projection_keeps_the_order_of_fields_and_leaves_missing_ones_out() -> None:
    view = View(fields=["fare.cents", "vendor", "nothing.here"])
    assert shown(view, {"fare": {"cents": 5, "tip": 1}, "vendor": "CMT", "x": [1]}) == [
        (0, {"fare": {"cents": 5}, "vendor": "CMT"})
    ]
    assert project({"a": None}, [("a", "b")]) == {}


def test_a_column_is_a_view() -> None:
    cells, _ = ViewReader(View(column="STATUS")).read([cell(0, {}), cell(1, {"s": 1}, "STATUS")])
    assert [each.added_id for each in cells] == [1]
    assert View().shows_all
    assert not View(column="STATUS").shows_all


@pytest.mark.parametrize(
    "view",
    [
        View(filter=[Condition("a..b", "exists")]),
        View(filter=[Condition("a", "=")]),
        View(filter=[Condition("a", "exists", value=1)]),
        View(filter=[Condition("a", "in", value=1)]),
        View(fields=["a", "a.b"]),
        View(fields=["a", "a"]),
        View(column=""),
    ],
)
def test_an_invalid_view_declaration_is_refused(view: View) -> None:
    with pytest.raises(InvalidRequest):
        view.check()


def test_a_condition_on_null_matches_null() -> None:
    condition = msgspec.json.decode(b'{"field":"a","op":"=","value":null}', type=Condition)
    assert [added_id for added_id, _ in shown(View(filter=[condition]), {"a": None}, {})] == [0]


def test_a_cloud_event_names_the_cell_and_carries_its_envelope() -> None:
    body = {"data": '"},"data":', "n": 1}
    stored = cell(17, body, 'odd "column"')
    value = CloudEventsFormat("trips").encode(3, stored, str(ROW_KEY).encode(), canonical(body))
    event = json.loads(value)
    assert {
        name: event[name] for name in ("specversion", "id", "source", "type", "subject", "time")
    } == {
        "specversion": "1.0",
        "id": "3/17",
        "source": "/cellfeed/trips",
        "type": 'cellfeed.cell.odd "column"',
        "subject": str(ROW_KEY),
        "time": "2023-11-14T22:13:20.123456Z",
    }
    decoded = decode_envelope(envelope_of(value))
    assert (decoded.added_id, decoded.row_key, decoded.body_json) == (
        17,
        ROW_KEY.bytes,
        canonical(body),
    )
    with pytest.raises(ValueError, match="no CloudEvent"):
        envelope_of(b"{}")


def test_headers_name_the_cell_and_the_epoch_under_which_it_was_written() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 10), (5, 20)], 5)
    assert [epochs.of(added_id) for added_id in (0, 9, 10, 19, 20, 999)] == [0, 0, 2, 2, 5, 5]
    [shared] = SharedHeaders([]).of([cell(19, {})], epochs)
    assert shared == [("column_name", b"BASE"), ("ref_key", b"1"), ("leader_epoch", b"2")]
    assert added_id_of([("added_id", b"19"), *shared]) == 19
    assert added_id_of([("other", b"1")]) is None
    with pytest.raises(DataDamaged):
        added_id_of([("added_id", b"-1")])


@pytest.mark.parametrize(
    ("view", "added_ids"),
    [
        (View(), [0, 1, 2]),
        (View("BASE"), [0, 1, 2]),
        (View("NOTES"), [2]),
        (View(filter=[Condition("a", "exists")]), [1, 2]),
        (View(filter=[Condition("a", "!=", value=7)]), [1, 2]),
        (View(fields=["a"]), [0, 1, 2]),
    ],
)
def test_every_view_shows_an_erasure_and_no_condition_matches_an_erased_body(
    view: View, added_ids: list[int]
) -> None:
    cells = [
        cell(0, {})._replace(body=ERASED_BODY),
        cell(1, {"a": 1}),
        cell(2, {}, ERASED_COLUMN)._replace(body=ERASED_BODY),
    ]
    shown_cells, bodies = ViewReader(view).read(cells)
    assert [each.added_id for each in shown_cells] == added_ids
    assert [body for each, body in zip(shown_cells, bodies, strict=True) if each.added_id != 1] == [
        ERASED_JSON
    ] * (len(added_ids) - (1 in added_ids))
