"""Where the work is, when the coordination is elsewhere and gives no answer: what it may have saved does not set the next owner back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from bridge.coordination.contract import Claim, CommittedOffset, TopicPartition
from bridge.coordination.in_store import StoreCoordinator
from bridge.triggers.parked import ParkedCells
from bridge.triggers.program import trigger
from bridge.triggers.shard_run import ShardRun
from bridge.triggers.standing import Standing
from bridge.triggers.taking import Taking
from store.cells import Cell
from store.datastore import Datastore
from store.errors import OutcomeUnknown, StorageUnavailable
from tests.unit.trigger_steps import GROUP, row


class Elsewhere(StoreCoordinator):
    """Keeps its things elsewhere. The ``applied``-th commit from now on is done but not answered; those after it cannot be sent."""

    keeps_in_store = False
    applied: int | None = None

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if self.applied is not None:
            self.applied -= 1
            if self.applied < 0:
                raise StorageUnavailable("away")
        super().commit_offsets(group, offsets, claims=claims, entries=entries)
        if self.applied == 0:
            raise OutcomeUnknown("no answer")


@pytest.mark.parametrize("applied", range(1, 5))
def test_an_offset_whose_saving_was_not_answered_sets_nobody_back(datastore: Datastore, monkeypatch: pytest.MonkeyPatch, applied: int) -> None:
    ran: list[int] = []
    coordinator = Elsewhere(datastore.state)
    shard = datastore.shard_of(row(0))

    @trigger(column="BASE", group=GROUP)
    def work(row_key: UUID, *, cell: Cell) -> None:
        ran.append(cell.added_id)
        if cell.added_id == 5:
            coordinator.applied = applied

    def taken(name: str) -> tuple[Standing, ShardRun]:
        standing = Standing(coordinator, GROUP, name, 600)
        taking = Taking(work.__cellfeed_trigger__, datastore, coordinator, ParkedCells(datastore.state), standing)  # type: ignore[attr-defined]
        return standing, taking.take(standing.session, [shard])[shard]

    datastore.put_cells([(row(0), "BASE", number, {}) for number in range(20)])
    standing, first = taken("first")
    monkeypatch.setattr(standing, "is_sure", lambda epoch: False)  # as when its lease may have run out: it asks before each cell
    first.run_chunk()
    assert ran == list(range(20))
    assert coordinator.applied is not None
    assert coordinator.applied < 0, "the fault did not happen"
    assert coordinator.fetch_offsets(GROUP)["trips", shard].offset < 20
    coordinator.applied = None
    standing.leave()
    taken("second")[1].run_chunk()
    assert ran == list(range(20))
    assert coordinator.fetch_offsets(GROUP)["trips", shard].offset == 20
