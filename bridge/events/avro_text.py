"""Avro schemas as text: their parsing, and every error by which a text proves to be none."""

from __future__ import annotations

import json
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

NOT_AVRO: Final = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
    SchemaParseException,
    UnknownType,
)
"""Errors of :func:`checked_avro`: fastavro lets those of its own code out."""


def checked_avro(text: str) -> Any:
    """The JSON of a schema, as it is written. Raises one of ``NOT_AVRO``."""
    schema = json.loads(text)
    fastavro.parse_schema(schema, _write_hint=False)  # its result is not kept: it rewrites names
    return schema
