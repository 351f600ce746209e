"""Topics whose bodies are typed: the topic of each column with a registered schema, and views of
one that are declared so. They follow the datastore's registered versions.

A gateway looks once a second, and before it shows a body as fitting no version
(:mod:`cellfeed.bridge.typed.typed_column`). The topic of all cells is never typed. Its type would
be a union over the columns. A column that gets a schema would add a branch which no reader with the
union of yesterday can read. Readers of the full topic would stop at the first cell of a column that
they may not even want. So it stays an envelope with JSON, which every reader reads for ever.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cellfeed.bridge.events.registry import COMPATIBILITY, RegisteredSchema
from cellfeed.bridge.gateway.topics.topics import Topics
from cellfeed.bridge.typed.rejected_cells import note_unfit
from cellfeed.bridge.typed.typed_column import TypedColumn, TypedColumns
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import Version
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.errors import InvalidRequest

TYPED_LOOK_S: Final = 1.0
"""How often versions are looked at: a body that a new version takes is typed in every gateway after
so long."""


class TypedTopics:
    """The typed topics of one gateway, and their schemas as its registry tells them
    (:class:`cellfeed.bridge.events.registry.TypedSchemas`)."""

    def __init__(self, state: StateTable) -> None:
        self._state = state
        self._columns = TypedColumns(state)
        self._formats: dict[str, TypedFormat] = {}
        self._shown: dict[str, str] = {}
        self._topics: Topics | None = None
        for column in self._columns.all():
            self._format_of(column)

    def format_of(self, column: str | None) -> TypedFormat:
        """Of a topic that is declared as typed. Raises InvalidRequest for a column without a
        schema."""
        found = self._formats.get(column or "")
        if found is None:
            raise InvalidRequest(
                f"column {column} has no schema: declare one under schemas of the datastore, or"
                " take format typed out"
            )
        return found

    def follow(self, topics: Topics) -> None:
        """From now on these are kept up to date."""
        self._topics = topics
        self._apply()

    def look(self) -> None:
        """Looks at what is registered (blocks). Raises Unavailable."""
        self._columns.renew()
        self._apply()

    def of_topic(self, topic: str) -> tuple[list[RegisteredSchema], str]:
        """See :class:`cellfeed.bridge.events.registry.TypedSchemas`."""
        if self._topics is not None and self._topics.named(topic) is None:
            self._topics.refresh()  # the first cell of a column may just have come
        found = self._topics.named(topic) if self._topics is not None else None
        if found is None or not isinstance(found.event_format, TypedFormat):
            return [], COMPATIBILITY
        column = found.event_format.column
        return [
            _registered(version) for version in column.versions
        ], f"{column.settings.compatibility}_TRANSITIVE"

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        """See :class:`cellfeed.bridge.events.registry.TypedSchemas`."""
        found = self._by_id(schema_id)
        if found is None:  # another gateway has shown it already
            self.look()
            found = self._by_id(schema_id)
        return found

    def _by_id(self, schema_id: int) -> RegisteredSchema | None:
        versions = (version for column in self._columns.all() for version in column.versions)
        return next(
            (_registered(version) for version in versions if version.schema_id == schema_id), None
        )

    def _apply(self) -> None:
        for column in self._columns.all():
            made = self._format_of(column)
            if self._topics is not None and self._shown.get(column.column) != made.name:
                self._topics.type_column(column.column, made)
                self._shown[column.column] = made.name

    def _format_of(self, column: TypedColumn) -> TypedFormat:
        made = self._formats.get(column.column)
        if made is None or made.unfit != column.settings.unfit:
            made = self._formats[column.column] = TypedFormat(
                column, park=partial(note_unfit, self._state, column.column)
            )
        return made


def _registered(version: Version) -> RegisteredSchema:
    return RegisteredSchema(version.number, version.schema_id, version.cell)
