"""The definition of an index: a table, and the fields of cells' bodies that are its columns. Stored
as JSON; files are read in ``store/indexes/definition_file.py``."""

from __future__ import annotations

import re
from functools import cached_property
from hashlib import sha256
from typing import Final

import msgspec

from cellfeed.store.errors import InvalidRequest

INDEX_NAME_MAX: Final = 40
"""Letters of an index's name: it is part of the name of its tables, which MySQL cuts at 64."""

FIELDS_MAX: Final = 16
"""Fields of one index: each but the first has a SQL index of its own, and InnoDB allows 64."""

COLUMNS_MAX: Final = 8
"""Columns of one index: each is read for every cell that arrives in another one."""

_NAME: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{INDEX_NAME_MAX - 1}}}")
FIELD_NAME_MAX: Final = 200
"""Letters of a field's name."""

EARLIER_NAME: Final = "column_key"
"""The name of ``column_name`` in earlier files. Files may still have it."""


class IndexField(msgspec.Struct, frozen=True):
    """One indexed field: where it is in the body of its column's cells, and its type (see
    :mod:`cellfeed.store.indexes.values`)."""

    name: str
    path: list[str]
    type: str


class IndexColumn(msgspec.Struct, frozen=True):
    """A column of cells and the fields that are taken from its latest cell."""

    # Definitions that are stored, and their digests, have the earlier name.
    column_name: str = msgspec.field(name=EARLIER_NAME)
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
