"""A query of an index, as a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.http.calls.answers import index_page_asked
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.index_messages import IndexPageMessage
from cellfeed.store.indexes.definition import check_index_name
from cellfeed.store.indexes.request import Filter, IndexPage, QueryOptions


def query_index(
    requests: Requests,
    name: str,
    shard_value: Any,
    where: Sequence[Filter],
    how: QueryOptions,
    places: Mapping[int, int],
) -> Steps[IndexPage]:
    """``places``: the locations to wait for, by shard."""
    asked: dict[str, Any] = {
        **how,
        "wait_for": list(places.items()),
        "shard_value": list(shard_value) if isinstance(shard_value, set) else shard_value,
        "where": list(where),
    }
    try:
        return (
            yield from requests.post(
                f"/indexes/{quote(check_index_name(name))}/query",
                asked,
                IndexPageMessage,
                index_page_asked,
            )
        )
    except TypeError as error:
        raise InvalidRequest(f"a value of the query is of no type that JSON has: {error}") from None
