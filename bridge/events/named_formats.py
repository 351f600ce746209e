"""The formats by the names that configuration calls them by: the same ones for a topic of the
gateway and for an export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from cellfeed.bridge.events.cloud_events import CloudEventsFormat
from cellfeed.bridge.events.formats import AvroFormat, EventFormat, JsonFormat
from cellfeed.store.errors import InvalidRequest

FormatName = Literal["avro", "json", "cloudevents"]

ViewFormatName = Literal["avro", "json", "cloudevents", "typed"]
"""Of a view of one column: ``typed`` is Avro with the body as the column's own type
(:mod:`cellfeed.bridge.typed.typed_format`)."""

_FORMATS: Final[Mapping[str, Callable[[str, int], EventFormat]]] = {
    "avro": lambda _, schema_id: AvroFormat(schema_id),
    "json": lambda _, __: JsonFormat(),
    "cloudevents": lambda datastore, _: CloudEventsFormat(datastore),
}


def event_format(name: str, datastore: str, schema_id: int) -> EventFormat:
    """The format that configuration calls ``name``. ``schema_id``: for Avro, what the registry
    calls the envelope. Raises InvalidRequest."""
    make = _FORMATS.get(name)
    if make is None:
        raise InvalidRequest(f"format {name!r} does not exist; known are {', '.join(_FORMATS)}")
    return make(datastore, schema_id)
