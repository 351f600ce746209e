"""The schemas of a datastore's topics, as a schema registry serves them. Read only: cellfeed itself
defines the schemas that it writes with.

Every topic whose values are Avro has the subject ``<topic>-value`` (Confluent's TopicNameStrategy).
Those whose bodies are typed have the versions of their column
(:mod:`cellfeed.bridge.typed.versions`). Those with milliseconds have an envelope of their own, and
all others share those of the cell envelope. Keys are plain text and have no subject.

Ids follow from schemas (:mod:`cellfeed.bridge.events.schema_id`). A version, once released, stays
in ``ENVELOPE_VERSIONS`` for ever, because records with its id lie in other people's
topics; a test freezes the ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final

import cellfeed.schemas
from cellfeed.bridge.events.avro_text import NOT_AVRO, checked_avro
from cellfeed.bridge.events.formats import CreatedAt
from cellfeed.bridge.events.registered_schema import (
    COMPATIBILITY,
    NoTypedSchemas,
    RegisteredSchema,
    TypedSchemas,
    registered,
)
from cellfeed.bridge.events.registry_errors import (
    INVALID_SCHEMA,
    INVALID_VERSION,
    OPERATION_NOT_PERMITTED,
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    VERSION_NOT_FOUND,
    RegistryError,
)
from cellfeed.bridge.events.schema_id import meaning_of, schema_id_of

ENVELOPE_VERSIONS: Final = ("cell_envelope",)
"""Names in ``schemas/avro`` of every version of the envelope, oldest first. Records are written
with the last one; none is ever removed or edited."""

MILLIS_VERSIONS: Final = ("cell_envelope_millis",)
"""Likewise of the envelope whose ``created_at`` is in milliseconds."""


SUBJECT_SUFFIX: Final = "-value"


def envelope_name(created_at: CreatedAt = "micros") -> str:
    """Of the envelope that is written now, in ``schemas/avro``."""
    return (ENVELOPE_VERSIONS if created_at == "micros" else MILLIS_VERSIONS)[-1]


def envelope_schema_id(created_at: CreatedAt = "micros") -> int:
    """The id of the envelope that is written now:
    :class:`cellfeed.bridge.events.formats.AvroFormat` puts it before each value."""
    return schema_id_of(cellfeed.schemas.load_avro(envelope_name(created_at)))


class SchemaRegistry:
    """The schemas of the topics ``<datastore>`` and ``<datastore>.<COLUMN>``, and of declared ones.

    ``columns`` names the datastore's columns and is called for each question, as columns may be
    added at any moment; it may block. ``serves_avro``: whether a topic exists with Avro values;
    without it, all do. ``declared``: further topics with Avro values. ``unlisted``: whether a topic
    that is not listed exists with Avro values; it may block. ``millis``: those of the declared
    topics whose envelope has milliseconds. ``typed``: the schemas of those with typed bodies.
    """

    def __init__(
        self,
        datastore: str,
        columns: Callable[[], Iterable[str]],
        serves_avro: Callable[[str], bool] = lambda topic: True,
        declared: Sequence[str] = (),
        unlisted: Callable[[str], bool] = lambda topic: False,
        versions: Sequence[str] = ENVELOPE_VERSIONS,
        millis: Container[str] = (),
        typed: TypedSchemas | None = None,
    ) -> None:
        self._datastore = datastore
        self._columns = columns
        self._serves_avro = serves_avro
        self._declared = declared
        self._unlisted = unlisted
        self._typed: TypedSchemas = typed or NoTypedSchemas()
        self._versions = [
            registered(number, cellfeed.schemas.avro_text(name))
            for number, name in enumerate(versions, start=1)
        ]
        self._millis = [
            registered(number, cellfeed.schemas.avro_text(name))
            for number, name in enumerate(MILLIS_VERSIONS, start=1)
        ]
        self._has_millis = millis
        self._by_id = {schema.schema_id: schema for schema in (*self._versions, *self._millis)}
        if len(self._by_id) != len(self._versions) + len(self._millis):
            raise ValueError(f"two of the schemas {', '.join(versions)} have one id")
        self.envelope_id = self._versions[-1].schema_id
        """The id of the schema that is written now."""

    def subjects(self) -> list[str]:
        """All subjects, sorted."""
        topics = [self._datastore, *(f"{self._datastore}.{column}" for column in self._columns())]
        return sorted(
            topic + SUBJECT_SUFFIX
            for topic in [*filter(self._serves_avro, topics), *self._declared]
        )

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises RegistryError 40403."""
        found = self._by_id.get(schema_id) or self._typed.by_id(schema_id)
        if found is None:
            raise RegistryError(
                SCHEMA_NOT_FOUND,
                f"Schema {schema_id} not found; that of cells is {self.envelope_id}, and typed"
                " topics have their own",
            )
        return found

    def uses(self, schema_id: int) -> list[tuple[str, int]]:
        """Subjects that have the schema of an id among their versions, and which one it is. Raises
        RegistryError 40403."""
        self.by_id(schema_id)
        found = [
            (subject, each.version)
            for subject in self.subjects()
            for each in self._versions_of(subject)
            if each.schema_id == schema_id
        ]
        return sorted(found)

    def compatibility(self, subject: str | None) -> str:
        """The rule that a new version of a subject must keep, or that of the envelope. Raises
        RegistryError 40401."""
        if subject is None:
            return COMPATIBILITY
        self.check_subject(subject)
        return self._typed.of_topic(subject.removesuffix(SUBJECT_SUFFIX))[1]

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """The versions of a subject, oldest first. Raises RegistryError 40401."""
        self.check_subject(subject)
        return self._versions_of(subject)

    def version(self, subject: str, version: str) -> RegisteredSchema:
        """One version of a subject: a number from 1, ``latest`` or ``-1``. Raises RegistryError
        40401, 40402 or 42202."""
        known = self.versions(subject)
        if version in ("latest", "-1"):
            return known[-1]
        if not (version.isascii() and version.isdigit()) or not 1 <= int(version[:12]) < 1 << 31:
            raise RegistryError(
                INVALID_VERSION,
                f"The specified version {version!a:.40} is not a version: a number from 1 to"
                " 2^31-1, or latest",
            )
        if int(version[:12]) > len(known):
            raise RegistryError(
                VERSION_NOT_FOUND,
                f"Version {version[:12]} not found; subject {subject!a:.300} has versions 1 to"
                f" {len(known)}",
            )
        return known[int(version[:12]) - 1]

    def lookup(
        self, subject: str, schema_text: object, schema_type: object = "AVRO"
    ) -> RegisteredSchema:
        """The version of a subject that is this schema (its ``doc`` texts do not matter). Raises
        RegistryError 40401, 40403 or 42201."""
        known = self.versions(subject)
        wanted = meaning_of(_parsed(schema_text, schema_type))
        found = next((each for each in known if meaning_of(json.loads(each.text)) == wanted), None)
        if found is None:
            raise RegistryError(
                SCHEMA_NOT_FOUND,
                f"Schema not found: it is none of the {len(known)} versions of subject"
                f" {subject!a:.300}",
            )
        return found

    def register(
        self, subject: str, schema_text: object, schema_type: object = "AVRO"
    ) -> RegisteredSchema:
        """The version that is this schema, as a producer asks before it writes. A new one is
        refused. Raises RegistryError 40401, 42201 or 42205."""
        try:
            return self.lookup(subject, schema_text, schema_type)
        except RegistryError as error:
            if error.error_code != SCHEMA_NOT_FOUND:
                raise
        raise RegistryError(
            OPERATION_NOT_PERMITTED,
            f"Subject {subject!a:.300} is in read-only mode: cellfeed alone defines the schema of"
            " its events",
        )

    def _versions_of(self, subject: str) -> list[RegisteredSchema]:
        topic = subject.removesuffix(SUBJECT_SUFFIX)
        return self._typed.of_topic(topic)[0] or list(
            self._millis if topic in self._has_millis else self._versions
        )

    def check_subject(self, subject: str) -> None:
        """Raises RegistryError 40401 for a subject that no topic has."""
        if subject not in self.subjects() and not (
            subject.endswith(SUBJECT_SUFFIX)
            and self._unlisted(subject.removesuffix(SUBJECT_SUFFIX))
        ):
            raise RegistryError(
                SUBJECT_NOT_FOUND,
                f"Subject {subject!a:.300} not found; a subject is the name of an Avro topic and"
                f" {SUBJECT_SUFFIX!r}",
            )


def _parsed(schema_text: object, schema_type: object) -> Any:
    if schema_type not in ("AVRO", None):
        raise RegistryError(
            INVALID_SCHEMA, f"Schema type {schema_type!a:.40} is not known here; only AVRO is"
        )
    if not isinstance(schema_text, str):
        raise RegistryError(INVALID_SCHEMA, 'Invalid schema: "schema" must be the schema as text')
    try:
        return checked_avro(schema_text)
    except NOT_AVRO as error:
        raise RegistryError(
            INVALID_SCHEMA, f"Invalid schema: {type(error).__name__}: {error!s:.200}"
        ) from None
