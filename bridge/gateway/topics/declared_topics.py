"""Virtual topics that a configuration declares: a view of the log under a name of its own, with the
log's offsets. Nothing is stored.

    - name: card-fares
      column: BASE
      filter: [{field: payment.kind, op: "=", value: card}]
      fields: [fare_cents, payment.kind]
      format: json
      created_at: millis
      compression: zstd
    - name: trips-latest
      latest: true

Names that begin with the datastore's name and a dot belong to columns, those that are there and
those that come: so no declared topic is in a column's way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from cellfeed.bridge.events.compression import CompressionName
from cellfeed.bridge.events.formats import CreatedAt
from cellfeed.bridge.events.named_formats import Layout, TypedBody, ViewFormatName
from cellfeed.bridge.events.views import Condition, View
from cellfeed.bridge.gateway.limits import DECLARED_TOPICS_MAX
from cellfeed.store.errors import InvalidRequest


class VirtualTopic(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A topic ``name`` of the gateways that shows a view of the log (``column``, ``filter``,
    ``fields``; all of it without) in ``format``. ``latest``: at first only the newest cell of each
    row and column, then each new cell, as in the topic ``…@latest``. ``compression``: of its
    batches. ``created_at``: its unit in the records, ``micros`` or ``millis``. ``body``: of format
    typed, ``union`` of the column's type and JSON text, or the ``record`` alone, where the column
    says ``unfit: park``."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
    column: str | None = None
    filter: list[Condition] = []
    fields: list[str] = []
    format: ViewFormatName = "avro"
    latest: bool = False
    compression: CompressionName = "none"
    created_at: CreatedAt = "micros"
    body: TypedBody = "union"

    @property
    def layout(self) -> Layout:
        return Layout(self.created_at, self.body)

    @property
    def view(self) -> View:
        return View(self.column, self.filter, self.fields)

    def definition(self) -> str:
        """Identifies the records: a topic with other records is another topic."""
        return msgspec.json.encode(
            [self.view, self.format, self.latest, *self.layout.said()], order="deterministic"
        ).decode()

    def check(self, datastore: str) -> VirtualTopic:
        """Checks rules that no type expresses. Raises InvalidRequest, which names the topic and the
        fix."""
        try:
            self.view.check()
            self.layout.check(self.format)
        except InvalidRequest as error:
            raise InvalidRequest(f"topic {self.name}: {error}") from None
        if self.format == "typed" and (self.column is None or self.fields):
            raise InvalidRequest(
                f"topic {self.name}: format typed is for whole bodies of one column: give column,"
                " and leave fields out"
            )
        if self.name in (".", "..") or not self.name.isprintable():
            raise InvalidRequest(
                f"topic {self.name!r}: Kafka does not allow that name; give another one"
            )
        if self.name == datastore:
            raise InvalidRequest(
                f"topic {self.name}: that is the topic of all cells; give the view another name, as"
                f" {datastore}-view"
            )
        if self.name.startswith(f"{datastore}."):
            other = self.name.replace(".", "-", 1)
            raise InvalidRequest(
                f"topic {self.name}: names that begin with {datastore}. are those of columns; give"
                f" the view another name, as {other}"
            )
        if self.latest and self.filter:
            raise InvalidRequest(
                f"topic {self.name}: filter and latest do not go together: the newest cell of a row"
                " may be one that the filter leaves out; take one of them out"
            )
        return self


def check_topics(
    datastore: str,
    topics: Sequence[VirtualTopic],
    formats: Container[str] = (),
    compressions: Container[str] = (),
) -> None:
    """Checks each of them, and all together. ``formats``, ``compressions``: topics for which a
    gateway's configuration has one. Raises InvalidRequest."""
    if len(topics) > DECLARED_TOPICS_MAX:
        raise InvalidRequest(
            f"{len(topics)} topics are declared; at most {DECLARED_TOPICS_MAX} are possible, take"
            " some out"
        )
    if repeated := [
        name for name, count in Counter(topic.name for topic in topics).items() if count > 1
    ]:
        raise InvalidRequest(
            f"topic {repeated[0]}: the name is given twice; give one of them another name"
        )
    for topic in topics:
        topic.check(datastore)
        if topic.name in formats:
            raise InvalidRequest(
                f"topic {topic.name}: its format is said where it is declared; take it out of the"
                " gateway's formats"
            )
        if topic.name in compressions:
            raise InvalidRequest(
                f"topic {topic.name}: its compression is said where it is declared; take it out of"
                " the gateway's compression"
            )
