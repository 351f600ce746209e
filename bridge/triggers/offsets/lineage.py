"""Whether a group's offsets in the coordination are still those that it saved.

The datastore remembers the lineage of the group's offsets, ``foothold/<group>/lineage``. It is
another one when ZooKeeper came back empty or went back in time. So it is when somebody deleted the
group, or when the configuration names another coordination. Then, or when a shard has no offset any
more, nobody can know where the work was, and it stops. ``cellfeed offsets set`` says where it
continues (:func:`accept`).
"""

from __future__ import annotations

from collections.abc import Collection

from cellfeed.bridge.coordination.contract import Offsets, TopicPartition
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets, kept_prefix
from cellfeed.store.engines.contract.state_table import StateTable


def changed_lineage(state: StateTable, offsets: Offsets, group: str) -> str | None:
    """Why the group's offsets cannot be trusted to be those that it saved; None when they can.
    Remembers a new group's lineage."""
    key = f"{kept_prefix(group)}lineage"
    while True:
        entry = state.get(key)
        known = (
            entry.value.decode()
            if entry
            else _lineage_before_any_was_remembered(state, offsets, group)
        )
        if known is None and offsets.keeps_in_store:
            return None  # as in most instances: nothing has to be remembered
        now = offsets.lineage(group)
        if known == now:
            return None
        if known is not None:
            why = offsets.why_changed() or "they were lost, deleted, or are kept elsewhere"
            return f"its offsets were saved in another memory ({known}; now {now}): {why}"
        if state.commit({key: now.encode()}, expect={key: None}) is not None:
            return None


def lost_offsets(
    state: StateTable,
    offsets: Offsets,
    group: str,
    topic: str,
    found: Collection[TopicPartition] | None = None,
    shards: Collection[int] | None = None,
) -> str | None:
    """As :func:`changed_lineage`, and looks for every shard's offset as well. ``found``: the
    partitions that have one, where somebody has just looked. ``shards``: only these are looked for,
    where only they are about to be begun."""
    reason = changed_lineage(state, offsets, group)
    if reason is None and not offsets.keeps_in_store:
        begun = [
            shard
            for shard in KeptOffsets(state, group, topic).begun()
            if shards is None or shard in shards
        ]
        if found is None and begun:
            found = offsets.fetch_offsets(group, [(topic, shard) for shard in begun])
        if missing := [shard for shard in begun if (topic, shard) not in (found or ())]:
            return (
                f"the offsets of {len(missing)} shards that it has worked on are gone, for example"
                f" of shard {missing[0]}"
            )
    return reason


def acceptance(
    state: StateTable, offsets: Offsets, group: str, topic: str
) -> dict[str, bytes | None]:
    """Entries that say: from now on the group's offsets are those that the coordination has."""
    key = f"{kept_prefix(group)}lineage"
    write: dict[str, bytes | None] = {}
    if not offsets.keeps_in_store or state.get(key) is not None:
        write[key] = offsets.lineage(group).encode()
    if offsets.keeps_in_store:
        write |= dict.fromkeys(KeptOffsets(state, group, topic).keys())
    return write


def accept(state: StateTable, offsets: Offsets, group: str, topic: str) -> None:
    """Makes the coordination's offsets those of the group, and discards the local
    copy."""
    state.commit(
        {
            **dict.fromkeys(KeptOffsets(state, group, topic).keys()),
            **acceptance(state, offsets, group, topic),
        }
    )


def choices(group: str) -> str:
    """The ways out for a group whose offsets are lost."""
    return (
        f"say where it resumes: cellfeed offsets set {group} kept|earliest|latest|SHARD:LOCATION,…"
    )


def _lineage_before_any_was_remembered(
    state: StateTable, offsets: Offsets, group: str
) -> str | None:
    earlier = StoreCoordinator(state)
    return (
        earlier.lineage(group)
        if not offsets.keeps_in_store and earlier.fetch_offsets(group)
        else None
    )


def lineage_key(group: str) -> str:
    """Of the entry that remembers the lineage of the group's offsets."""
    return f"{kept_prefix(group)}lineage"
