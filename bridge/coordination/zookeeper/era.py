"""The era of ZooKeeper's history as the state table knows it, with its processes' witnesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry

encode_json = msgspec.json.encode

HISTORY: Final = "coordination/history/"
"""Of the entries in the state table. A backup leaves them out: a restored datastore believes the
ZooKeeper that it finds."""

ERA_KEY: Final = f"{HISTORY}era"
WITNESSES: Final = f"{HISTORY}witnesses/"


class Era(msgspec.Struct, frozen=True):
    """``first``: the datastore has had no other in this ZooKeeper."""

    identity: str
    first: bool


class KeptEra(msgspec.Struct, frozen=True):
    """The era as the state table has it. ``next``: an era that is being declared. ``because``: why
    the last one was."""

    era: Era | None = None
    next: Era | None = None
    because: str | None = None


@dataclass(frozen=True)
class KnownEra:
    kept: KeptEra
    version: int | None
    witnesses: Mapping[str, StateEntry]
    """By process, of the present era."""


def known_era(state: StateTable) -> KnownEra:
    """Reads the era and the witnesses from the state table."""
    kept, version, witnesses = KeptEra(), None, dict[str, StateEntry]()
    entries = state.list(HISTORY)
    for entry in entries:
        if entry.key == ERA_KEY:
            kept, version = msgspec.json.decode(entry.value, type=KeptEra), entry.version
    if kept.era is not None:
        prefix = f"{WITNESSES}{kept.era.identity}/"
        witnesses = {
            entry.key.removeprefix(prefix): entry
            for entry in entries
            if entry.key.startswith(prefix)
        }
    return KnownEra(kept, version, witnesses)


def keep_era(state: StateTable, kept: KeptEra, known: KnownEra) -> bool:
    """Whether nobody was faster."""
    return state.commit({ERA_KEY: encode_json(kept)}, expect={ERA_KEY: known.version}) is not None
