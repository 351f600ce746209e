"""Slots of groups as commands and metrics see them: which gateway has which."""

from __future__ import annotations

from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
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
