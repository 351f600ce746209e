"""The shared parts of one shard's run: the trigger and its services in this worker, and the owner's
stay on the shard.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from cellfeed.bridge.coordination.contract import Claim
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.triggers.circuit import Circuit
from cellfeed.bridge.triggers.failure_log import FailureLog
from cellfeed.bridge.triggers.offsets.gathered_saves import OffsetCommits
from cellfeed.bridge.triggers.offsets.kept_offset import KeptOffset
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.process_death.deadlines import Deadlines
from cellfeed.bridge.triggers.process_death.recorded_attempts import ShardAttempts
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.store.datastore import Datastore


@dataclass(frozen=True, slots=True)
class TriggerContext:
    """One trigger in one worker: all its shards share these."""

    trigger: Trigger
    store: Datastore
    offsets: OffsetCommits
    parked: ParkedCells
    membership: Membership
    deadlines: Deadlines
    circuit: Circuit
    failures: FailureLog


@dataclass(frozen=True, slots=True)
class ShardContext:
    """One owner's stay on one shard, from the claim until it is given back."""

    of_trigger: TriggerContext
    claim: Claim
    epoch: int
    """Of the session in which the shard was claimed."""
    saved: int
    """The shard's offset as read under the claim."""
    kept_offset: KeptOffset | None
    """For coordination elsewhere."""
    recorded: ShardAttempts
    """The tries that earlier owners left on record."""
    careful_before: int
    """Cells below it may have been under way in a process that died; 0 when the shard was given
    back."""
    progress: Progress = field(default_factory=Progress)
    stop: threading.Event = field(default_factory=threading.Event)
    """Set to have the run end after the cell that is under way."""

    @property
    def trigger(self) -> Trigger:
        return self.of_trigger.trigger

    @property
    def shard(self) -> int:
        return self.claim.partition
