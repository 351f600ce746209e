"""Setting where a group continues, also while its workers run.

**Fenced first.** The process that resets joins the group as a member that gets no shards. It asks
the workers to wait (``control.py``), and claims the shards that are to move. Workers give theirs
back after the cell under way. The claims of one that is dead or paused fall to the reset when its
session has ended. From then on every claim from before is void: a worker's late save is refused
wherever it comes from (C4, C5; where coordination is away from that worker, by its kept offset,
``kept_offsets.py``). So an offset falls only in a reset, and no reset is undone by a save that was
on its way (I20).

**Decided in one commit**: the new offsets, the entry in the history, and the end of the workers'
wait. It also takes those parked cells off the queue that the group reaches again: otherwise they
would be both parked and still to be run. With coordination in the store it is the commit of the
offsets; with ZooKeeper it is a commit of the kept offsets. They say where the next owner continues
until ZooKeeper has it. Crash points:

    before the commit           nothing was reset. The workers resume once the session of the reset
                                has run out
    after it, before ZooKeeper has it       the next owner of a shard begins at the new location,
                                            and saves it there
    after that                  as after any member's death: the claims are free once its session
                                has run out
    paused, and its session ended           others have the shards: the commit is refused, nothing
                                            was reset
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Coordinator
from cellfeed.bridge.groups.control import OPERATOR, Control, Pause, notify_workers
from cellfeed.bridge.groups.history import Deed, Operator, entry
from cellfeed.bridge.groups.membership import LeaseKeeper, Membership
from cellfeed.bridge.triggers.offsets.kept_offsets import (
    KeptOffsets,
    last_known,
    needs_kept_offsets,
)
from cellfeed.bridge.triggers.offsets.lineage import acceptance, lost_offsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, Refused
from cellfeed.store.failpoints import declare, failpoint

declare("reset.after_pause", "reset.after_claims", "reset.after_decision", "reset.after_offsets")

_log = logging.getLogger("cellfeed.triggers")

LEASE_S: Final = 10.0
"""How long the workers stand aside for a reset that was killed."""

WAIT_S: Final = 60.0
"""How long a reset waits for the shards: longer than a killed worker keeps them, and than most
cells run."""

_CLAIM_AGAIN_S: Final = 0.1
_OFFSETS_IN_A_COMMIT: Final = 500
"""Sent to ZooKeeper at once, each with the check of its claim: some 400 bytes for both, of a
megabyte."""


class Reset:
    """One reset of one group. The history has ``action`` and ``to``."""

    def __init__(
        self,
        datastore: Datastore,
        coordinator: Coordinator,
        group: str,
        operator: Operator,
        *,
        action: str = "reset",
        to: str = "",
    ) -> None:
        self._datastore = datastore
        self._coordinator = coordinator
        self._group = group
        self._operator = operator
        self._action = action
        self._to = to
        self._control = Control(datastore.state, group)
        self._topic = datastore.name

    def run(
        self, locations: Mapping[int, int], *, wait_s: float = WAIT_S, lease_s: float = LEASE_S
    ) -> Deed:
        """Moves the shards. Raises Refused, with nothing changed, when their workers do not give
        them back within ``wait_s`` seconds, or somebody else resets the group just now;
        StaleWriter, Unavailable."""
        member = f"{OPERATOR}{self._operator.name} {os.getpid()}-{secrets.token_hex(4)}"
        membership = Membership(self._coordinator, self._group, member, lease_s)
        keeper = LeaseKeeper([membership], lease_s)
        claims: dict[int, Claim] = {}
        try:
            self._ask_to_stand_aside(member)
            failpoint("reset.after_pause")
            self._claim(membership, sorted(locations), claims, wait_s)
            failpoint("reset.after_claims")
            return self._decide(locations, claims)
        finally:
            self._end(member, membership, claims)
            keeper.close()

    def _ask_to_stand_aside(self, member: str) -> None:
        state, key = self._datastore.state, self._control.reset_key
        found = state.get(key)
        if found is not None:
            other = msgspec.json.decode(found.value, type=Pause)
            if other.member in self._coordinator.members(self._group):
                raise Refused(f"trigger {self._group!r}: a {other}")
        pause = Pause(self._operator.name, self._operator.because, state.now_us(), member)
        if (
            state.commit(
                {key: msgspec.json.encode(pause)}, expect={key: found.version if found else None}
            )
            is None
        ):
            raise Refused(
                f"trigger {self._group!r} is reset by somebody else just now: look at its history,"
                " and try again"
            )
        notify_workers(state, self._group)

    def _claim(
        self, membership: Membership, shards: Sequence[int], claims: dict[int, Claim], wait_s: float
    ) -> None:
        deadline_s = time.monotonic() + wait_s
        epoch = membership.session.epoch
        while missing := [shard for shard in shards if shard not in claims]:
            claims |= self._coordinator.claim(membership.session, self._topic, missing)
            if membership.session.epoch != epoch:
                raise Refused(
                    f"trigger {self._group!r} was not reset: this process stood still for longer"
                    " than its lease; try again"
                )
            if len(claims) == len(shards):
                return
            if time.monotonic() > deadline_s:
                owners = self._coordinator.owners(self._group, self._topic)
                still = [
                    f"shard {shard} ({owners[shard]})" for shard in missing if shard in owners
                ][:5]
                raise Refused(
                    f"trigger {self._group!r} was not reset: after {wait_s:.0f} s {len(missing)}"
                    f" shards were not given back: {', '.join(still)}; a cell that runs for so"
                    " long, or a worker that was just killed: wait for longer, or end that worker"
                )
            time.sleep(_CLAIM_AGAIN_S)

    def _decide(self, locations: Mapping[int, int], claims: Mapping[int, Claim]) -> Deed:
        state, group, topic = self._datastore.state, self._group, self._topic
        lost = lost_offsets(state, self._coordinator, group, topic)
        found = self._coordinator.fetch_offsets(group, [(topic, shard) for shard in locations])
        saved = {shard: offset.offset for (_, shard), offset in found.items()}
        unparked = ParkedCells(state).come_to_again(group, topic, locations)
        before = (
            last_known(state, group, topic, list(locations))
            if lost
            else KeptOffsets(state, group, topic).continues_at(saved)
        )
        deed = Deed(
            group=group,
            action=self._action,
            by=self._operator.name,
            because=self._operator.because,
            at_us=state.now_us(),
            to=self._to,
            before={shard: before.get(shard) for shard in locations},
            after=dict(locations),
            unparked=len(unparked),
        )
        entries = {
            **unparked,
            **entry(deed),
            self._control.reset_key: None,
            **acceptance(state, self._coordinator, group, topic),
        }
        if not needs_kept_offsets(self._coordinator):
            self._commit(locations, claims, entries)
            failpoint("reset.after_decision")
            return deed
        kept_offsets = KeptOffsets(state, group, topic)
        taken = kept_offsets.take(claims, saved)
        if len(taken) < len(claims):
            raise Refused(
                f"trigger {group!r} was not reset: another worker has begun on"
                f" {len(claims) - len(taken)} of its shards; try again"
            )
        kept_offsets.move(taken, locations, entries)
        failpoint("reset.after_decision")
        try:
            for first in range(0, len(locations), _OFFSETS_IN_A_COMMIT):
                self._commit(
                    dict(list(locations.items())[first : first + _OFFSETS_IN_A_COMMIT]), claims, {}
                )
            kept_offsets.moved(taken, locations)
        except CellfeedError as error:
            _log.warning(
                "the reset is decided; the offsets are saved in ZooKeeper by the next worker of"
                " each shard: %s",
                error,
            )
        failpoint("reset.after_offsets")
        return deed

    def _commit(
        self,
        locations: Mapping[int, int],
        claims: Mapping[int, Claim],
        entries: Mapping[str, bytes | None],
    ) -> None:
        offsets = {
            (self._topic, shard): CommittedOffset(location) for shard, location in locations.items()
        }
        self._coordinator.commit_offsets(
            self._group, offsets, claims=[claims[shard] for shard in locations], entries=entries
        )

    def _end(self, member: str, membership: Membership, claims: Mapping[int, Claim]) -> None:
        # A step that fails here is settled when the session has run out.
        state, key = self._datastore.state, self._control.reset_key
        with suppress(CellfeedError):
            found = state.get(key)
            if found is not None and msgspec.json.decode(found.value, type=Pause).member == member:
                state.commit({key: None}, expect={key: found.version})
        with suppress(CellfeedError):
            self._coordinator.release(list(claims.values()))
        with suppress(CellfeedError):
            membership.leave()
        notify_workers(state, self._group)
