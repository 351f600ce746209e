"""The datastore's copy of offsets that are saved elsewhere: which of two counts, and when a group's
offsets are lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets
from cellfeed.bridge.triggers.offsets.lineage import changed_lineage, lineage_key, lost_offsets
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable, Unavailable

GROUP, TOPIC = "billing", "trips"


class Elsewhere(StoreCoordinator):
    """Offsets that are kept outside of the datastore."""

    keeps_in_store = False


def claim(shard: int, token: int) -> Claim:
    return Claim(GROUP, TOPIC, shard, "w", token)


@pytest.mark.parametrize(
    ("failed", "there", "continues_at"),
    [
        (StorageUnavailable("away"), 5, 10),
        (OutcomeUnknown("no answer"), 5, 10),
        (OutcomeUnknown("no answer"), 10, 10),
        (StorageUnavailable("away"), 10, 10),
        (StorageUnavailable("away"), 3, 3),
        (StorageUnavailable("away"), 12, 12),
    ],
)
def test_a_kept_offset_counts_over_the_ones_its_keeper_knew(
    datastore: Datastore, failed: Unavailable, there: int, continues_at: int
) -> None:
    """An offset that somebody has set by hand meanwhile counts, be it lower or higher."""
    kept = KeptOffsets(datastore.state, GROUP, TOPIC)
    first = kept.take({0: claim(0, 1)}, {0: 5})[0]
    first.keep(10, failed=failed)
    assert kept.continues_at({0: there}) == {0: continues_at}
    assert kept.take({0: claim(0, 2)}, {0: there})[0].start == continues_at


def test_an_older_claim_takes_nothing(datastore: Datastore) -> None:
    kept = KeptOffsets(datastore.state, GROUP, TOPIC)
    kept.take({0: claim(0, 2)}, {0: 5})
    assert kept.take({0: claim(0, 1), 1: claim(1, 1)}, {0: 5, 1: 0}).keys() == {1}
    assert kept.tokens() == {0: 2, 1: 1}


def test_one_missing_offset_is_a_loss(datastore: Datastore) -> None:
    offsets = Elsewhere(datastore.state)
    kept = KeptOffsets(datastore.state, GROUP, TOPIC)
    offsets.commit_offsets(GROUP, {(TOPIC, shard): CommittedOffset(7) for shard in range(3)})
    kept.take({shard: claim(shard, 1) for shard in range(3)}, dict.fromkeys(range(3), 7))
    assert lost_offsets(datastore.state, offsets, GROUP, TOPIC) is None
    there = [(TOPIC, 0), (TOPIC, 2)]
    lost = lost_offsets(datastore.state, offsets, GROUP, TOPIC, there)
    assert lost is not None
    assert "1 shards" in lost
    assert "shard 1" in lost
    assert lost_offsets(datastore.state, offsets, GROUP, TOPIC, there, [0, 2]) is None


def test_a_lineage_that_another_process_remembers_meanwhile_is_compared(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets, state = Elsewhere(datastore.state), datastore.state
    key, commit, raced = lineage_key(GROUP), state.commit, list[str]()

    def remember_first(
        write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        monkeypatch.setattr(state, "commit", commit)
        raced.extend(write)
        assert commit({key: b"of another memory"}) is not None
        return commit(write, expect or {})

    monkeypatch.setattr(state, "commit", remember_first)
    reason = changed_lineage(state, offsets, GROUP)
    assert raced == [key], "the fault did not happen"
    assert reason is not None
    assert "of another memory" in reason
    entry = state.get(key)
    assert entry is not None
    assert entry.value == b"of another memory"
