"""A trigger worker's steps, one at a time in the test's own thread: taking shards, running chunks,
giving back or dying without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.process_death.deadlines import Deadlines
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.bridge.triggers.shard.take_over import TakeOver
from cellfeed.store.datastore import Datastore

NAMESPACE = UUID("7a0c3f1e-9f5e-5d3b-8a55-0d8b1a9d2c11")
GROUP = "steps"


def row(number: int) -> UUID:
    """The row key of a numbered row."""
    return uuid5(NAMESPACE, str(number))


class Worker:
    """One worker's runs on all shards. Another one of the same name ends its session, as a
    restarted process does."""

    def __init__(
        self,
        datastore: Datastore,
        function: Callable[..., Any],
        name: str = "a",
        deadlines: Deadlines | None = None,
    ) -> None:
        self.trigger: Trigger = function.__cellfeed_trigger__  # type: ignore[attr-defined]
        self.coordinator = StoreCoordinator(datastore.state)
        self.parked = ParkedCells(datastore.state)
        self.membership = Membership(self.coordinator, self.trigger.group, name, 600)
        taking = TakeOver(
            self.trigger, datastore, self.coordinator, self.parked, self.membership, deadlines
        )
        self.runs: dict[int, ShardRun] = taking.take(
            self.membership.session, range(datastore.shards)
        )

    def work(self) -> None:
        """Runs the waiting cells."""
        for run in self.runs.values():
            while run.run_chunk():
                pass

    def retry(self, *, only_asked: bool = False) -> int:
        """Tries parked cells again; how many ran."""
        return sum(run.retry_parked(only_asked) for run in self.runs.values())

    def give_back(self) -> None:
        """As a worker that is asked to stop."""
        self.coordinator.release([run.claim for run in self.runs.values()])
        self.membership.leave()

    def offsets(self) -> dict[int, int]:
        """By shard, as saved."""
        return {
            shard: offset.offset
            for (_, shard), offset in self.coordinator.fetch_offsets(self.trigger.group).items()
        }
