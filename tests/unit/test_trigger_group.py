"""A worker's shards of one trigger: what it stops working on is given back, whatever happens on the way."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress

from bridge.coordination.contract import Claim
from bridge.coordination.in_store import StoreCoordinator
from bridge.triggers.program import trigger
from bridge.triggers.trigger_group import TriggerGroup
from store.datastore import Datastore
from store.errors import StorageUnavailable

LEASE_S = 0.2


class AwayOnce(StoreCoordinator):
    """Cannot be reached when the first claim is given back."""

    failed = False

    def release(self, claims: Collection[Claim]) -> None:
        if claims and not self.failed:
            self.failed = True
            raise StorageUnavailable("the coordinator is away")
        super().release(claims)


def test_a_shard_whose_giving_back_failed_is_given_back_later(datastore: Datastore) -> None:
    @trigger(column="BASE", group="recorder")
    def record(row_key: object) -> None:
        del row_key

    away, here = AwayOnce(datastore.state), StoreCoordinator(datastore.state)
    first = TriggerGroup(record.__cellfeed_trigger__, datastore, away, "a", LEASE_S)  # type: ignore[attr-defined]
    first.keep_place()
    assert set(here.owners("recorder", "trips").values()) == {"a"}
    second = TriggerGroup(record.__cellfeed_trigger__, datastore, here, "b", LEASE_S)  # type: ignore[attr-defined]
    for _ in range(100):
        for each in (first, second):
            each.standing.renew()
            with suppress(StorageUnavailable):
                each.keep_place()
        if len(second.progress()) == datastore.shards / 2:
            break
        time.sleep(LEASE_S / 4)
    assert away.failed
    owners = list(here.owners("recorder", "trips").values())
    assert (owners.count("a"), owners.count("b")) == (datastore.shards / 2, datastore.shards / 2)
