"""The source of a configuration's backups: its datastore, read from minions, and its
coordination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cellfeed.assembly.datastore import opened, shard_owners
from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.bridge.backups.readers import group_readers
from cellfeed.config.model import Config
from cellfeed.store.backups.taking import Source


@contextmanager
def backup_source(config: Config, directory: Path) -> Iterator[Callable[[], Source]]:
    """Opens it; each call returns the source of the next backup, with the offsets and the shard map
    of that moment. Raises StorageUnavailable, ProtectData, as the call does."""
    minions_first = msgspec.structs.replace(
        config, datastore=msgspec.structs.replace(config.datastore, log_reads="minion")
    )
    with opened(minions_first, directory) as (_, datastore, coordinator):
        yield lambda: Source(
            datastore.engine,
            belongs,
            group_readers(coordinator, datastore.shards),
            shard_owners(datastore),
        )
