"""The builder of index queries: turns a form into a query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, InvalidRequest
from cellfeed.store.indexes.request import IndexPage
from cellfeed.store.security.callers import Caller

FILTERS: Final = 4
"""Lines of the form."""

ROWS_OF_A_PAGE: Final = 50
_VALUE_CHARACTERS_MAX: Final = 1_000


class IndexForm(NamedTuple):
    """A form that is filled in. ``table``: the index. ``filters``: (field, operator, value as it
    was typed)."""

    table: str
    shard_value: str
    filters: list[tuple[str, str, str]]
    order_by: str
    descending: bool
    cursor: str

    @property
    def is_asked(self) -> bool:
        return bool(self.table and self.shard_value)


def index_form(query: Mapping[str, str]) -> IndexForm:
    """The form in a page's query. Raises InvalidRequest for a value that is too long."""
    if any(len(each) > _VALUE_CHARACTERS_MAX for each in query.values()):
        raise InvalidRequest(f"a value has at most {_VALUE_CHARACTERS_MAX} characters here")
    filters = [
        (query.get(f"field{line}", ""), query.get(f"is{line}", "="), query.get(f"value{line}", ""))
        for line in range(FILTERS)
    ]
    return IndexForm(
        query.get("index", ""),
        query.get("shard_value", "").strip(),
        filters,
        query.get("order_by", ""),
        query.get("descending", "") == "1",
        query.get("cursor", ""),
    )


def ask_index(datastore: Datastore, caller: Caller, form: IndexForm) -> IndexPage:
    """The rows that the form asks for. Raises Forbidden without the right to read the indexed
    columns, NotFound, InvalidRequest."""
    if not caller.may_all("read"):
        try:
            columns = datastore.indexes.current(form.table).definition.columns
        except CellfeedError:  # somebody without any right learns nothing of the index
            columns = []
        caller.check_read(columns or None)
    return datastore.query_index(
        form.table,
        value_of(form.shard_value),
        [(field, is_, value_of(value)) for field, is_, value in form.filters if field],
        order_by=form.order_by or None,
        descending=form.descending,
        limit=ROWS_OF_A_PAGE,
        cursor=form.cursor or None,
    )


def value_of(text: str) -> Any:
    """The value of a text that is JSON, such as a number; any other text as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
