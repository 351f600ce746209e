"""Slots of groups as the coordination shows them: which gateway has which."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator, Session
from cellfeed.bridge.triggers.offsets.lineage import changed_lineage
from cellfeed.store.engines.contract.state_table import StateTable

GROUP: Final = "__gateways"
"""The group of the coordination that gateways are members of."""

TOPIC: Final = "__consumer_offsets"
"""Slots are claimed as partitions of it."""


def why_stopped(state: StateTable, coordinator: Coordinator) -> str | None:
    """Why consumer groups wait for somebody: the offsets that they saved are not those that the
    coordination has now. Raises Unavailable."""
    if coordinator.keeps_in_store or (reason := changed_lineage(state, coordinator, GROUP)) is None:
        return None
    return (
        f"consumer groups wait: {reason}; look at their offsets, and let them resume from these:"
        " cellfeed offsets accept"
    )


def slots_by_gateway(coordinator: Coordinator) -> dict[str, list[int]]:
    """Which slots each living gateway holds, by name; for commands and metrics. Raises
    Unavailable."""
    living = coordinator.members(GROUP)
    found: dict[str, list[int]] = {name: [] for name in living}
    for slot, name in sorted(coordinator.owners(GROUP, TOPIC).items()):
        if name in found:
            found[name].append(slot)
    return found


def own_slots(coordinator: Coordinator, name: str) -> frozenset[int]:
    """The slots that the coordination shows as that gateway's. Raises Unavailable."""
    owners = coordinator.owners(GROUP, TOPIC)
    return frozenset(slot for slot, owner in owners.items() if owner == name)


def give_back_strays(coordinator: Coordinator, session: Session, strays: Collection[int]) -> None:
    """Gives back slots that the session's gateway has, and should not have. They are left by a call
    that failed: a release, or a claim before the slots became another's. Nobody could have them as
    long as the session lives. Raises Unavailable."""
    if strays:
        coordinator.release(coordinator.claim(session, TOPIC, strays).values())
