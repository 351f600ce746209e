"""The offsets and entries of a coordinator in a real ZooKeeper, also when they are set by hand."""

from __future__ import annotations

from contextlib import closing

import pytest
from kazoo.client import KazooClient

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import DataDamaged, InvalidRequest, StaleWriter

pytestmark = pytest.mark.integration


def test_offsets_are_decimal_text_at_the_paths_of_kafkas_tools(
    coordinator: ZooKeeperCoordinator, by_hand: KazooClient, chroot: str
) -> None:
    coordinator.commit_offsets("billing", {("trips", 3): CommittedOffset(4711, 2, "by a consumer")})
    path = f"{chroot}/consumers/billing/offsets/trips/3"
    value, stat = by_hand.get(path)
    assert value == b"4711"
    [read] = coordinator.fetch_offsets("billing").values()
    assert (read.offset, read.leader_epoch, read.metadata, read.committed_at_us) == (
        4711,
        2,
        "by a consumer",
        stat.mtime * 1000,
    )


def test_an_offset_set_by_hand_counts_and_has_no_epoch_of_an_earlier_one(
    coordinator: ZooKeeperCoordinator, by_hand: KazooClient, chroot: str
) -> None:
    coordinator.commit_offsets("billing", {("trips", 3): CommittedOffset(4711, 2, "by a consumer")})
    by_hand.set(f"{chroot}/consumers/billing/offsets/trips/3", b"12\n")
    [read] = coordinator.fetch_offsets("billing").values()
    assert (read.offset, read.leader_epoch, read.metadata) == (12, -1, "")
    by_hand.create(f"{chroot}/consumers/other/offsets/trips/0", b"5", makepath=True)
    assert coordinator.fetch_offsets("other")[("trips", 0)].offset == 5
    assert coordinator.groups() == ["billing", "other"]
    by_hand.set(f"{chroot}/consumers/other/offsets/trips/0", b"five")
    with pytest.raises(DataDamaged, match="is no offset"):
        coordinator.fetch_offsets("other")


def test_an_offset_deleted_by_hand_is_written_again_by_the_next_commit(
    coordinator: ZooKeeperCoordinator, by_hand: KazooClient, chroot: str
) -> None:
    coordinator.commit_offsets(
        "g", {("trips", 3): CommittedOffset(7), ("trips", 4): CommittedOffset(8)}
    )
    before = coordinator.lineage("g")
    by_hand.delete(f"{chroot}/consumers/g", recursive=True)
    coordinator.commit_offsets("g", {("trips", 3): CommittedOffset(9)})
    assert {key: offset.offset for key, offset in coordinator.fetch_offsets("g").items()} == {
        ("trips", 3): 9
    }
    assert coordinator.lineage("g") != before, "nobody could tell that an offset was lost"


def test_claims_from_before_the_group_was_wiped_are_void(
    coordinator: ZooKeeperCoordinator, by_hand: KazooClient, chroot: str
) -> None:
    old = coordinator.join("g", "a", 10)
    claim = coordinator.claim(old, "trips", [0])[0]
    by_hand.delete(f"{chroot}/cellfeed", recursive=True)
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(1)}, claims=[claim])
    new = coordinator.renew(old)
    assert new.epoch > old.epoch
    assert coordinator.claim(new, "trips", [0])[0].token > claim.token
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(1)}, claims=[claim])


def test_entries_need_a_claim(coordinator: ZooKeeperCoordinator) -> None:
    with pytest.raises(InvalidRequest, match="under a claim"):
        coordinator.commit_offsets("g", {}, entries={"x": b"1"})


def test_entries_are_in_the_state_table_when_the_commit_returns(
    coordinator: ZooKeeperCoordinator, datastore: Datastore
) -> None:
    claim = coordinator.claim(coordinator.join("g", "a", 10), "trips", [0])[0]
    coordinator.commit_offsets(
        "g", {("trips", 0): CommittedOffset(1)}, claims=[claim], entries={"x": b"1", "y": b"2"}
    )
    coordinator.commit_offsets(
        "g", {("trips", 0): CommittedOffset(2)}, claims=[claim], entries={"x": None}
    )
    assert datastore.state.get("x") is None
    entry = datastore.state.get("y")
    assert entry is not None
    assert entry.value == b"2"


def test_the_choice_is_by_url(datastore: Datastore) -> None:
    with closing(open_coordinator("store", datastore.state)) as opened:
        assert isinstance(opened, StoreCoordinator)
    for url in ("etcd://127.0.0.1:2379", "", "zookeeper", "127.0.0.1:2181"):
        with pytest.raises(InvalidRequest, match="zookeeper://"):
            open_coordinator(url, datastore.state)
