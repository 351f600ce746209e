"""Where each API registers itself, at the place where it is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

Handler = Callable[
    [GatewayContext, Any, RequestHead, Peer], Awaitable[Mapping[str, Any] | list[bytes]]
]
"""Takes the parsed request; gives the response's fields, or its whole frame in pieces."""


class Api(NamedTuple):
    """``versions``: the first and the last one, both included."""

    key: int
    versions: tuple[int, int]
    handle: Handler


APIS: Final[dict[int, Api]] = {}
"""By key."""


def api_names() -> dict[int, str]:
    """By key, as metrics name them: ``fetch``, ``offset_commit``."""
    return {key: each.handle.__module__.rpartition("api_")[2][3:] for key, each in APIS.items()}


def api(key: int, versions: tuple[int, int]) -> Callable[[Handler], Handler]:
    """Registers the decorated handler for these versions of an API. Raises ValueError for a key
    that another handler has."""

    def register(handler: Handler) -> Handler:
        if key in APIS:
            raise ValueError(
                f"two handlers for API {key}: {APIS[key].handle.__module__} and"
                f" {handler.__module__}"
            )
        APIS[key] = Api(key, versions, handler)
        return handler

    return register
