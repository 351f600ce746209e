"""Builds every index of an embedded store again, even where the file with their entries is lost or
damaged: the cells alone decide its content.

Crash points: first all versions are marked as dropped, so nobody asks them; then an empty file
takes the place of the old one; then each index gets a new version of its newest definition, and the
old ones are forgotten. Killed anywhere, it is run again, and no query is ever answered from an
empty file.
"""

from __future__ import annotations

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.indexes.status import drop_versions
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.indexes.records import VersionRecord

declare("index.rebuild.marked", "index.rebuild.renewed", "index.rebuild.created")


def rebuild_indexes(datastore: Datastore, coordinator: Coordinator) -> dict[str, VersionRecord]:
    """By index its new version, which is to be built. Raises InvalidRequest for clusters,
    StorageUnavailable while a worker still keeps an old version."""
    if not isinstance(datastore.engine, SqliteEngine):
        raise InvalidRequest(
            "only an embedded datastore has a file of its indexes; `cellfeed index repair` mends"
            " those of clusters"
        )
    catalog = datastore.indexes.catalog
    records = catalog.all()
    for record in records:
        catalog.begin_drop(record.name)
    failpoint("index.rebuild.marked")
    datastore.engine.renew_indexes()
    failpoint("index.rebuild.renewed")
    made = {}
    for record in records:
        made[record.name] = catalog.create(record.versions[-1].definition)
        datastore.engine.indexes.create(datastore.indexes.version(made[record.name]).table)
        failpoint("index.rebuild.created")
        drop_versions(datastore, coordinator, record.name, record.versions[-1].number)
    return made
