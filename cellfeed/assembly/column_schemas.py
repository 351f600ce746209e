"""The schemas of columns' bodies that a configuration declares."""

from __future__ import annotations

from pathlib import Path

from cellfeed.config.model import Config
from cellfeed.store.datastore import Datastore


def register_schemas(config: Config, directory: Path, datastore: Datastore) -> None:
    """Registers them; files of schemas lie below ``directory``. Raises InvalidRequest, and
    IncompatibleSchema, which names field and rule: nothing is served then."""
    if config.datastore.schemas:
        from cellfeed.bridge.typed.versions import register_declared  # loads fastavro

        register_declared(datastore.state, config.datastore.schemas, directory)
