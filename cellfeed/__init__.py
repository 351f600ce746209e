"""cellfeed: a sharded store of immutable cells whose every shard is a Kafka partition.

The public names: :func:`connect` to a running instance, :class:`Client`, :class:`AsyncClient`,
:class:`Cell`, :class:`Token`. :func:`trigger` is for functions that are called for every new cell,
with :class:`RetryPolicy` for their errors. :class:`TimedOut` and :class:`ProcessEnded` stand for
outcomes that a function cannot raise itself. Names are imported at their first use: pytest loads a
module of this package in every project, whether it is used there or not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Unpack

if TYPE_CHECKING:
    from cellfeed.bridge.triggers.program import trigger
    from cellfeed.bridge.triggers.retry import ProcessEnded, RetryPolicy, TimedOut
    from cellfeed.store.cells.cell import Cell
    from cellfeed.store.cells.token import Token
    from cellfeed.store.http.async_client import AsyncClient
    from cellfeed.store.http.calls.access import AccessOptions
    from cellfeed.store.http.client import Client

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Cell",
    "Client",
    "ProcessEnded",
    "RetryPolicy",
    "TimedOut",
    "Token",
    "__version__",
    "connect",
    "trigger",
]

_HOMES: Final = {
    "AsyncClient": "cellfeed.store.http.async_client",
    "Cell": "cellfeed.store.cells.cell",
    "Client": "cellfeed.store.http.client",
    "ProcessEnded": "cellfeed.bridge.triggers.retry",
    "RetryPolicy": "cellfeed.bridge.triggers.retry",
    "TimedOut": "cellfeed.bridge.triggers.retry",
    "Token": "cellfeed.store.cells.token",
    "trigger": "cellfeed.bridge.triggers.program",
}


def connect(
    urls: str | list[str] = "http://127.0.0.1:7420",
    datastore: str = "trips",
    *,
    timeout_s: float = 20.0,
    history: str | None = None,
    **access: Unpack[AccessOptions],
) -> Client:
    """A client of a datastore's HTTP workers; with several urls it works on while one of them is
    away. ``history``: the identity of the store (``client.history``); another one is refused.
    ``token``, ``token_file``, ``ssl_ca``, ``ssl_certificate``, ``ssl_key``: see
    :class:`~cellfeed.store.http.calls.access.AccessOptions`."""
    from cellfeed.store.http.client import Client  # start-up: most modules need no client

    return Client(
        [urls] if isinstance(urls, str) else urls,
        datastore,
        timeout_s=timeout_s,
        history=history,
        **access,
    )


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            from cellfeed.extras import missing_extra  # start-up: most programs miss no extra

            if (sentence := missing_extra(error)) is None:
                raise
            raise ImportError(f"cellfeed.{name}: {sentence}", name=error.name) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
