"""The records that a trigger keeps in the datastore about its coordination elsewhere (ZooKeeper),
for when that is away or has lost its memory.

**Away.** Work on assigned shards continues. A worker cannot distinguish a ZooKeeper that is down
from one that only it cannot reach. In the second case its session ends, and others take its shards
over. So a worker that begins on a shard says so here first (:meth:`KeptOffsets.take`). A worker
without coordination looks here before each cell: it continues as long as nobody else has begun. The
offset that it reaches is kept here too, in one commit with the cells that it parked. It is saved in
ZooKeeper when that is back. Nothing of it is only in memory, so there is no limit to how long this
may last.

**Lost.** Offsets that ZooKeeper lost are found by their lineage
(:mod:`cellfeed.bridge.triggers.offsets.lineage`).

Keys: ``foothold/<group>/shards/<topic>/<shard>``. Crash points:

    claimed, not taken here     the owner before still counts; the claim is taken over as after any
                                kill
    kept here, not saved there  the next owner continues from the kept offset, if the one there is
                                one that the keeper knew of; one set by hand meanwhile counts
    saved there, still kept here        the offset there has moved on from those that the
                                        keeper knew: it counts
    the answer to a save was lost       both offsets are known to the keeper, whichever it became:
                                        the kept one counts
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.offsets.kept_offset import NONE_SAVED, Kept, KeptOffset, decode_kept
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import StaleWriter, Unavailable

_FEW_SHARDS: Final = 16
"""Entries of up to so many shards are looked up one by one."""

_TRIES_MAX: Final = 50
"""Compare-and-set tries while others write the same shards: only during a take-over."""


class KeptOffsets:
    """All of a trigger's."""

    def __init__(self, state: StateTable, group: str, topic: str) -> None:
        self._state = state
        self._prefix = f"{kept_prefix(group)}shards/{quote(topic, safe='')}/"

    def take(self, claims: Mapping[int, Claim], saved: Mapping[int, int]) -> dict[int, KeptOffset]:
        """Begins on the shards that were claimed; ``saved`` are their offsets as read after the
        claim. Those overtaken already are left out."""
        for _ in range(_TRIES_MAX):
            entries = {entry.key: entry for entry in self._state.list(self._prefix)}
            write: dict[str, bytes | None] = {}
            expect: dict[str, int | None] = {}
            taken: dict[int, tuple[Kept, int]] = {}
            for shard, claim in claims.items():
                key, offset = f"{self._prefix}{shard}", saved.get(shard, NONE_SAVED)
                entry = entries.get(key)
                before = decode_kept(entry.value) if entry else Kept(NONE_SAVED, [NONE_SAVED])
                if before.token > claim.token:
                    continue
                kept = Kept(claim.token, [offset])
                if before.location is not None and offset in before.saved:
                    kept = Kept(claim.token, before.saved, before.location)
                taken[shard] = kept, max(0, offset if kept.location is None else kept.location)
                write[key] = msgspec.json.encode(kept)
                expect[key] = entry.version if entry else None
            version = self._state.commit(write, expect=expect) if write else 0
            if version is not None:
                return {
                    shard: KeptOffset(self._state, f"{self._prefix}{shard}", kept, version, start)
                    for shard, (kept, start) in taken.items()
                }
        raise Unavailable(f"shards of {self._prefix} could not be taken: others are faster")

    def move(
        self,
        kept_offsets: Mapping[int, KeptOffset],
        locations: Mapping[int, int],
        entries: Mapping[str, bytes | None],
    ) -> None:
        """Lets shards continue at other locations, even where the coordination still has old ones,
        and writes ``entries``: in one commit. Raises StaleWriter."""
        self._write(
            kept_offsets,
            {
                shard: Kept(each.kept.token, each.kept.saved, locations[shard])
                for shard, each in kept_offsets.items()
            },
            entries,
        )

    def moved(self, kept_offsets: Mapping[int, KeptOffset], locations: Mapping[int, int]) -> None:
        """Notes that the coordination knows of a move. Raises StaleWriter."""
        self._write(
            kept_offsets,
            {
                shard: Kept(each.kept.token, [locations[shard]])
                for shard, each in kept_offsets.items()
            },
            {},
        )

    def _write(
        self,
        kept_offsets: Mapping[int, KeptOffset],
        kept_by_shard: Mapping[int, Kept],
        entries: Mapping[str, bytes | None],
    ) -> None:
        write = {
            each.key: msgspec.json.encode(kept_by_shard[shard])
            for shard, each in kept_offsets.items()
        }
        version = self._state.commit(
            {**entries, **write}, expect={each.key: each.version for each in kept_offsets.values()}
        )
        if version is None:
            raise StaleWriter(
                f"another worker has begun on one of {len(kept_offsets)} shards of {self._prefix}"
            )
        for shard, each in kept_offsets.items():
            each.kept, each.version = kept_by_shard[shard], version

    def continues_at(
        self, saved: Mapping[int, int], *, wanted: Collection[int] | None = None
    ) -> dict[int, int]:
        """Where the next owner of each shard continues, ``saved`` being the offsets in the
        coordination; unknown shards are left out. ``wanted``: only these shards matter."""
        found = dict(saved)
        for entry in self._entries(wanted):
            shard, kept = int(entry.key.rpartition("/")[2]), decode_kept(entry.value)
            if kept.location is not None and saved.get(shard, NONE_SAVED) in kept.saved:
                found[shard] = kept.location
        return found

    def _entries(self, wanted: Collection[int] | None) -> list[StateEntry]:
        if wanted is None or len(wanted) > _FEW_SHARDS:
            return self._state.list(self._prefix)
        looked_up = (self._state.get(f"{self._prefix}{shard}") for shard in wanted)
        return [each for each in looked_up if each is not None]

    def kept(self) -> dict[int, int]:
        """How far each shard had come, as far as the store knows: never further than the work
        was done."""
        kept_by_shard = {
            int(entry.key.rpartition("/")[2]): decode_kept(entry.value)
            for entry in self._state.list(self._prefix)
        }
        return {
            shard: max(0, kept.saved[0] if kept.location is None else kept.location)
            for shard, kept in kept_by_shard.items()
        }

    def begun(self) -> list[int]:
        """Shards that have an offset for certain, unless it was lost: they had one when an owner
        last began on them."""
        return sorted(
            int(entry.key.rpartition("/")[2])
            for entry in self._state.list(self._prefix)
            if NONE_SAVED not in decode_kept(entry.value).saved
        )

    def tokens(self) -> dict[int, int]:
        """The claim under which each shard was last begun."""
        return {
            int(entry.key.rpartition("/")[2]): decode_kept(entry.value).token
            for entry in self._state.list(self._prefix)
        }

    def keys(self) -> list[str]:
        """Of the entries; a worker that still works by a deleted one is overtaken."""
        return [entry.key for entry in self._state.list(self._prefix)]


def last_known(state: StateTable, group: str, topic: str, shards: Sequence[int]) -> dict[int, int]:
    """How far each shard had come as the datastore knows it: the offset that workers kept there,
    else the one saved there while coordination was in the store."""
    earlier = {
        shard: offset.offset
        for (name, shard), offset in StoreCoordinator(state).fetch_offsets(group).items()
        if name == topic
    }
    known = earlier | KeptOffsets(state, group, topic).kept()
    return {shard: known[shard] for shard in shards if shard in known}


def needs_kept_offsets(coordinator: Coordinator) -> bool:
    """Coordination in the store is away only together with the cells, and is its own fence."""
    return not coordinator.keeps_in_store


def carried_offsets(
    group: str, topic: str, locations: Mapping[int, int], starts: Sequence[int]
) -> dict[str, bytes | None]:
    """Entries that let a group without offsets continue at these locations, by shard. ``starts``:
    where it begins on each shard, which the coordination gets first."""
    return {
        f"{kept_prefix(group)}shards/{quote(topic, safe='')}/{shard}": msgspec.json.encode(
            Kept(NONE_SAVED, [NONE_SAVED, starts[shard]], location)
        )
        for shard, location in locations.items()
    }


def kept_prefix(group: str) -> str:
    """Of all that is kept of a group here."""
    return f"foothold/{quote(group, safe='')}/"
