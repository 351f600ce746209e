"""Taking shards while others take them. A claim may be void before the first save, and another
worker may have begun on a shard since the claim: these shards are left out, and only these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, TopicPartition
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.bridge.triggers.shard.take_over import TakeOver
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import StaleWriter
from tests.support.trigger_steps import GROUP, row


class Watched(StoreCoordinator):
    """``void``: shards whose claims no save accepts. ``elsewhere``: as coordination that is not in
    the store."""

    def __init__(self, state: StateTable, void: Sequence[int] = (), *, elsewhere: bool = False):
        super().__init__(state)
        self.void, self.refused = set(void), 0
        self.keeps_in_store = not elsewhere
        self.before_offsets: Callable[[], object] = lambda: None

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if self.void & {claim.partition for claim in claims}:
            self.refused += 1
            raise StaleWriter("another worker has it")
        super().commit_offsets(group, offsets, claims=claims, entries=entries)

    def fetch_offsets(self, *given: Any) -> dict[TopicPartition, CommittedOffset]:
        self.before_offsets()
        return super().fetch_offsets(*given)


@trigger(column="BASE", group=GROUP)
def _work(row_key: UUID) -> None:
    del row_key


def taken(datastore: Datastore, coordinator: Watched) -> dict[int, ShardRun]:
    membership = Membership(coordinator, GROUP, "a", 600)
    taking = TakeOver(
        cast("Any", _work).__cellfeed_trigger__,
        datastore,
        coordinator,
        ParkedCells(datastore.state),
        membership,
    )
    return taking.take(membership.session, range(datastore.shards))


def test_a_void_claim_costs_its_shard_and_no_other(datastore: Datastore) -> None:
    datastore.put_cells([(row(number), "BASE", 1, {}) for number in range(20)])
    coordinator = Watched(datastore.state, void=[2])
    others = set(range(datastore.shards)) - {2}
    assert taken(datastore, coordinator).keys() == others
    assert coordinator.refused == 2, "once with the others, once alone"
    saved = coordinator.fetch_offsets(GROUP)
    assert {shard for _, shard in saved} == others


def test_a_shard_on_which_another_worker_has_begun_since_the_claim_is_not_run(
    datastore: Datastore,
) -> None:
    coordinator = Watched(datastore.state, elsewhere=True)
    kept = KeptOffsets(datastore.state, GROUP, datastore.name)

    def overtake() -> None:
        coordinator.before_offsets = lambda: None
        claims = coordinator.claim(
            Membership(coordinator, GROUP, "b", 600).session, datastore.name, [1]
        )
        mine = claims.get(1) or Claim(GROUP, datastore.name, 1, "b", 1)
        assert kept.take({1: replace(mine, token=1_000)}, {1: 0})

    def later() -> None:
        # the first look at offsets settles the start; the second one comes behind the claim
        coordinator.before_offsets = overtake

    coordinator.before_offsets = later
    runs = taken(datastore, coordinator)
    assert runs.keys() == set(range(datastore.shards)) - {1}
    assert kept.tokens()[1] == 1_000
