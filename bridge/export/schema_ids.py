"""The ids of an export's Avro schemas: those of an external Schema Registry, where one is
configured, else those of the gateway's own registry."""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec
import urllib3

import cellfeed.schemas
from cellfeed.bridge.events.registry import SUBJECT_SUFFIX, envelope_name, envelope_schema_id
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.typed.declaration import check_layout
from cellfeed.bridge.typed.stored_columns import Version
from cellfeed.bridge.typed.typed_column import TypedColumn
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import id_in
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, ProtectData, Unavailable

_TIMEOUT_S: Final = 10.0
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_ANSWER_BYTES_MAX: Final = 64 << 10


class _Registered(msgspec.Struct):
    id: int


_decode: Final = msgspec.json.Decoder(_Registered).decode


def schema_id_for(export: Export, topic: str) -> int:
    """Registers the schema under the topic's subject where a registry is configured (again is no
    harm: it answers the id that it gave).

    Raises ProtectData when the registry refuses the schema, Unavailable when it does not answer.
    """
    if export.format != "avro" or export.registry is None:
        return envelope_schema_id(export.created_at)
    return register(
        export.registry,
        f"{topic}{SUBJECT_SUFFIX}",
        cellfeed.schemas.avro_text(envelope_name(export.created_at)),
    )


def typed_format(export: Export, datastore: Datastore, topic: str) -> TypedFormat | None:
    """The format of an export whose bodies are typed; None for one of another format. Every version
    is registered under the topic's subject, the oldest first, when it is first needed. Raises
    InvalidRequest for a column without a schema, or with settings that the layout does not go with;
    Unavailable."""
    if export.format != "typed" or export.column is None:
        return None
    column = TypedColumn(datastore.state, export.column)
    if not column.versions:
        raise InvalidRequest(
            f"export {export.name}: column {export.column} has no schema: declare one under schemas"
            " of the datastore"
        )
    layout, registry = export.layout, export.registry
    check_layout(f"export {export.name}", column.column, layout, column.settings.unfit)

    def schema_id_of(version: Version) -> int:
        if registry is None:
            return id_in(datastore.state, column.column, version, layout)
        return register(registry, f"{topic}{SUBJECT_SUFFIX}", version.cell_in(layout))

    return TypedFormat(column, schema_id_of, layout=layout)


def register(registry: str, subject: str, schema_text: str) -> int:
    """``POST /subjects/{subject}/versions`` of Confluent's Schema Registry API; the schema's id.
    User and password may stand in the URL."""
    parts = urlsplit(registry)
    headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
    if parts.username:
        headers |= urllib3.make_headers(basic_auth=f"{parts.username}:{parts.password or ''}")
    shown = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    url = f"{shown}{parts.path.rstrip('/')}/subjects/{quote(subject, safe='')}/versions"
    body = json.dumps({"schema": schema_text, "schemaType": "AVRO"}).encode()
    try:
        with urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False) as pool:
            answer = pool.request("POST", url, body=body, headers=headers)
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable(f"the Schema Registry at {shown} does not answer: {error}") from error
    said = answer.data[:_ANSWER_BYTES_MAX]
    if answer.status >= 500 or answer.status == 429:
        raise Unavailable(
            f"the Schema Registry at {shown} answers {answer.status} for subject {subject}:"
            f" {said[:200]!r}"
        )
    try:
        if answer.status == 200:
            return _decode(said).id
    except msgspec.MsgspecError as error:
        raise ProtectData(f"the server at {shown} is no Schema Registry: {error}") from error
    raise ProtectData(
        f"the Schema Registry at {shown} refuses the schema of subject {subject} ({answer.status}):"
        f" {said[:300].decode(errors='replace')}"
    )
