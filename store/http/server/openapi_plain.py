"""The document as generators read it: the parts of JSON Schema that some of them do not know are
written in a plainer way, which allows the same messages or more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar.handlers import HTTPRouteHandler

_INTEGER: Final = "int64"
"""Without a format a generated client may take 32 bits; ref keys and added_ids have more."""


def operation_id(handler: HTTPRouteHandler, method: object, path: Sequence[object]) -> str:
    """The name of a call in generated clients: that of its handler, ``getCell`` for ``get_cell``;
    where that has several paths, the path's."""
    del method
    words = handler.handler_name.rpartition(".")[2].split("_")
    if len(handler.paths) > 1:
        words = [each for each in path if isinstance(each, str)]
    first, *others = words
    return first + "".join(word.capitalize() for word in others)


def made_plain(schema: Any) -> None:
    """Changes a part of the document, and everything in it.

    A tuple becomes an array of its length: with the type of its places where they have one, else of
    anything. An integer gets its size.
    """
    if isinstance(schema, list):
        for each in schema:
            made_plain(each)
    elif isinstance(schema, dict):
        if isinstance(places := schema.get("prefixItems"), list):
            del schema["prefixItems"]
            schema["items"] = places[0] if all(each == places[0] for each in places) else {}
        if schema.get("type") == "integer":
            schema.setdefault("format", _INTEGER)
        for each in schema.values():
            made_plain(each)
