"""Where the work is, when the coordination is elsewhere and gives no answer: an offset that it may
have saved does not set the next owner back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Session, TopicPartition
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.retry import RetryPolicy
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.bridge.triggers.shard.take_over import TakeOver
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from tests.support.trigger_steps import GROUP, row


class Elsewhere(StoreCoordinator):
    """Keeps its things elsewhere. The ``applied``-th commit from now on is done but not answered;
    those after it cannot be sent.

    Entries that go with a commit without an answer are written when the partition is claimed next,
    as ZooKeeper's coordination does.
    """

    keeps_in_store = False
    applied: int | None = None

    def __init__(self, state: StateTable) -> None:
        super().__init__(state)
        self.on_its_way: dict[str, bytes | None] = {}

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
        if self.applied == 0:
            super().commit_offsets(group, offsets, claims=claims)
            self.on_its_way.update(entries or {})
            raise OutcomeUnknown("no answer")
        super().commit_offsets(group, offsets, claims=claims, entries=entries)

    def claim(self, session: Session, topic: str, partitions: Collection[int]) -> dict[int, Claim]:
        self._state.commit(self.on_its_way)
        self.on_its_way = {}
        return super().claim(session, topic, partitions)


@pytest.mark.parametrize("applied", range(1, 5))
def test_an_offset_whose_saving_was_not_answered_sets_nobody_back(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch, applied: int
) -> None:
    ran: list[int] = []
    coordinator = Elsewhere(datastore.state)
    shard = datastore.shard_of(row(0))

    @trigger(column="BASE", group=GROUP)
    def work(row_key: UUID, *, cell: Cell) -> None:
        ran.append(cell.added_id)
        if cell.added_id == 5:
            coordinator.applied = applied

    def taken(name: str) -> tuple[Membership, ShardRun]:
        membership = Membership(coordinator, GROUP, name, 600)
        taking = TakeOver(
            cast("Any", work).__cellfeed_trigger__,
            datastore,
            coordinator,
            ParkedCells(datastore.state),
            membership,
        )
        return membership, taking.take(membership.session, [shard])[shard]

    datastore.put_cells([(row(0), "BASE", number, {}) for number in range(20)])
    membership, first = taken("first")
    monkeypatch.setattr(
        membership, "is_sure", lambda epoch: False
    )  # as when its lease may have run out: it asks before each cell
    first.run_chunk()
    assert ran == list(range(20))
    assert coordinator.applied is not None
    assert coordinator.applied < 0, "the fault did not happen"
    assert coordinator.fetch_offsets(GROUP)["trips", shard].offset < 20
    coordinator.applied = None
    membership.leave()
    taken("second")[1].run_chunk()
    assert ran == list(range(20))
    assert coordinator.fetch_offsets(GROUP)["trips", shard].offset == 20


def test_a_cell_parked_without_an_answer_is_not_unparked_before_it_can_be_parked_again(
    datastore: Datastore,
) -> None:
    ran: list[int] = []
    coordinator = Elsewhere(datastore.state)
    shard = datastore.shard_of(row(0))
    bad = {3}

    @trigger(column="BASE", group=GROUP, order_by_row_key=True, retry=RetryPolicy(1))
    def work(row_key: UUID, *, cell: Cell) -> None:
        if cell.added_id in bad:
            coordinator.applied = 1  # the commit that parks it
            raise ValueError("bad")
        ran.append(cell.added_id)

    def taken(name: str) -> ShardRun:
        membership = Membership(coordinator, GROUP, name, 600)
        taking = TakeOver(
            cast("Any", work).__cellfeed_trigger__,
            datastore,
            coordinator,
            ParkedCells(datastore.state),
            membership,
        )
        return taking.take(membership.session, [shard])[shard]

    datastore.put_cells([(row(0), "BASE", number, {}) for number in range(4)])
    first = taken("same")
    coordinator.applied = None
    first.run_chunk()
    parked = ParkedCells(datastore.state)
    assert coordinator.on_its_way, "the fault did not happen"
    assert [cell.added_id for cell in parked.all(GROUP)] == [3]
    bad.clear()
    assert first.retry_parked(only_asked=False) == 0
    assert not first.stop.is_set()  # still away: the shard continues
    datastore.put_cells([(row(0), "BASE", 4, {}), (row(1), "BASE", 1, {})])
    first.run_chunk()
    coordinator.applied = None
    first.run_chunk()
    assert first.retry_parked(only_asked=False) == 0
    assert first.stop.is_set()  # to be given back and claimed again
    second = taken("same")
    assert second.retry_parked(only_asked=False) == 2
    taken("same").run_chunk()
    assert ran == [0, 1, 2, 3, 4]
    assert parked.all(GROUP) == []
