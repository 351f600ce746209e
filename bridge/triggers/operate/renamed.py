"""Where groups went that have another name now: the notes that a rename leaves."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from cellfeed.bridge.groups.control import group_prefix
from cellfeed.bridge.groups.progress_records import About
from cellfeed.store.engines.contract.state_table import StateTable

RENAMED: Final = "renamed/"
"""Begins the notes: old name to :class:`Renamed`."""

_BEGUN: Final = (
    ("starts/", "/"),
    ("offsets/", "/"),
    ("foothold/", "/shards/"),
    ("parked/", "/"),
    ("skipped/", "/"),
)
"""The text before and behind the group's name in entries that only a group has which has worked."""


class Renamed(msgspec.Struct, frozen=True):
    """Where a group went. ``column`` and ``function``: as its workers last said. ``ended``: nothing
    of the old name is left elsewhere."""

    to: str
    at_us: int
    column: str = ""
    function: str = ""
    ended: bool = False


def has_begun(state: StateTable, group: str) -> bool:
    """Whether the datastore knows of work of the group."""
    name = quote(group, safe="")
    return any(state.list(f"{before}{name}{behind}") for before, behind in _BEGUN)


def renamed_groups(state: StateTable) -> list[str]:
    """Names that are no longer in use, percent-encoded."""
    return [each.key.removeprefix(RENAMED) for each in state.list(RENAMED)]


def renamed(state: StateTable, old: str) -> Renamed | None:
    """Where the group went; None where it has its name still."""
    found = state.get(note_key(old))
    return msgspec.json.decode(found.value, type=Renamed) if found else None


def last_report(state: StateTable, group: str) -> About | None:
    """The trigger that the group's workers named last."""
    found = state.get(f"{group_prefix(group)}about")
    return msgspec.json.decode(found.value, type=About) if found else None


def note_key(old: str) -> str:
    """Of the note about a group that had this name."""
    return f"{RENAMED}{quote(old, safe='')}"
