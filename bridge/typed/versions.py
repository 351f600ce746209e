"""The versions of columns' schemas, in the state table of the datastore: every gateway and exporter
goes by them, also where its own configuration differs.

    typed/<column>/settings            {unfit, compatibility}
    typed/<column>/version/<number>    {schema_id, body, cell, at_us}, numbers from 1
    typed-id/<schema id>               {column, number}; in another layout also {layout, cell}

A version and its id are written in one commit that expects both to be absent. So when two gateways
start together with new schemas, one commits second and is checked against the first. No version is
ever changed or deleted: records with its id lie in other people's topics. The id follows from the
schema as the envelope's does (``events/schema_id.py``); where it has a meaning already, the next
free number is taken. In each other layout a version has another id, which
is registered when a topic or an export first needs it.

The process dies before the commit: nothing is there, and the next process that starts registers it.
After it: all of it is there, and registering it again finds it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

import cellfeed.schemas
from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.events.registry import ENVELOPE_VERSIONS, MILLIS_VERSIONS
from cellfeed.bridge.events.schema_id import meaning_of, schema_id_of
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.compatibility import breaks
from cellfeed.bridge.typed.declaration import ColumnSchema, Compatibility
from cellfeed.bridge.typed.schema_files import declared_schema
from cellfeed.bridge.typed.stored_columns import (
    PREFIX,
    USUAL,
    Settings,
    Stored,
    StoredColumn,
    Version,
    decode_settings,
    stored_columns,
    version_of,
)
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import IncompatibleSchema, Unavailable
from cellfeed.store.failpoints import declare, failpoint

VERSIONS_MAX: Final = 100
"""Versions of one column's schema: a body that fits none is tried with each."""

_IDS: Final = "typed-id/"
_TRIES_MAX: Final = 50
"""Compare-and-set tries: others that register at the same moment are as many as processes start."""

declare("typed.before_registered", "typed.after_registered")


class _Id(msgspec.Struct, frozen=True, omit_defaults=True):
    column: str
    number: int
    layout: Layout = USUAL
    cell: str = ""

    def is_of(self, other: _Id) -> bool:
        """Whether both say the same; explanations in a schema do not count."""
        own, others = (msgspec.structs.replace(each, cell="") for each in (self, other))
        return own == others and (
            self.cell == other.cell
            or meaning_of(json.loads(self.cell)) == meaning_of(json.loads(other.cell))
        )


_id: Final = msgspec.json.Decoder(_Id).decode


def register_declared(state: StateTable, declared: Sequence[ColumnSchema], directory: Path) -> None:
    """Registers the declared schemas of a configuration; again is no harm. Files lie in
    ``directory``. Raises InvalidRequest, IncompatibleSchema, Unavailable."""
    for each in declared:
        register(
            state,
            each.column,
            declared_schema(each, directory),
            Settings(each.unfit, each.compatibility),
        )


def register(state: StateTable, column: str, schema: BodySchema, settings: Settings) -> Version:
    """Makes it a version of the column unless it is one, and the settings those of the column.
    Raises IncompatibleSchema, Unavailable."""
    for _ in range(_TRIES_MAX):
        stored = stored_columns(state, column).get(column, StoredColumn(Settings(), ()))
        known = version_of(stored, schema)
        if known is not None:
            _keep_settings(state, column, settings)
            return known
        check_version(column, schema, stored, settings.compatibility)
        number = len(stored.versions) + 1
        own = _Id(column, number)
        schema_id, _ = _id_for(state, schema.cell_text, own)
        new = Stored(schema_id, schema.text, schema.cell_text, state.now_us())
        entry = msgspec.json.encode(own)
        write = {_version_key(column, number): msgspec.json.encode(new), _id_key(schema_id): entry}
        failpoint("typed.before_registered")
        if state.commit(write, expect=dict.fromkeys(write)) is not None:
            failpoint("typed.after_registered")
            _keep_settings(state, column, settings)
            return Version(number, schema_id, new.body, new.cell, new.at_us)
    raise Unavailable(f"the schema of column {column} could not be registered: others are faster")


def id_in(state: StateTable, column: str, version: Version, layout: Layout) -> int:
    """The id of a version in a layout, registered when it is first asked for. Raises
    Unavailable."""
    if layout == USUAL:
        return version.schema_id
    own = _Id(column, version.number, layout, version.cell_in(layout))
    for _ in range(_TRIES_MAX):
        schema_id, is_there = _id_for(state, own.cell, own)
        key = _id_key(schema_id)
        if (
            is_there
            or state.commit({key: msgspec.json.encode(own)}, expect={key: None}) is not None
        ):
            return schema_id
    raise Unavailable(f"an id of column {column}'s schema could not be written: others are faster")


def ids_in_layouts(state: StateTable) -> dict[tuple[str, int], list[tuple[Layout, int]]]:
    """The ids that topics and exports of other layouts have asked for, by column and number of the
    version. Raises Unavailable."""
    found: dict[tuple[str, int], list[tuple[Layout, int]]] = {}
    for entry in state.list(_IDS):
        of = _id(entry.value)
        if of.layout != USUAL:
            schema_id = int(entry.key.removeprefix(_IDS))
            found.setdefault((of.column, of.number), []).append((of.layout, schema_id))
    return {version: sorted(ids) for version, ids in found.items()}


def schema_of_id(state: StateTable, schema_id: int) -> tuple[int, str] | None:
    """The number of the version that has an id in some layout, and its schema there; None for an id
    that no version has. Raises Unavailable."""
    entry = state.get(_id_key(schema_id))
    if entry is None:
        return None
    own = _id(entry.value)
    if own.cell:
        return own.number, own.cell
    return own.number, stored_columns(state, own.column)[own.column].versions[own.number - 1].cell


def check_version(
    column: str, schema: BodySchema, stored: StoredColumn, compatibility: Compatibility
) -> None:
    """Raises IncompatibleSchema when the schema may not be the next version."""
    if len(stored.versions) >= VERSIONS_MAX:
        raise IncompatibleSchema(
            f"column {column} has {VERSIONS_MAX} versions of its schema, and further ones"
            " are not possible"
        )
    earlier = [(version.number, body_schema(version.body).root) for version in stored.versions]
    if found := next(breaks(schema.root, earlier, compatibility), None):
        fix = (
            "add and take away only fields with a default, and leave types and names as they are;"
            " or give the new bodies a column of their own"
        )
        raise IncompatibleSchema(
            f"column {column}: {found}. It must be {compatibility} to every version: {fix}"
        )


def _keep_settings(state: StateTable, column: str, settings: Settings) -> None:
    key = f"{PREFIX}{quote(column, safe='')}/settings"
    entry = state.get(key)
    if entry is None or decode_settings(entry.value) != settings:
        state.commit({key: msgspec.json.encode(settings)})


def _id_for(state: StateTable, text: str, own: _Id) -> tuple[int, bool]:
    """The id that the state table has for it, or the free one that it is to have; and whether it is
    there. Ids are never taken away, so its own is found before a free one."""
    taken = {
        schema_id_of(cellfeed.schemas.load_avro(name))
        for name in (*ENVELOPE_VERSIONS, *MILLIS_VERSIONS)
    }
    schema_id = schema_id_of(json.loads(text))
    while True:
        entry = state.get(_id_key(schema_id))
        if entry is not None and own.is_of(_id(entry.value)):
            return schema_id, True
        if entry is None and schema_id not in taken:
            return schema_id, False
        schema_id = schema_id % 0x7FFFFFFF + 1


def _version_key(column: str, number: int) -> str:
    return f"{PREFIX}{quote(column, safe='')}/version/{number:06d}"


def _id_key(schema_id: int) -> str:
    return f"{_IDS}{schema_id:010d}"
