"""Definitions in the article's form, and the messages about wrong ones, with the line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.definition import IndexDefinition
from cellfeed.store.indexes.definition_file import load_definition, parse_definition

GOOD = """\
table: driver_partner_index
datastore: trips
column_defs:
  - column_name: BASE
    fields:
      - { field: driver_partner_uuid, type: UUID }
      - { field: city_uuid, type: UUID }
      - { field: trip.created_at, type: datetime, name: created }
  - column_name: FARE
    fields:
      - { field: total, type: decimal }
"""


def test_a_definition_has_the_articles_form(tmp_path: Path) -> None:
    file = tmp_path / "index.yaml"
    file.write_text(GOOD)
    definition = load_definition(file)
    assert [field.name for field in definition.fields] == [
        "driver_partner_uuid",
        "city_uuid",
        "created",
        "total",
    ]
    assert definition.columns == ["BASE", "FARE"]
    assert definition.shard_field.type == "uuid"
    assert definition.fields[2].path == ["trip", "created_at"]
    assert definition.digest == parse_definition(GOOD.replace("UUID", "uuid")).digest
    assert definition.digest != parse_definition(GOOD.replace("decimal", "float")).digest


@pytest.mark.parametrize(
    ("change", "line", "told"),
    [
        (("table: driver_partner_index", "table: 1index"), 1, "index name"),
        (("datastore: trips", "datastore: Trips"), 2, "datastore name"),
        (("type: datetime", "type: time"), 8, "type 'time' is not known"),
        (("field: city_uuid", "field: city..uuid"), 7, "is no path"),
        (("field: city_uuid", "feild: city_uuid"), 7, "has no 'feild'"),
        (("column_name: FARE", "column_name: BASE"), 4, "'BASE' is given twice"),
        (("field: total", "field: city_uuid"), 4, "'city_uuid' is given twice"),
        (("    fields:\n      - { field: total, type: decimal }\n", ""), 9, "lacks fields"),
        (("column_defs:", "columns:"), 3, "has no 'columns'"),
        (("{ field: total, type: decimal }", "total"), 11, "is a mapping"),
        (("datastore: trips", "datastore: trips\ntable: other"), 3, "given twice"),
        (("{ field: total, type: decimal }", "{ field: total"), 12, "not YAML"),
    ],
)
def test_a_fault_in_a_definition_is_reported_with_its_line(
    change: tuple[str, str], line: int, told: str
) -> None:
    with pytest.raises(InvalidRequest, match=rf"^here\.yaml:{line}: .*{told}"):
        parse_definition(GOOD.replace(*change), "here.yaml")


@pytest.mark.parametrize("text", ["", "[]", "column_defs: []\ntable: a\ndatastore: b"])
def test_an_invalid_definition_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"definition:1"):
        parse_definition(text)


def test_a_missing_definition_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.yaml"):
        load_definition(tmp_path / "none.yaml")


def test_a_definition_with_the_earlier_name_of_a_column_is_unchanged() -> None:
    """The digest names the version in a store: a new one would build every index again."""
    earlier = parse_definition(GOOD.replace("column_name", "column_key"))
    assert earlier == parse_definition(GOOD)
    stored = msgspec.json.encode(earlier)
    assert b'"column_key":"BASE"' in stored
    assert b"column_name" not in stored
    assert msgspec.json.decode(stored, type=IndexDefinition) == earlier
    with pytest.raises(InvalidRequest, match="column_name is given twice"):
        parse_definition(GOOD.replace("column_name: BASE", "column_name: BASE\n    column_key: X"))
