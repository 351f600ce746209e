"""The Kafka cluster id of a datastore."""

from __future__ import annotations

from typing import Final
from uuid import UUID, uuid5

from cellfeed.store.datastore import Datastore

_CLUSTER_IDS: Final = UUID("5d1c8a6e-2c1b-5b9e-9f57-1d0a7f6f2b11")
"""For datastores that were made before histories had an identity."""


def cluster_id_of(datastore: Datastore) -> str:
    """The Kafka cluster id by which clients know the log: of the datastore's history, so another
    one after a restore."""
    history_id = datastore.history_id
    return str(UUID(history_id)) if history_id else str(uuid5(_CLUSTER_IDS, datastore.name))
