"""Which entries of the state table belong to a backup, and how those that are restored are changed.

Kept: all that is known of groups' work and of the datastore's users. Offsets, parked cells, settled
starts, kept offsets, tries, pauses, histories, indexes, users and ACLs, node ids and
generations of gateways; erasures that are not done yet, which a worker of the restored datastore
ends; and the record of those that are done. An entry of a kind that is not known here is kept.

Left out, because it speaks of processes, of storage or of work under way that a restored datastore
has not got:

    cluster/          masters, and the shards of each cluster: the storage that is restored
                      into says so
    groups/           sessions, leases, the lead, assignments and claims of coordination in the
                      store: their holders are gone
    gateways/groups/  which consumer groups have members just now
    wakeups/          addresses of processes
    checks/           how far the check of the storage is, and its findings
    coordination/history/   which ZooKeeper the processes wrote to: a restored datastore believes
                            the one that it finds
    trims/, index-unfit/    notes about entries of indexes, which are built again

**Indexes are built again**, from the restored logs: a backup has no entries of them. Each one that
had a version gets one version that is to be built, under a number that was not used before. So no
earlier version has the same tables or the same group's offsets. Entries of the groups of older
versions are not restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote, unquote
from uuid import UUID

from cellfeed.bridge.groups.control import EXPORTS, PREFIX
from cellfeed.bridge.triggers.parked.cell import is_of_rows
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.indexes.catalog import INDEXES, restored_index
from cellfeed.store.indexes.version import index_group

LEFT_OUT: Final = (
    "cluster/",
    "groups/",
    "gateways/groups/",
    "wakeups/",
    "checks/",
    "coordination/history/",
    "trims/",
    "index-unfit/",
)


def belongs(entry: StateEntry) -> bool:
    """Whether an entry is backed up."""
    return not entry.key.startswith(LEFT_OUT)


def trigger_groups(entries: Sequence[tuple[str, bytes]]) -> list[str]:
    """The triggers, and the indexes, that are known in the entries of a backup. Exports are none:
    they believe their partitions."""
    groups = {unquote(key.split("/")[1]) for key, _ in entries if key.startswith(PREFIX)}
    return sorted(group for group in groups if not group.startswith(EXPORTS))


def restored(
    entries: Sequence[tuple[str, bytes]], now_us: int, erased: Iterable[bytes] = ()
) -> list[tuple[str, bytes]]:
    """The entries to restore, without parked cells of rows (``erased``: row keys) that the restore
    erases."""
    if gone := {str(UUID(bytes=row_key)) for row_key in erased}:
        entries = [(key, value) for key, value in entries if not is_of_rows(key, value, gone)]
    found, groups = list[tuple[str, bytes]](), set[str]()
    for key, value in entries:
        if key.startswith(INDEXES):
            before, value = restored_index(key, value, now_us)
            groups |= {
                quote(index_group(before.name, version.number), safe="")
                for version in before.versions
            }
        found.append((key, value))
    return [
        (key, value)
        for key, value in found
        if len(parts := key.split("/")) < 2 or parts[1] not in groups
    ]
