"""One version of a subject's schema, and the schemas of topics whose bodies are typed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Protocol

from cellfeed.bridge.events.schema_id import schema_id_of

COMPATIBILITY: Final = "FULL_TRANSITIVE"
"""The compatibility of a new version with all older ones: fields come and go only with defaults, so
that any reader reads any record."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One version of a subject's schema. Readers get ``text``; ``version`` counts from 1."""

    version: int
    schema_id: int
    text: str


class TypedSchemas(Protocol):
    """The schemas of topics whose bodies are typed. Both may block, and look again at the
    registered versions."""

    def of_topic(self, topic: str) -> tuple[list[RegisteredSchema], str]:
        """Its versions, oldest first, and the rule that a new one must keep, as Confluent calls it;
        no versions for a topic that is not typed."""
        ...

    def by_id(self, schema_id: int) -> RegisteredSchema | None: ...


class NoTypedSchemas:
    """Of a datastore without any."""

    def of_topic(self, topic: str) -> tuple[list[RegisteredSchema], str]:
        del topic
        return [], COMPATIBILITY

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        del schema_id
        return None


def registered(number: int, text: str) -> RegisteredSchema:
    schema = json.loads(text)
    return RegisteredSchema(
        number, schema_id_of(schema), json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    )
