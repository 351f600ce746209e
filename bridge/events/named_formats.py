"""The formats by the names that configuration calls them by: the same ones for a topic of the
gateway and for an export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from cellfeed.bridge.events.cloud_events import CloudEventsFormat
from cellfeed.bridge.events.formats import (
    AvroFormat,
    AvroMillisFormat,
    CreatedAt,
    EventFormat,
    JsonFormat,
)
from cellfeed.store.errors import InvalidRequest

FormatName = Literal["avro", "json", "cloudevents"]

ViewFormatName = Literal["avro", "json", "cloudevents", "typed"]
"""Of a view of one column: ``typed`` is Avro with the body as the column's own type
(:mod:`cellfeed.bridge.typed.typed_format`)."""

TypedBody = Literal["union", "record"]
"""A typed body in its record: the column's type or JSON text, or the type alone."""


class Layout(NamedTuple):
    """A view's settings for its records' fields beside their format."""

    created_at: CreatedAt = "micros"
    body: TypedBody = "union"

    def said(self) -> list[str]:
        """The settings that differ from the default: names of formats and topics of the default
        stay."""
        return [each for each, usual in zip(self, Layout(), strict=True) if each != usual]

    def check(self, format_name: str) -> None:
        """Raises InvalidRequest for a layout that the format does not have."""
        if self.body != "union" and format_name != "typed":
            raise InvalidRequest(
                f"body {self.body} is for format typed, not {format_name}: take body out, or write"
                " format: typed"
            )
        if self.created_at != "micros" and format_name == "cloudevents":
            raise InvalidRequest(
                f"created_at {self.created_at} is for formats avro, json and typed: a CloudEvent"
                " has its time as text; take created_at out"
            )


_FORMATS: Final[Mapping[str, Callable[[str, int], EventFormat]]] = {
    "avro": lambda _, schema_id: AvroFormat(schema_id),
    "json": lambda _, __: JsonFormat(),
    "cloudevents": lambda datastore, _: CloudEventsFormat(datastore),
}

_MILLIS: Final[Mapping[str, Callable[[str, int], EventFormat]]] = {
    "avro": lambda _, schema_id: AvroMillisFormat(schema_id),
    "json": lambda _, __: JsonFormat("millis"),
}


def event_format(
    name: str, datastore: str, schema_id: int, created_at: CreatedAt = "micros"
) -> EventFormat:
    """The format that configuration calls ``name``. ``schema_id``: for Avro, the registry's id of
    the envelope with this unit of ``created_at``. Raises InvalidRequest."""
    make = (_FORMATS if created_at == "micros" else _MILLIS).get(name)
    if make is None:
        raise InvalidRequest(f"format {name!r} does not exist; known are {', '.join(_FORMATS)}")
    return make(datastore, schema_id)
