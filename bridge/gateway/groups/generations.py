"""Generations of groups, reserved for the gateway that has their slot.

**Generations never go back across a move.** Before it uses a slot, a gateway reserves generations
in the state table, above all earlier ones. The commit carries the claim:

    gateways/slots/<slot>       the end of the generations that were given to its coordinators so
                                far

A gateway that takes a slot over begins at that end. No gateway coordinates a slot without having
moved the end. So one whose session has ended looks there, even when it cannot reach the
coordination. As long as the end is the one that it wrote, no other gateway has coordinated the slot
meanwhile, and its groups stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.gateway.groups.slot_owners import GROUP
from cellfeed.bridge.gateway.limits import GENERATIONS_RESERVED
from cellfeed.store.engines.contract.state_table import StateTable

_PREFIX: Final = "gateways/slots/"
_decode_number = msgspec.json.Decoder(int)


class ReservedGenerations:
    """The ends of all slots. Blocking."""

    def __init__(self, coordinator: Coordinator, state: StateTable) -> None:
        self._coordinator = coordinator
        self._state = state

    def ends(self) -> dict[int, int]:
        """By slot. Raises Unavailable."""
        return {
            int(entry.key.removeprefix(_PREFIX)): _decode_number.decode(entry.value)
            for entry in self._state.list(_PREFIX)
        }

    def reserve(self, claims: Mapping[int, Claim], ends: Mapping[int, int]) -> None:
        """Moves the ends of these slots up. Raises StaleWriter when a claim is
        void, Unavailable."""
        if claims:
            entries: dict[str, bytes | None] = {
                f"{_PREFIX}{slot}": str(ends.get(slot, 0) + GENERATIONS_RESERVED).encode()
                for slot in claims
            }
            self._coordinator.commit_offsets(
                GROUP, {}, claims=list(claims.values()), entries=entries
            )
