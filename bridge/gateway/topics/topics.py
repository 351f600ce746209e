"""Topics as views of a datastore's logs: ``trips`` has every cell, ``trips.BASE`` only column BASE,
declared ones the cells of their view, and ``…@latest`` at first only the newest cells
(:mod:`cellfeed.bridge.gateway.log.newest`): all with the same offsets. Nothing is copied.

A column whose name is not a legal topic name (Kafka allows letters, digits, ``.``, ``_`` and ``-``)
has no topic of its own; its cells are in the full topic.

The topic of all cells, and that of each column, has one more behind it, ``@latest``. A client that
asks for it by its name gets it, but it is not listed. So a client that follows all topics of a
pattern gets no cell twice through it. Tools are not shown a name that Kafka's own rules do not
allow. Clients that keep to those rules can be given a declared topic with ``latest`` under a legal
name.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID, uuid5

import msgspec

from cellfeed.bridge.events.compression import Compression, compression_named
from cellfeed.bridge.events.envelope import EventFormat
from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.events.views import View, ViewReader
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic

LATEST: Final = "@latest"
"""Behind a topic's name. No topic of a column ends with it: ``@`` is not legal there."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOPIC_IDS: Final = UUID("0f9a5b8e-5a55-5d0c-8d3a-3f2a6b1d7c40")
"""Namespace of topic ids: they follow from the name, so every gateway gives the same one, for ever.
The id of a declared topic follows from its name and its definition: one that is declared again with
other records is another topic to clients that go by ids, like a deleted topic that was made
again."""


class Topic(NamedTuple):
    """A view of the log in a format. ``latest``: only the newest cells are shown, up to where a
    reader began. ``content`` is the same for two topics whose batches are the same: they share
    their kept blocks."""

    name: str
    topic_id: UUID
    view: View
    reader: ViewReader
    event_format: EventFormat
    latest: bool
    content: str
    compression: Compression | None = None


class Topics:
    """The topics of a datastore. ``columns`` is asked again for a name that is not known yet, so a
    new column's topic is there with its first cell.

    ``formats``, ``compressions``: by topic name, ``*`` for the others; ``declared``: with the
    format of each. :meth:`type_column` gives a column's topic a typed format, unless ``formats``
    says another one for it.
    """

    def __init__(
        self,
        datastore: str,
        columns: Callable[[], list[str]],
        formats: Mapping[str, EventFormat],
        declared: Sequence[tuple[VirtualTopic, EventFormat]] = (),
        compressions: Mapping[str, Compression | None] | None = None,
    ) -> None:
        self.datastore = datastore
        self._columns = columns
        self._formats = formats
        self._compressions = {"*": None, **(compressions or {})}
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._hidden: set[str] = set()
        self._declared: dict[str, VirtualTopic] = {}
        self._typed: dict[str, EventFormat] = {}
        self._changing = threading.Lock()
        """A column's topic that is made while the column becomes typed is typed, too."""
        for topic, event_format in declared:
            self._add_declared(topic, event_format)
            self._declared[topic.name] = topic
        self._add_with_latest(datastore, View())

    def refresh(self) -> None:
        """Reads the columns again (blocks: a query of the store)."""
        columns = self._columns()
        with self._changing:
            for column in columns:
                name = f"{self.datastore}.{column}"
                if name not in self._by_name and _LEGAL.fullmatch(name):
                    self._add_with_latest(name, View(column))

    def type_column(self, column: str, format_in: Callable[[Layout], EventFormat]) -> None:
        """Makes the bodies of a column typed, or typed by more versions: in its topic, in
        ``@latest`` of it, and in views of it that are declared as typed, in their layouts. Topics
        whose records change with it get another ``content``, so that kept blocks of the old one do
        not count for them."""
        name, event_format = f"{self.datastore}.{column}", format_in(Layout())
        with self._changing:
            if self._formats["*"].name == "avro" and name not in self._formats:
                self._typed[name] = event_format
                for topic in filter(
                    None, (self._by_name.get(name), self._by_name.get(name + LATEST))
                ):
                    if topic.name not in self._formats:
                        self._add(
                            make_topic(
                                topic.name,
                                topic.view,
                                event_format,
                                latest=topic.latest,
                                compression=topic.compression,
                            )
                        )
            for declared in self._declared.values():
                if declared.format == "typed" and declared.column == column:
                    self._add_declared(declared, format_in(declared.layout))

    def all(self) -> list[Topic]:
        """Those that are listed."""
        return [self._by_name[name] for name in sorted(self._by_name) if name not in self._hidden]

    def named(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def identified(self, topic_id: UUID | None) -> Topic | None:
        return self._by_id.get(topic_id) if topic_id is not None else None

    def _add_with_latest(self, name: str, view: View) -> None:
        event_format = self._formats.get(name) or self._typed.get(name) or self._formats["*"]
        compression = self._compressions.get(name, self._compressions["*"])
        latest = name + LATEST
        self._hidden.add(latest)
        latest_format, latest_compression = (
            self._formats.get(latest) or event_format,
            self._compressions.get(latest, compression),
        )
        self._add(
            make_topic(latest, view, latest_format, latest=True, compression=latest_compression)
        )
        self._add(make_topic(name, view, event_format, compression=compression))

    def _add_declared(self, topic: VirtualTopic, event_format: EventFormat) -> None:
        compression = compression_named(topic.compression)
        self._add(
            make_topic(
                topic.name,
                topic.view,
                event_format,
                latest=topic.latest,
                definition=topic.definition(),
                compression=compression,
            )
        )

    def _add(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic


def make_topic(
    name: str,
    view: View,
    event_format: EventFormat,
    *,
    latest: bool = False,
    definition: str | None = None,
    compression: Compression | None = None,
) -> Topic:
    """A topic whose id follows from its name, and from its definition where it has one."""
    topic_id = uuid5(_TOPIC_IDS, name if definition is None else f"{name}\n{definition}")
    content = msgspec.json.encode(
        [view, event_format.name, compression.name if compression else "none"],
        order="deterministic",
    ).decode()
    return Topic(name, topic_id, view, ViewReader(view), event_format, latest, content, compression)


def legal_topic_name(name: str) -> bool:
    """Whether Kafka allows the name."""
    return _LEGAL.fullmatch(name) is not None and name not in (".", "..")
