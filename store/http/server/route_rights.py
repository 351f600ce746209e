"""The rights that the routes of a worker ask for. A handler names its own under ``right`` in its
options; one that reads the columns from the body checks them itself. A route without one is for
operators alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import parse_qs

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from cellfeed.store.http.server.asgi import Scope
from cellfeed.store.http.server.callers import caller_of
from cellfeed.store.security.callers import Caller

Query = dict[str, list[str]]
Right = Callable[[Caller, Query], None]
"""Raises Forbidden where the caller lacks the right that a request with such a query needs."""


def read_column(caller: Caller, query: Query) -> None:
    """To read the column that the query names."""
    caller.check_some()
    caller.check_columns("read", query.get("column_name", ()))


def read_all(caller: Caller, _: Query) -> None:
    caller.check_all("read")


def erase(caller: Caller, _: Query) -> None:
    """To erase: a row has cells of any column."""
    caller.check_all("erase")


def describe(caller: Caller, _: Query) -> None:
    """Any right to something of the datastore."""
    caller.check_some()


def in_body(caller: Caller, query: Query) -> None:
    """The handler checks the columns or the group of the body."""


def operate(caller: Caller, _: Query) -> None:
    caller.check_datastore("operate")


_PAGES: Final = "/schema"


def has_right(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard. Raises Forbidden."""
    is_page = connection.scope["path"].startswith(_PAGES)
    right: Right = handler.opt.get("right", describe if is_page else operate)
    query = parse_qs(connection.scope["query_string"].decode("latin-1"))
    right(caller_of(cast("Scope", connection.scope)), query)
