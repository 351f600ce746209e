"""Query strings and timestamps from outside: read strictly, because a parameter that is silently
dropped or mended reads another cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from cellfeed.store.api import Location
from cellfeed.store.cells.cell import check_ref_key
from cellfeed.store.errors import InvalidLocation, InvalidRequest
from cellfeed.store.security.tokens import without_secrets

PARAMETERS_MAX: Final = 16
"""Parameters of one query string; no route has more than four."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_INTEGERS: Final = frozenset({"ref_key", "limit"})
_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)"
)


def strict_query(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard: :func:`check_query_string` for the route's parameters."""
    check_query_string(connection.scope["query_string"], handler.opt.get("query", ()))


def check_query_string(raw: bytes, known: Sequence[str]) -> None:
    """Every parameter is known to the route, stands once, and is UTF-8. Raises InvalidRequest."""
    if not raw:
        return
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError as error:
        shown = without_secrets(f"{ascii(raw.decode('latin-1'))[:80]}: {error}")
        raise InvalidRequest(f"query string {shown}") from None
    seen: set[str] = set()
    for name, value in pairs:
        if name not in known:
            raise InvalidRequest(
                f"this route has no parameter {without_secrets(ascii(name)[:80])}; it has"
                f" {', '.join(known) or 'none'}"
            )
        if name in seen:
            raise InvalidRequest(f"parameter {name} is given twice")
        if name in _INTEGERS and not _INTEGER.fullmatch(value):
            raise InvalidRequest(f"parameter {name} {ascii(value)[:80]} is not an integer")
        if name == "ref_key":
            check_ref_key(int(value))
        seen.add(name)


def location_from(given: int | str) -> Location:
    """A location as requests carry it: an added_id, or an RFC 3339 timestamp with a time zone.
    Raises InvalidLocation."""
    if isinstance(given, int):
        return given
    if given.isascii() and given.isdigit() and len(given) <= 19:
        return int(given)
    if _TIMESTAMP.fullmatch(given):
        try:
            return datetime.fromisoformat(given.upper())
        except ValueError:
            pass
    raise InvalidLocation(
        f"location {ascii(given)[:80]} must be an added_id or a timestamp with a time zone, such as"
        " 2019-03-23T20:21:09Z"
    )
