"""The records that a trigger keeps in the datastore about its coordination elsewhere (ZooKeeper),
for when that is away or has lost its memory.

**Away.** Work on assigned shards continues. A worker cannot distinguish a ZooKeeper that is down
from one that only it cannot reach. In the second case its session ends, and others take its shards
over. So a worker that begins on a shard says so here first (:meth:`KeptOffsets.take`). A worker
without coordination looks here before each cell: it continues as long as nobody else has begun. The
offset that it reaches is kept here too, in one commit with the cells that it parked. It is saved in
ZooKeeper when that is back. Nothing of it is only in memory, so there is no limit to how long this
may last.

**Lost.** The lineage of the group's offsets is remembered here. It is another one when ZooKeeper
came back empty or went back in time. So it is when somebody deleted the group, or when the
configuration names another coordination. Then, or when a shard has no offset any more, nobody can
know where the work was, and it stops. ``cellfeed offsets set`` says where it continues
(:func:`accept`).

Keys: ``foothold/<group>/lineage``, ``foothold/<group>/shards/<topic>/<shard>``. Crash points:

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

from cellfeed.bridge.coordination.contract import Claim, Coordinator, Offsets, TopicPartition
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import OutcomeUnknown, StaleWriter, Unavailable

NONE_SAVED: Final = -1
"""Stands for a shard without an offset."""

_DOUBTFUL_SAVES_MAX: Final = 16
"""Saves with a lost answer that are remembered for a shard. There is one for each time that the
connection breaks during a save before one succeeds; beyond this many, cells may run again, none is
left out."""

_FEW_SHARDS: Final = 16
"""Entries of up to so many shards are looked up one by one."""

_TRIES_MAX: Final = 50
"""Compare-and-set tries while others write the same shards: only during a take-over."""


class _Kept(msgspec.Struct, frozen=True):
    """``saved``: the offsets that the coordination may have, as far as the owner knows.
    ``location``: how far it has come without having saved that."""

    token: int
    saved: list[int]
    location: int | None = None


class KeptOffset:
    """One owner's stay on one shard. Used by one thread at a time."""

    def __init__(self, state: StateTable, key: str, kept: _Kept, version: int, start: int) -> None:
        self._state = state
        self.key = key
        self.kept = kept
        self.version = version
        self.start = start
        """Where the work continues."""

    def check(self) -> None:
        """Raises StaleWriter when another worker has begun on the shard."""
        entry = self._state.get(self.key)
        if entry is None or entry.version != self.version:
            raise self._overtaken()

    def keep(
        self,
        location: int,
        entries: Mapping[str, bytes | None] | None = None,
        *,
        failed: Unavailable | None = None,
    ) -> None:
        """Keeps how far the work has come, and writes ``entries`` in the same commit. ``failed``:
        why the same was not saved. Raises StaleWriter."""
        saved = self.kept.saved
        if isinstance(failed, OutcomeUnknown) and location not in saved:
            saved = [*saved, location][-_DOUBTFUL_SAVES_MAX:]
        self._write(_Kept(self.kept.token, saved, location), entries or {})

    def saved(self, location: int) -> None:
        """Notes that the coordination has the offset."""
        settled = _Kept(self.kept.token, [location])
        if self.kept.location is None:
            self.kept = settled  # nothing of it is needed in the store until something is kept
        else:
            self._write(settled, {})

    def _write(self, kept: _Kept, entries: Mapping[str, bytes | None]) -> None:
        version = self._state.commit(
            {**entries, self.key: msgspec.json.encode(kept)}, expect={self.key: self.version}
        )
        if version is None:
            raise self._overtaken()
        self.kept, self.version = kept, version

    def _overtaken(self) -> StaleWriter:
        return StaleWriter(f"another worker has begun on {self.key.partition('/')[2]}")


class KeptOffsets:
    """All of a trigger's."""

    def __init__(self, state: StateTable, group: str, topic: str) -> None:
        self._state = state
        self._prefix = f"{_prefix(group)}shards/{quote(topic, safe='')}/"

    def take(self, claims: Mapping[int, Claim], saved: Mapping[int, int]) -> dict[int, KeptOffset]:
        """Begins on the shards that were claimed; ``saved`` are their offsets as read after the
        claim. Those overtaken already are left out."""
        for _ in range(_TRIES_MAX):
            entries = {entry.key: entry for entry in self._state.list(self._prefix)}
            write: dict[str, bytes | None] = {}
            expect: dict[str, int | None] = {}
            taken: dict[int, tuple[_Kept, int]] = {}
            for shard, claim in claims.items():
                key, offset = f"{self._prefix}{shard}", saved.get(shard, NONE_SAVED)
                entry = entries.get(key)
                before = _decode(entry.value) if entry else _Kept(NONE_SAVED, [NONE_SAVED])
                if before.token > claim.token:
                    continue
                kept = _Kept(claim.token, [offset])
                if before.location is not None and offset in before.saved:
                    kept = _Kept(claim.token, before.saved, before.location)
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
                shard: _Kept(each.kept.token, each.kept.saved, locations[shard])
                for shard, each in kept_offsets.items()
            },
            entries,
        )

    def moved(self, kept_offsets: Mapping[int, KeptOffset], locations: Mapping[int, int]) -> None:
        """Notes that the coordination knows of a move. Raises StaleWriter."""
        self._write(
            kept_offsets,
            {
                shard: _Kept(each.kept.token, [locations[shard]])
                for shard, each in kept_offsets.items()
            },
            {},
        )

    def _write(
        self,
        kept_offsets: Mapping[int, KeptOffset],
        kept_by_shard: Mapping[int, _Kept],
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
            shard, kept = int(entry.key.rpartition("/")[2]), _decode(entry.value)
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
            int(entry.key.rpartition("/")[2]): _decode(entry.value)
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
            if NONE_SAVED not in _decode(entry.value).saved
        )

    def tokens(self) -> dict[int, int]:
        """The claim under which each shard was last begun."""
        return {
            int(entry.key.rpartition("/")[2]): _decode(entry.value).token
            for entry in self._state.list(self._prefix)
        }

    def keys(self) -> list[str]:
        """Of the entries; a worker that still works by a deleted one is overtaken."""
        return [entry.key for entry in self._state.list(self._prefix)]


def changed_lineage(state: StateTable, offsets: Offsets, group: str) -> str | None:
    """Why the group's offsets cannot be trusted to be those that it saved; None when they can.
    Remembers a new group's lineage."""
    key = f"{_prefix(group)}lineage"
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
    key = f"{_prefix(group)}lineage"
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


def choices(group: str) -> str:
    """The ways out for a group whose offsets are lost."""
    return (
        f"say where it resumes: cellfeed offsets set {group} kept|earliest|latest|SHARD:LOCATION,…"
    )


def needs_kept_offsets(coordinator: Coordinator) -> bool:
    """Coordination in the store is away only together with the cells, and is its own fence."""
    return not coordinator.keeps_in_store


def _lineage_before_any_was_remembered(
    state: StateTable, offsets: Offsets, group: str
) -> str | None:
    earlier = StoreCoordinator(state)
    return (
        earlier.lineage(group)
        if not offsets.keeps_in_store and earlier.fetch_offsets(group)
        else None
    )


def kept_prefix(group: str) -> str:
    """Of all that is kept of a group here."""
    return _prefix(group)


def lineage_key(group: str) -> str:
    """Of the entry that remembers the lineage of the group's offsets."""
    return f"{_prefix(group)}lineage"


def carried_offsets(
    group: str, topic: str, locations: Mapping[int, int], starts: Sequence[int]
) -> dict[str, bytes | None]:
    """Entries that let a group without offsets continue at these locations, by shard. ``starts``:
    where it begins on each shard, which the coordination gets first."""
    return {
        f"{_prefix(group)}shards/{quote(topic, safe='')}/{shard}": msgspec.json.encode(
            _Kept(NONE_SAVED, [NONE_SAVED, starts[shard]], location)
        )
        for shard, location in locations.items()
    }


def _prefix(group: str) -> str:
    return f"foothold/{quote(group, safe='')}/"


def _decode(value: bytes) -> _Kept:
    return msgspec.json.decode(value, type=_Kept)
