"""The registered versions of columns' schemas, as the state table has them; its keys are said in
:mod:`cellfeed.bridge.typed.versions`."""

from __future__ import annotations

import json
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.events.schema_id import meaning_of
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema, cell_text
from cellfeed.bridge.typed.declaration import Compatibility, Policy
from cellfeed.store.engines.contract.state_table import StateTable

PREFIX: Final = "typed/"

USUAL: Final = Layout()


class Settings(msgspec.Struct, frozen=True):
    unfit: Policy = "envelope"
    compatibility: Compatibility = "FULL"


class Stored(msgspec.Struct, frozen=True):
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

    def cell_in(self, layout: Layout) -> str:
        """The schema of the record's value in a layout."""
        if layout == USUAL:
            return self.cell
        return cell_text(self.body, body_schema(self.body).name, layout)


class StoredColumn(NamedTuple):
    """A column as the datastore knows it; versions are oldest first."""

    settings: Settings
    versions: tuple[Version, ...]


decode_settings: Final = msgspec.json.Decoder(Settings).decode

_stored: Final = msgspec.json.Decoder(Stored).decode


def stored_columns(state: StateTable, column: str | None = None) -> dict[str, StoredColumn]:
    """The registered versions; of one column, or of all."""
    settings: dict[str, Settings] = {}
    versions: dict[str, list[Version]] = {}
    for entry in state.list(PREFIX if column is None else f"{PREFIX}{quote(column, safe='')}/"):
        _, name, kind = entry.key.split("/", 2)
        if kind == "settings":
            settings[unquote(name)] = decode_settings(entry.value)
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


def version_of(stored: StoredColumn, schema: BodySchema) -> Version | None:
    """The version that the schema is; None for a new one. Explanations (``doc``) make no
    version."""
    wanted = meaning_of(json.loads(schema.cell_text))
    return next(
        (version for version in stored.versions if meaning_of(json.loads(version.cell)) == wanted),
        None,
    )
