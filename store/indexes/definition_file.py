"""An index definition as a YAML file in the form of Uber's "Designing Schemaless" (2016),
checked when it is loaded.

    table: driver_partner_index
    datastore: trips
    column_defs:
      - column_name: BASE
        fields:
          - {field: driver_partner_uuid, type: UUID}    # the first field of all: the shard field
          - {field: city_uuid, type: UUID}
          - {field: driver.rating, type: float, name: rating}

``field`` is a path into the body, its steps separated by dots. A field is called by its path;
``name`` calls it otherwise, which is needed where two columns have the same path. Keys of a body
that hold a dot cannot be reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cellfeed.store.arguments import check_datastore_name
from cellfeed.store.cells.cell import check_column_name
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.definition import (
    COLUMNS_MAX,
    EARLIER_NAME,
    FIELD_NAME_MAX,
    FIELDS_MAX,
    IndexColumn,
    IndexDefinition,
    IndexField,
    check_index_name,
)
from cellfeed.store.indexes.values import TYPES


def load_definition(path: Path) -> IndexDefinition:
    """The definition in a file. Raises InvalidRequest with file, line and fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"index definition {path}: {error}") from error
    return parse_definition(text, str(path))


def parse_definition(text: str, source: str = "definition") -> IndexDefinition:
    """As :func:`load_definition`, for text; ``source`` names it in messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise InvalidRequest(
            f"{source}{line}: not YAML: {getattr(error, 'problem', None) or error}"
        ) from error
    if root is None:
        raise InvalidRequest(
            f"{source}:1: empty; an index definition has table, datastore and column_defs"
        )
    return _Reader(source).definition(root)


@dataclass(frozen=True)
class _Reader:
    """Walks the YAML nodes, which know their lines."""

    source: str

    def definition(self, node: yaml.Node) -> IndexDefinition:
        parts = self._mapping(node, "an index definition", ("table", "datastore", "column_defs"))
        table = self._checked(parts["table"], check_index_name)
        datastore = self._checked(parts["datastore"], check_datastore_name)
        columns = [
            self._column(each)
            for each in self._sequence(parts["column_defs"], "column_defs", COLUMNS_MAX)
        ]
        found = IndexDefinition(table, datastore, columns)
        self._refuse_twice(
            parts["column_defs"],
            "column_name",
            found.columns,
            "list all fields of a column together",
        )
        self._refuse_twice(
            parts["column_defs"],
            "field name",
            [field.name for field in found.fields],
            "call one of them otherwise with name:",
        )
        if len(found.fields) > FIELDS_MAX:
            raise self._wrong(
                parts["column_defs"],
                f"{len(found.fields)} fields; at most {FIELDS_MAX} are allowed",
            )
        return found

    def _column(self, node: yaml.Node) -> IndexColumn:
        parts = self._mapping(node, "an entry of column_defs", ("column_name", "fields"))
        return IndexColumn(
            self._checked(parts["column_name"], check_column_name),
            [self._field(each) for each in self._sequence(parts["fields"], "fields", FIELDS_MAX)],
        )

    def _field(self, node: yaml.Node) -> IndexField:
        parts = self._mapping(node, "an entry of fields", ("field", "type"), ("name",))
        path = self._text(parts["field"], "field")
        steps = path.split(".")
        if not all(steps):
            raise self._wrong(
                parts["field"], f"field {path!r} is no path: its steps are separated by single dots"
            )
        kind = self._text(parts["type"], "type").lower()
        if kind not in TYPES:
            raise self._wrong(
                parts["type"], f"type {kind!r} is not known; known are {', '.join(TYPES)}"
            )
        name = self._text(parts["name"], "name") if "name" in parts else path
        if not 0 < len(name) <= FIELD_NAME_MAX:
            raise self._wrong(
                parts.get("name", parts["field"]),
                f"a field's name has 1 to {FIELD_NAME_MAX} letters",
            )
        return IndexField(name, steps, kind)

    # --- nodes ------------------------------------------------------------------------------------

    def _wrong(self, node: yaml.Node, what: str) -> InvalidRequest:
        return InvalidRequest(f"{self.source}:{node.start_mark.line + 1}: {what}")

    def _mapping(
        self, node: yaml.Node, what: str, needed: tuple[str, ...], allowed: tuple[str, ...] = ()
    ) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, f"{what} is a mapping with {', '.join(needed)}")
        parts: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            key = "column_name" if key == EARLIER_NAME else key
            if key not in needed + allowed:
                raise self._wrong(
                    key_node, f"{what} has no {key!r}; it has {', '.join(needed + allowed)}"
                )
            if key in parts:
                raise self._wrong(key_node, f"{key} is given twice")
            parts[key] = value
        if missing := [key for key in needed if key not in parts]:
            raise self._wrong(node, f"{what} lacks {missing[0]}")
        return parts

    def _sequence(self, node: yaml.Node, what: str, count_max: int) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode) or not 1 <= len(node.value) <= count_max:
            raise self._wrong(node, f"{what} is a list of 1 to {count_max}")
        return list(node.value)

    def _text(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self._wrong(node, f"{what} is text")
        return str(node.value)

    def _checked(self, node: yaml.Node, check: Any) -> str:
        try:
            return str(check(self._text(node, "it")))
        except InvalidRequest as error:
            raise self._wrong(node, str(error)) from None

    def _refuse_twice(self, node: yaml.Node, what: str, names: list[str], advice: str) -> None:
        if len(set(names)) != len(names):
            raise self._wrong(
                node, f"the {what} {max(names, key=names.count)!r} is given twice: {advice}"
            )
