"""Inferred types: only where every value of the whole file keeps its number, and keys do not change
with them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.loading.csv_file import infer_types
from cellfeed.loading.field_types import CONVERT, Inference
from cellfeed.loading.load import load_file
from cellfeed.loading.row_keys import row_key_from
from cellfeed.loading.spec import LoadSpec
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest


def inferred(*values: str) -> str:
    inference = Inference(["a"])
    for value in values:
        inference.add([[value]])
    return inference.types().get("a", "text")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("1", "-2", "0", ""), "int"),
        (("18446744073709551615", "-9223372036854775808"), "int"),
        (("18446744073709551616",), "text"),
        (("007",), "text"),
        (("+1",), "text"),
        (("-0", "1"), "float"),
        ((" 1",), "text"),
        (("1_000",), "text"),
        (("1", "2.50"), "float"),
        (("1e3", "-0.5E-7"), "float"),
        (("9007199254740993", "0.5"), "text"),
        (("9007199254740992", "0.5"), "float"),
        (("18014398509481984", "0.5"), "text"),
        (("0.1234567890123456789",), "text"),
        (("1e400",), "text"),
        (("1e-400",), "text"),
        (("nan",), "text"),
        (("inf",), "text"),
        (("true", "False", "TRUE"), "bool"),
        (("true", "1"), "text"),
        (("1", "x"), "text"),
        (("", ""), "text"),
        (("٣",), "text"),
    ],
)
def test_a_type_is_inferred_only_where_every_value_keeps_its_number(
    values: tuple[str, ...], kind: str
) -> None:
    assert inferred(*values) == kind


@given(st.text(alphabet="0123456789.-+eE", max_size=24))
def test_a_number_that_is_inferred_is_the_number_of_the_text(text: str) -> None:
    from decimal import Decimal

    kind = inferred(text)
    if kind != "text":
        assert Decimal(repr(CONVERT[kind](text))) == Decimal(text)


def test_one_value_at_the_end_of_a_file_makes_its_field_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 9_000 + "1,x\n")
    assert infer_types(path) == {"a": "int"}


def test_unreadable_lines_do_not_influence_types(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\nx\n3,4\n")
    assert infer_types(path) == {"a": "int", "b": "int"}


def bodies(datastore: Datastore, key: uuid.UUID) -> dict[str, object]:
    cell = datastore.get_cell(key, "BASE", 1)
    assert cell is not None
    return cell.body


def test_a_load_infers_types_and_makes_keys_of_the_text(
    datastore: Datastore, tmp_path: Path
) -> None:
    path = tmp_path / "trips.csv"
    path.write_text("name,total,tip\nx,12.50,1\ny,3,\n")
    spec = LoadSpec("BASE", row_key_from=["name", "total"])
    assert load_file(path, datastore, spec).stored == 2
    assert bodies(datastore, row_key_from({"n": "x", "t": "12.50"}, ["n", "t"])) == {
        "name": "x",
        "total": 12.5,
        "tip": 1,
    }
    assert bodies(datastore, row_key_from({"n": "y", "t": "3"}, ["n", "t"])) == {
        "name": "y",
        "total": 3.0,
        "tip": None,
    }


def test_a_type_that_is_named_counts_for_the_key_as_before(
    datastore: Datastore, tmp_path: Path
) -> None:
    path = tmp_path / "trips.csv"
    path.write_text("total\n12.50\n")
    spec = LoadSpec("BASE", row_key_from=["total"], field_types={"total": "float"})
    load_file(path, datastore, spec)
    assert bodies(datastore, row_key_from({"t": 12.5}, ["t"])) == {"total": 12.5}


def test_all_text_infers_nothing(datastore: Datastore, tmp_path: Path) -> None:
    path, key = tmp_path / "trips.csv", uuid.uuid4()
    path.write_text(f"id,n\n{key},1\n")
    load_file(path, datastore, LoadSpec("BASE", row_key="id", all_text=True))
    assert bodies(datastore, key)["n"] == "1"


@pytest.mark.parametrize("suffix", ["csv", "ndjson", "parquet"])
def test_an_unknown_key_field_is_refused_with_the_fields_of_the_file(
    datastore: Datastore, tmp_path: Path, suffix: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, row = tmp_path / f"trips.{suffix}", {"trip_id": str(uuid.uuid4()), "fare": 1}
    if suffix == "csv":
        path.write_text(f"trip_id,fare\n{row['trip_id']},1\n")
    elif suffix == "ndjson":
        path.write_text(json.dumps(row) + "\n" + json.dumps(row))
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    for spec in (
        LoadSpec("BASE", row_key="tripid"),
        LoadSpec("BASE", row_key_from=["fare", "tripid"]),
        LoadSpec("BASE", row_key="trip_id", ref_key="tripid"),
    ):
        with pytest.raises(InvalidRequest, match=r"no field .tripid., which .*trip_id"):
            load_file(path, datastore, spec)
    with pytest.raises(InvalidRequest, match="Did you mean 'trip_id'"):
        load_file(path, datastore, LoadSpec("BASE", row_key="tripid"))
