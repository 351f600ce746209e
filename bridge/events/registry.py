"""The schemas of a datastore's topics, as a schema registry tells them. Read only: schemas come with the program, nobody registers any.

Ids are stable across restarts, processes and machines: an id is the first 31 bits of the SHA-256 of the schema's text, so the same schema has the same id
everywhere, and an id never comes to mean another schema.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import schemas


class SchemaRegistry:
    """Every topic's value has the envelope's schema, subject ``<topic>-value``, version 1. ``columns`` gives the datastore's columns."""

    def __init__(self, datastore: str, columns: Callable[[], list[str]]) -> None:
        self._datastore = datastore
        self._columns = columns
        self.envelope_text = json.dumps(schemas.load_avro("cell_envelope"), separators=(",", ":"))
        self.envelope_id = schema_id(self.envelope_text)

    def text(self, wanted_id: int) -> str | None:
        """The schema of that id."""
        return self.envelope_text if wanted_id == self.envelope_id else None

    def subjects(self) -> list[str]:
        names = [self._datastore, *(f"{self._datastore}.{column}" for column in self._columns())]
        return sorted(f"{name}-value" for name in names)

    def version(self, subject: str) -> dict[str, Any] | None:
        """The one version of a subject; None for an unknown subject."""
        if subject not in self.subjects():
            return None
        return {"subject": subject, "version": 1, "id": self.envelope_id, "schema": self.envelope_text}

    def same_schema(self, text: str) -> bool:
        """Whether a schema text, however it is spelled, is the envelope's."""
        try:
            return bool(_without_docs(json.loads(text)) == _without_docs(json.loads(self.envelope_text)))
        except ValueError:
            return False


def schema_id(text: str) -> int:
    """A positive 31-bit id that follows from the text."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:4], "big") >> 1 or 1


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_docs(value) for key, value in schema.items() if key != "doc"}
    return [_without_docs(item) for item in schema] if isinstance(schema, list) else schema
