"""Taking shards: claiming them and getting ready to continue where the work on them was.

In this order, each step after the one before is done for all shards together:

1. where the group begins is settled (``start.py``), for shards that nobody has begun;
2. the owners of the shards' claims are read. An owner that the next step overtakes has not given
   its shard back: it died, or lost touch. Cells may have been under way there, so those that can
   have been are run with their tries on record (``recorded_attempts.py``);
3. the shards are claimed, and their offsets read under the claims;
4. a shard without an offset gets one: it is saved before its first cell is run, so that everybody
   sees where it is;
5. kept offsets are taken, where the coordination is not in the store (``kept_offsets.py``); tries
   that earlier owners left on record are read.

Crash points: after 3 the claims are an owner's that has run nothing; the next owner is careful for
nothing. After 4 the offset stands at the start. An owner that gave its shard back between 2 and 3
makes the next one careful for nothing; one that took it between them and died already would go
unnoticed. A cell that killed it would kill once more before it is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Coordinator, Session
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.groups.start import StartOfGroup
from cellfeed.bridge.triggers.circuit import Circuit
from cellfeed.bridge.triggers.failure_log import FailureLog
from cellfeed.bridge.triggers.offsets.gathered_saves import (
    OFFSETS_IN_A_COMMIT_MAX,
    GatheredSaves,
)
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets, needs_kept_offsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.process_death.deadlines import Deadlines
from cellfeed.bridge.triggers.process_death.recorded_attempts import GroupAttempts
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.shard.context import ShardContext, TriggerContext
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StaleWriter
from cellfeed.store.failpoints import declare, failpoint

declare("start.before_first_offsets", "start.after_first_offsets")


class TakeOver:
    """Takes shards of one trigger over for a worker. Raises InvalidRequest for a start that this
    datastore cannot have."""

    def __init__(
        self,
        trigger: Trigger,
        datastore: Datastore,
        coordinator: Coordinator,
        parked: ParkedCells,
        membership: Membership,
        deadlines: Deadlines | None = None,
        circuit: Circuit | None = None,
    ) -> None:
        self._trigger = trigger
        self._datastore = datastore
        self._coordinator = coordinator
        self._context = TriggerContext(
            trigger,
            datastore,
            GatheredSaves(coordinator, trigger.group),
            parked,
            membership,
            deadlines or Deadlines(),
            circuit or Circuit(trigger.group, trigger.pause_rows),
            FailureLog(trigger.group),
        )
        self._start = StartOfGroup(datastore, coordinator, trigger.group, trigger.start)
        self._recorded = GroupAttempts(datastore.state, trigger.group, datastore.name)
        self._kept_offsets = (
            KeptOffsets(datastore.state, trigger.group, datastore.name)
            if needs_kept_offsets(coordinator)
            else None
        )

    def take(self, session: Session, shards: Sequence[int]) -> dict[int, ShardRun]:
        """Runs for those of the shards that could be had. Raises Unavailable, and InvalidLocation
        when the group is to start at places that are not there."""
        topic = self._datastore.name
        starts = self._start.locations()
        owners = self._coordinator.owners(session.group, topic, shards)
        claims = self._coordinator.claim(session, topic, shards)
        if not claims:
            return {}
        found = self._coordinator.fetch_offsets(session.group, [(topic, shard) for shard in claims])
        saved = {shard: offset.offset for (_, shard), offset in found.items()}
        saved |= self._begun(
            {shard: starts[shard] for shard in claims if shard not in saved}, claims
        )
        claims = {shard: claim for shard, claim in claims.items() if shard in saved}
        kept_offsets = (
            self._kept_offsets.take(claims, saved) if self._kept_offsets is not None else {}
        )
        recorded = self._recorded.of_shards(claims)
        overtaken = [shard for shard in claims if shard in owners]
        heads = self._datastore.engine.heads(overtaken) if overtaken else {}
        runs = {}
        for shard, claim in claims.items():
            if self._kept_offsets is not None and shard not in kept_offsets:
                continue  # overtaken since the claim
            runs[shard] = ShardRun(
                ShardContext(
                    self._context,
                    claim,
                    session.epoch,
                    saved[shard],
                    kept_offsets.get(shard),
                    recorded[shard],
                    careful_before=heads[shard].watermark if shard in heads else 0,
                )
            )
        return runs

    def _begun(self, starts: Mapping[int, int], claims: Mapping[int, Claim]) -> dict[int, int]:
        """Saves the first offsets of shards; those that were saved."""
        failpoint("start.before_first_offsets")
        shards = sorted(starts)
        begun: dict[int, int] = {}
        for first in range(0, len(shards), OFFSETS_IN_A_COMMIT_MAX):
            some = shards[first : first + OFFSETS_IN_A_COMMIT_MAX]
            if self._save({shard: starts[shard] for shard in some}, claims):
                begun |= {shard: starts[shard] for shard in some}
            else:  # one of the claims is void, which keeps none of the others
                begun |= {
                    shard: starts[shard]
                    for shard in some
                    if self._save({shard: starts[shard]}, claims)
                }
        failpoint("start.after_first_offsets")
        return begun

    def _save(self, starts: Mapping[int, int], claims: Mapping[int, Claim]) -> bool:
        offsets = {
            (self._datastore.name, shard): CommittedOffset(location)
            for shard, location in starts.items()
        }
        try:
            self._coordinator.commit_offsets(
                self._trigger.group, offsets, claims=[claims[shard] for shard in starts]
            )
        except StaleWriter:
            return False
        return True
