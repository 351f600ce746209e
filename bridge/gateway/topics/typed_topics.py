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

from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.events.registered_schema import COMPATIBILITY, RegisteredSchema
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.bridge.gateway.topics.topics import Topics
from cellfeed.bridge.typed.declaration import check_layout
from cellfeed.bridge.typed.rejected_cells import note_rejected
from cellfeed.bridge.typed.typed_column import TypedColumn, TypedColumns
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import id_in, schema_of_id
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import InvalidRequest

TYPED_LOOK_S: Final = 1.0
"""How often versions are looked at: a body that a new version takes is typed in every gateway after
so long."""


class TypedTopics:
    """The typed topics of one gateway, and their schemas as its registry reports them
    (:class:`cellfeed.bridge.events.registered_schema.TypedSchemas`)."""

    def __init__(self, state: StateTable) -> None:
        self._state = state
        self._columns = TypedColumns(state)
        self._formats: dict[tuple[str, Layout], TypedFormat] = {}
        self._shown: dict[str, str] = {}
        self._topics: Topics | None = None
        self._parks: set[str] = set()

    @property
    def parks(self) -> tuple[str, ...]:
        """The columns of declared topics that leave out cells which fit no version. A declared
        topic keeps its format, so they stay the same while the gateway runs."""
        return tuple(sorted(self._parks))

    def format_of(self, topic: VirtualTopic) -> TypedFormat:
        """Of a topic that is declared as typed. Raises InvalidRequest for a column without a
        schema, or with settings that the topic's layout does not go with."""
        column = self._columns.named(topic.column or "")
        if column is None:
            raise InvalidRequest(
                f"topic {topic.name}: column {topic.column} has no schema: declare one under"
                " schemas of the datastore, or take format typed out"
            )
        check_layout(f"topic {topic.name}", column.column, topic.layout, column.settings.unfit)
        made = self._format_of(column, topic.layout)
        if made.unfit == "park":
            self._parks.add(column.column)
        return made

    def follow(self, topics: Topics) -> None:
        """From now on these are kept up to date."""
        self._topics = topics
        self._apply()

    def look(self) -> None:
        """Reads the registered schemas (blocks). Raises Unavailable."""
        self._columns.renew()
        self._apply()

    def of_topic(self, topic: str) -> tuple[list[RegisteredSchema], str]:
        """See :class:`cellfeed.bridge.events.registered_schema.TypedSchemas`."""
        if self._topics is not None and self._topics.named(topic) is None:
            self._topics.refresh()  # the first cell of a column may just have come
        found = self._topics.named(topic) if self._topics is not None else None
        if found is None or not isinstance(found.event_format, TypedFormat):
            return [], COMPATIBILITY
        made = found.event_format
        return [
            RegisteredSchema(version.number, schema_id, version.cell_in(made.layout))
            for version, schema_id in made.schemas
        ], f"{made.column.settings.compatibility}_TRANSITIVE"

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        """See :class:`cellfeed.bridge.events.registered_schema.TypedSchemas`."""
        versions = (version for column in self._columns.all() for version in column.versions)
        for version in versions:
            if version.schema_id == schema_id:
                return RegisteredSchema(version.number, schema_id, version.cell)
        found = schema_of_id(self._state, schema_id)  # of a layout, or another gateway's version
        return RegisteredSchema(found[0], schema_id, found[1]) if found else None

    def _apply(self) -> None:
        for column in self._columns.all():
            made = self._format_of(column)
            if self._topics is not None and self._shown.get(column.column) != made.name:
                self._topics.type_column(column.column, partial(self._format_of, column))
                self._shown[column.column] = made.name

    def _format_of(self, column: TypedColumn, layout: Layout = Layout()) -> TypedFormat:  # noqa: B008 (it cannot change)
        made = self._formats.get((column.column, layout))
        if made is None or (layout.body == "union" and made.unfit != column.settings.unfit):
            made = self._formats[column.column, layout] = TypedFormat(
                column,
                lambda version: id_in(self._state, column.column, version, layout),
                partial(note_rejected, self._state, column.column),
                layout,
            )
        return made
