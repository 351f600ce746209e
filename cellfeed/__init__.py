"""cellfeed: a sharded store of immutable cells whose every shard is a Kafka partition.

The public names: :func:`connect` to a running instance, :class:`Client`, :class:`Cell`, :func:`trigger` for functions that are called for every new cell.
"""

from __future__ import annotations

from bridge.triggers.program import trigger
from store.cells import Cell
from store.client import Client

__version__ = "0.1.0"
__all__ = ["Cell", "Client", "__version__", "connect", "trigger"]


def connect(urls: str | list[str] = "http://127.0.0.1:7420", datastore: str = "trips", *, timeout_s: float = 20.0) -> Client:
    """A client of a datastore's HTTP workers; with several urls it goes on when one of them is away."""
    return Client([urls] if isinstance(urls, str) else urls, datastore, timeout_s=timeout_s)
