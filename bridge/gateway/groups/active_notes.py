"""Notes which groups have members, as a gateway that takes their slots over reads them; they are
written by :mod:`cellfeed.bridge.gateway.groups.active_groups`."""

from __future__ import annotations

from typing import Final

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable

ACTIVE_PREFIX: Final = "gateways/groups/"


class ActiveGroup(msgspec.Struct, frozen=True):
    """A group that had members, and the longest session time-out among them."""

    group_id: str
    session_timeout_s: float


_decode = msgspec.json.Decoder(ActiveGroup)


def active_groups(state: StateTable) -> dict[int, dict[str, float]]:
    """By slot the groups with members, and their longest session time-out in seconds. Raises
    Unavailable."""
    found: dict[int, dict[str, float]] = {}
    for entry in state.list(ACTIVE_PREFIX):
        slot = int(entry.key.removeprefix(ACTIVE_PREFIX).partition("/")[0])
        group = _decode.decode(entry.value)
        found.setdefault(slot, {})[group.group_id] = group.session_timeout_s
    return found
