"""Operators' requests to a group's workers: to pause, or to stand aside while its offsets are
reset. They are in the datastore, wherever coordination is.

    triggers/<group>/paused     {by, because, at_us}: until somebody resumes it
    triggers/<group>/reset      {by, because, at_us, member}: as long as that member of the group
                                lives, see ``reset.py``

Workers look every second, and at once when a datagram asks for it
(``store/wakeups/datagrams.py``). The entry counts, not the datagram. They finish the cells under
way, save their offsets and give their shards back. They stay members, so that they begin again the
moment that they may.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.history import Deed, Operator, entry
from cellfeed.store.cells.cell import moment
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import NotFound, Refused
from cellfeed.store.wakeups.datagrams import poke_about, poke_once

PREFIX: Final = "triggers/"
"""Of everything that is kept of triggers by group: a listing of it gives all groups."""

EXPORTS: Final = "export/"
"""Begins the groups of exporters, which pause, report and are measured as triggers are."""

OPERATOR: Final = "operator "
"""Begins the names of members that reset offsets: they get no shards."""


class Pause(msgspec.Struct, frozen=True):
    """Why the workers of a group stand aside. ``member``: of the group, for a reset; it counts only
    as long as that one lives."""

    by: str
    because: str
    at_us: int
    member: str = ""

    def __str__(self) -> str:
        return (
            f"{'reset is under way' if self.member else 'paused'} by {self.by} since"
            f" {when(self.at_us)} because {self.because}"
        )


class Control:
    """One group's. Every change is one commit, with its entry in the history."""

    def __init__(self, state: StateTable, group: str) -> None:
        self._state = state
        self.group = group
        self.paused_key = f"{group_prefix(group)}paused"
        self.reset_key = f"{group_prefix(group)}reset"

    def current_pause(self, coordinator: Coordinator) -> Pause | None:
        """The pause that the workers wait for; None when they may work. Raises Unavailable when a
        reset was begun and it is unknown whether it is still under way."""
        paused = self.paused()
        if paused is not None:
            return paused
        found = self._state.get(self.reset_key)
        if found is None:
            return None
        reset = msgspec.json.decode(found.value, type=Pause)
        return reset if reset.member in coordinator.members(self.group) else None

    def paused(self) -> Pause | None:
        found = self._state.get(self.paused_key)
        return msgspec.json.decode(found.value, type=Pause) if found else None

    def pause(self, operator: Operator) -> Pause:
        """Raises Refused when it is paused already: the first reason stands."""
        now_us = self._state.now_us()
        pause = Pause(operator.name, operator.because, now_us)
        deed = entry(
            Deed(
                group=self.group,
                action="paused",
                by=operator.name,
                because=operator.because,
                at_us=now_us,
            )
        )
        if (
            self._state.commit(
                {self.paused_key: msgspec.json.encode(pause), **deed},
                expect={self.paused_key: None},
            )
            is None
        ):
            raise Refused(f"trigger {self.group!r} is {self.paused() or 'being resumed just now'}")
        notify_workers(self._state, self.group)
        return pause

    def resume(self, operator: Operator) -> Pause:
        """Returns the pause that ended. Raises NotFound when it is not paused."""
        found = self._state.get(self.paused_key)
        deed = entry(
            Deed(
                group=self.group,
                action="resumed",
                by=operator.name,
                because=operator.because,
                at_us=self._state.now_us(),
            )
        )
        if (
            found is None
            or self._state.commit(
                {self.paused_key: None, **deed}, expect={self.paused_key: found.version}
            )
            is None
        ):
            raise NotFound(f"trigger {self.group!r} is not paused")
        notify_workers(self._state, self.group)
        return msgspec.json.decode(found.value, type=Pause)


def forget(state: StateTable, coordinator: Coordinator, group: str, operator: Operator) -> None:
    """Has a trigger that is not run any more shown no longer. Its offsets, parked cells and history
    stay. Raises Refused while it has workers, NotFound."""
    if members := coordinator.members(group):
        raise Refused(
            f"trigger {group!r} is at work ({', '.join(members)}): stop its workers first"
        )
    entries = state.list(group_prefix(group))
    if not entries:
        raise NotFound(f"no trigger {group!r} has ever run here")
    deed = entry(
        Deed(
            group=group,
            action="forgotten",
            by=operator.name,
            because=operator.because,
            at_us=state.now_us(),
        )
    )
    state.commit({**{each.key: None for each in entries}, **deed})


def group_prefix(group: str) -> str:
    """Of everything that is kept of one trigger here."""
    return f"{PREFIX}{quote(group, safe='')}/"


def poke_of(group: str) -> bytes:
    """The poke that makes workers of a group look."""
    return poke_about(group_prefix(group))


def notify_workers(state: StateTable, group: str) -> None:
    """Makes the workers of a group on this host look now. They would look by themselves within a
    second, or a fraction of a lease. A hint, as every poke."""
    poke_once(state, poke_of(group))


def by_group(entries: list[StateEntry]) -> dict[str, dict[str, StateEntry]]:
    """Entries below :data:`PREFIX`, by group and by the rest of their key."""
    found: dict[str, dict[str, StateEntry]] = {}
    for each in entries:
        _, group, rest = each.key.split("/", 2)
        found.setdefault(unquote(group), {})[rest] = each
    return found


def when(at_us: int) -> str:
    """A moment as people read it, to the second."""
    return datetime.strftime(moment(at_us), "%Y-%m-%d %H:%M:%S UTC")
