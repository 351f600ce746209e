"""What an index is: a YAML file in the form of Uber's "Designing Schemaless" (2016), checked when
it is loaded.

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

import re
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from cellfeed.store.arguments import check_datastore_name
from cellfeed.store.cells.cell import check_column_name
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.values import TYPES

INDEX_NAME_MAX: Final = 40
"""Letters of an index's name: it is part of the name of its tables, which MySQL cuts at 64."""

FIELDS_MAX: Final = 16
"""Fields of one index: each but the first has a SQL index of its own, and InnoDB allows 64."""

COLUMNS_MAX: Final = 8
"""Columns of one index: each is read for every cell that arrives in another one."""

_NAME: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{INDEX_NAME_MAX - 1}}}")
_FIELD_NAME_MAX: Final = 200
_EARLIER_NAME: Final = "column_key"
"""What ``column_name`` was called. Files may still have it."""


class IndexField(msgspec.Struct, frozen=True):
    """One indexed field: where it is in the body of its column's cells, and its type (see
    :mod:`cellfeed.store.indexes.values`)."""

    name: str
    path: list[str]
    type: str


class IndexColumn(msgspec.Struct, frozen=True):
    """A column of cells and the fields that are taken from its latest cell."""

    # Definitions that are stored, and their digests, have the earlier name.
    column_name: str = msgspec.field(name=_EARLIER_NAME)
    fields: list[IndexField]


class IndexDefinition(msgspec.Struct, frozen=True, dict=True):
    """A checked definition. The first field of the first column is the shard field."""

    table: str
    datastore: str
    column_defs: list[IndexColumn]

    @cached_property
    def fields(self) -> list[IndexField]:
        """All fields, in the order of the definition."""
        return [field for column in self.column_defs for field in column.fields]

    @cached_property
    def columns(self) -> list[str]:
        return [column.column_name for column in self.column_defs]

    @property
    def shard_field(self) -> IndexField:
        return self.fields[0]

    @cached_property
    def digest(self) -> str:
        """Two definitions of the same digest have the same entries."""
        return sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def position(self, name: str) -> int:
        """The place of a field among :attr:`fields`. Raises InvalidRequest for one that the index
        has not."""
        for number, field in enumerate(self.fields):
            if field.name == name:
                return number
        raise InvalidRequest(
            f"index {self.table!r} has no field {name!r:.80}; it has"
            f" {', '.join(field.name for field in self.fields)}"
        )


def check_index_name(name: object) -> str:
    """Raises InvalidRequest unless ``name`` may be an index's name."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidRequest(
        f"index name {ascii(name)[:80]} must be 1 to {INDEX_NAME_MAX} of a-z, 0-9 and _, beginning"
        " with a letter"
    )


def load_definition(path: Path) -> IndexDefinition:
    """The definition in a file. Raises InvalidRequest with file, line and what is wrong."""
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
        if not 0 < len(name) <= _FIELD_NAME_MAX:
            raise self._wrong(
                parts.get("name", parts["field"]),
                f"a field's name has 1 to {_FIELD_NAME_MAX} letters",
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
            key = "column_name" if key == _EARLIER_NAME else key
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
