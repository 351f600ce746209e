"""The versions of columns' schemas, in the state table of the datastore: every gateway and exporter
goes by them, whatever its own configuration says.

    typed/<column>/settings            {unfit, compatibility}
    typed/<column>/version/<number>    {schema_id, body, cell, at_us}, numbers from 1
    typed-id/<schema id>               {column, number}

A version and its id are written in one commit that expects both to be absent. So when two gateways
start together with new schemas, one commits second and is checked against the first. No version is
ever changed or deleted: records with its id lie in other people's topics. The id follows from the
schema as the envelope's does (:func:`cellfeed.bridge.events.registry.schema_id_of`); where it has a
meaning already, the next free number is taken.

The process dies before the commit: nothing is there, and the next process that starts registers it.
After it: all of it is there, and registering it again finds it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

import cellfeed.schemas
from cellfeed.bridge.events.registry import ENVELOPE_VERSIONS, meaning_of, schema_id_of
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.compatibility import breaks
from cellfeed.bridge.typed.declaration import ColumnSchema, Compatibility, Policy
from cellfeed.bridge.typed.schema_files import declared_schema
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.errors import IncompatibleSchema, Unavailable
from cellfeed.store.failpoints import declare, failpoint

VERSIONS_MAX: Final = 100
"""Versions of one column's schema: a body that fits none is tried with each."""

_PREFIX: Final = "typed/"
_IDS: Final = "typed-id/"
_TRIES_MAX: Final = 50
"""Compare-and-set tries: others that register at the same moment are as many as processes start."""

declare("typed.before_registered", "typed.after_registered")


class Settings(msgspec.Struct, frozen=True):
    unfit: Policy = "envelope"
    compatibility: Compatibility = "FULL"


class _Stored(msgspec.Struct, frozen=True):
    schema_id: int
    body: str
    cell: str
    at_us: int


class Version(NamedTuple):
    """A registered version. ``body`` and ``cell``: schemas as JSON; ``at_us``: when it was
    registered, microseconds since 1970."""

    number: int
    schema_id: int
    body: str
    cell: str
    at_us: int


class StoredColumn(NamedTuple):
    """A column as the datastore knows it; versions are oldest first."""

    settings: Settings
    versions: tuple[Version, ...]


_settings: Final = msgspec.json.Decoder(Settings).decode
_stored: Final = msgspec.json.Decoder(_Stored).decode


def stored_columns(state: StateTable, column: str | None = None) -> dict[str, StoredColumn]:
    """What is registered; of one column, or of all."""
    settings: dict[str, Settings] = {}
    versions: dict[str, list[Version]] = {}
    for entry in state.list(_PREFIX if column is None else f"{_PREFIX}{quote(column, safe='')}/"):
        _, name, kind = entry.key.split("/", 2)
        if kind == "settings":
            settings[unquote(name)] = _settings(entry.value)
        else:
            found = _stored(entry.value)
            versions.setdefault(unquote(name), []).append(
                Version(
                    int(kind.rpartition("/")[2]),
                    found.schema_id,
                    found.body,
                    found.cell,
                    found.at_us,
                )
            )
    return {
        name: StoredColumn(settings.get(name, Settings()), tuple(found))
        for name, found in sorted(versions.items())
    }


def register_declared(state: StateTable, declared: Sequence[ColumnSchema], directory: Path) -> None:
    """Registers what a configuration declares; again is no harm. Files lie in ``directory``. Raises
    InvalidRequest, IncompatibleSchema, Unavailable."""
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
        schema_id = _free_id(state, schema)
        new = _Stored(schema_id, schema.text, schema.cell_text, state.now_us())
        entry = json.dumps({"column": column, "number": number}).encode()
        write = {_version_key(column, number): msgspec.json.encode(new), _id_key(schema_id): entry}
        failpoint("typed.before_registered")
        if state.commit(write, expect=dict.fromkeys(write)) is not None:
            failpoint("typed.after_registered")
            _keep_settings(state, column, settings)
            return Version(number, schema_id, new.body, new.cell, new.at_us)
    raise Unavailable(f"the schema of column {column} could not be registered: others are faster")


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


def version_of(stored: StoredColumn, schema: BodySchema) -> Version | None:
    """The version that the schema is; None for a new one. Explanations (``doc``) make no
    version."""
    wanted = meaning_of(json.loads(schema.cell_text))
    return next(
        (version for version in stored.versions if meaning_of(json.loads(version.cell)) == wanted),
        None,
    )


def _keep_settings(state: StateTable, column: str, settings: Settings) -> None:
    key = f"{_PREFIX}{quote(column, safe='')}/settings"
    entry = state.get(key)
    if entry is None or _settings(entry.value) != settings:
        state.commit({key: msgspec.json.encode(settings)})


def _free_id(state: StateTable, schema: BodySchema) -> int:
    taken = {schema_id_of(cellfeed.schemas.load_avro(name)) for name in ENVELOPE_VERSIONS}
    schema_id = schema_id_of(json.loads(schema.cell_text))
    while schema_id in taken or state.get(_id_key(schema_id)) is not None:
        schema_id = schema_id % 0x7FFFFFFF + 1
    return schema_id


def _version_key(column: str, number: int) -> str:
    return f"{_PREFIX}{quote(column, safe='')}/version/{number:06d}"


def _id_key(schema_id: int) -> str:
    return f"{_IDS}{schema_id:010d}"
