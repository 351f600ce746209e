"""Topics as views of a datastore's logs: ``trips`` has every cell, ``trips.BASE`` only column BASE, with the same offsets. Nothing is copied.

A column whose name is not a legal topic name (Kafka allows letters, digits, ``.``, ``_`` and ``-``) has no topic of its own; its cells are in the full topic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from uuid import UUID, uuid5

from bridge.events.envelope import EventFormat

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOPIC_IDS: Final = UUID("0f9a5b8e-5a55-5d0c-8d3a-3f2a6b1d7c40")
"""Namespace of topic ids: they follow from the name, so every gateway gives the same one, for ever."""


class Topic(NamedTuple):
    """A view. ``column`` is None for the full log."""

    name: str
    topic_id: UUID
    column: str | None
    event_format: EventFormat


class Topics:
    """The topics of a datastore. ``columns`` is asked again for a name that is not known yet, so a new column's topic is there with its first cell."""

    def __init__(self, datastore: str, columns: Callable[[], list[str]], formats: Mapping[str, EventFormat]) -> None:
        self._datastore = datastore
        self._columns = columns
        self._formats = formats
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._add(datastore, None)

    def refresh(self) -> None:
        """Reads the columns again (blocks: a query of the store)."""
        for column in self._columns():
            name = f"{self._datastore}.{column}"
            if name not in self._by_name and _LEGAL.fullmatch(name):
                self._add(name, column)

    def all(self) -> list[Topic]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def named(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def identified(self, topic_id: UUID | None) -> Topic | None:
        return self._by_id.get(topic_id) if topic_id is not None else None

    def _add(self, name: str, column: str | None) -> None:
        topic = Topic(name, uuid5(_TOPIC_IDS, name), column, self._formats.get(name) or self._formats["*"])
        self._by_name[name] = topic
        self._by_id[topic.topic_id] = topic


def legal_topic_name(name: str) -> bool:
    """Whether Kafka allows the name."""
    return _LEGAL.fullmatch(name) is not None and name not in (".", "..")
