"""An export as the configuration declares it: the view of the log, the topic and its cluster, and
how records are written."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cellfeed.bridge.events.formats import CreatedAt
from cellfeed.bridge.events.named_formats import Layout, TypedBody, ViewFormatName
from cellfeed.bridge.events.views import Condition, View
from cellfeed.bridge.export.limits import (
    CELLS_PER_S_MAX,
    LEASE_S,
    RECORD_BYTES_CEILING,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    UNITS_MAX,
)
from cellfeed.bridge.groups.control import EXPORTS
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.secret_references import resolved_settings

_OURS: Final = frozenset(
    {
        "bootstrap.servers",
        "transactional.id",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "transaction.timeout.ms",
        "isolation.level",
        "group.id",
        "enable.auto.commit",
        "enable.partition.eof",
        "message.max.bytes",
        "max.in.flight.requests.per.connection",
    }
)
"""Settings of the client that exactly-once rests upon: nobody else sets them."""


class Export(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An export: a view of the datastore's log (``column``, ``filter``, ``fields``; all of it
    without) into ``topic`` of the cluster at ``bootstrap``.

    ``client``: further settings of the Kafka client (security, tuning); a secret may stand as
    ``${env:NAME}`` or ``${file:/path}``. ``topic_settings``: of the
    topic, beside those that the exporter insists on. ``too_large``: how a record above
    ``record_bytes_max`` is handled. ``on_lost_topic``: whether the export begins again in a topic
    that lost its records. ``on_trimmed``: whether the export continues without cells that were
    trimmed before they were exported. ``registry``: URL of the Schema Registry in which Avro
    schemas (avro, typed) are registered; without it the ids are those of the gateway's registry.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,40}$")]
    bootstrap: Annotated[str, Meta(min_length=1)]
    topic: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")] | None = None
    client: dict[str, str | int | float | bool] = {}
    format: ViewFormatName = "avro"
    created_at: CreatedAt = "micros"
    body: TypedBody = "union"
    column: str | None = None
    filter: list[Condition] = []
    fields: list[str] = []
    start: Literal["earliest", "latest"] = "earliest"
    too_large: Literal["park", "claim_check"] = "park"
    record_bytes_max: Annotated[int, Meta(ge=RECORD_BYTES_MIN, le=RECORD_BYTES_CEILING)] = (
        RECORD_BYTES_MAX
    )
    on_lost_topic: Literal["refuse", "start_over"] = "refuse"
    on_trimmed: Literal["refuse", "skip"] = "refuse"
    replication_factor: Annotated[int, Meta(ge=-1, le=32_767)] = -1
    topic_settings: dict[str, str] = {}
    compression: Literal["none", "lz4", "zstd"] = "lz4"
    units: Annotated[int, Meta(ge=1, le=UNITS_MAX)] | None = None
    cells_per_s: Annotated[int, Meta(ge=1, le=CELLS_PER_S_MAX)] | None = None
    registry: str | None = None
    lease_s: Annotated[float, Meta(ge=0.2, le=300)] = LEASE_S

    @property
    def group(self) -> str:
        """Its group's name in coordination, lag and parked cells."""
        return EXPORTS + self.name

    @property
    def view(self) -> View:
        return View(self.column, self.filter, self.fields)

    @property
    def layout(self) -> Layout:
        return Layout(self.created_at, self.body)

    def topic_of(self, datastore: str) -> str:
        """The topic's name: as the gateway's for the same cells where none is given."""
        return self.topic or (datastore if self.column is None else f"{datastore}.{self.column}")

    def fingerprint(self) -> str:
        """Identifies the form of the records: an export with records of another form is another
        export."""
        said = msgspec.json.encode(
            [
                self.view,
                self.format,
                self.too_large,
                self.record_bytes_max,
                *self.layout.said(),
            ],
            order="deterministic",
        )
        return sha256(said).hexdigest()[:16]

    def check(self) -> Export:
        """Checks rules that no type expresses. Raises InvalidRequest."""
        try:
            self.view.check()
            self.layout.check(self.format)
        except InvalidRequest as error:
            raise InvalidRequest(f"export {self.name}: {error}") from None
        if taken := sorted(_OURS & set(self.client)):
            raise InvalidRequest(
                f"export {self.name}: client: {taken[0]} is the exporter's own, exactly-once rests"
                " upon it; take it out"
            )
        try:
            resolved_settings(self.client)
        except InvalidRequest as error:
            raise InvalidRequest(f"export {self.name}: client: {error}") from None
        if self.filter and self.topic is None:
            raise InvalidRequest(
                f"export {self.name}: a topic of filtered cells needs a name of its own: topic"
            )
        if self.format == "typed" and (self.column is None or self.fields):
            raise InvalidRequest(
                f"export {self.name}: format typed is for whole bodies of one column: give column,"
                " and leave fields out"
            )
        if self.registry is not None and self.format not in ("avro", "typed"):
            raise InvalidRequest(
                f"export {self.name}: registry is for formats avro and typed, not {self.format}"
            )
        if self.registry is not None and not self.registry.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"export {self.name}: registry {self.registry!r} is not an http:// or https:// URL"
            )
        return self
