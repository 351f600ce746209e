"""Wake-ups from workers of other hosts, for the followers of one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cellfeed.config.model import Config
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.wakeup_links import WakeupLinks


@contextmanager
def woken(config: Config, datastore: Datastore) -> Iterator[None]:
    """Inside, this process is woken by other hosts where the configuration says how. Raises
    InvalidRequest for files that cannot be used."""
    if config.wakeups is None:
        yield
        return
    access = config.wakeups.access()
    with WakeupLinks(datastore.state, datastore.name, datastore.history_id, access):
        yield
