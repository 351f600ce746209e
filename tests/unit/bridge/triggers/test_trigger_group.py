"""A worker's shards of one trigger: shards that it stops working on are given back, through all
events on the way."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from unittest.mock import patch

import pytest

from cellfeed.bridge.coordination.contract import Claim
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.backoff import WAIT_FIRST_S, WAIT_MAX_S
from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.bridge.triggers.trigger_group import TriggerGroup
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.repeated_warnings import WARN_EVERY_S
from tests.support.trigger_workers import Recorder, all_cells, put, working
from tests.support.waiting import wait_until

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
            each.membership.renew()
            with suppress(StorageUnavailable):
                each.keep_place()
        if len(second.progress()) == datastore.shards / 2:
            break
        time.sleep(LEASE_S / 4)
    assert away.failed
    owners = list(here.owners("recorder", "trips").values())
    assert (owners.count("a"), owners.count("b")) == (datastore.shards / 2, datastore.shards / 2)


def test_while_the_store_is_away_shards_are_tried_less_often_and_few_lines_are_logged(
    datastore: Datastore, caplog: pytest.LogCaptureFixture
) -> None:
    tries = Counter[int]()

    def away(run: ShardRun) -> bool:
        tries[run.claim.partition] += 1
        raise StorageUnavailable("the master is away")

    recorder = Recorder()
    put(datastore, range(50))
    began_s = time.monotonic()
    with working(datastore, StoreCoordinator(datastore.state), recorder):
        with patch.object(ShardRun, "run_chunk", away):
            wait_until(
                lambda: max(tries.values(), default=0) > 6, "shards are tried again and again"
            )
            tries_max, took_s = max(tries.values()), time.monotonic() - began_s
        wait_until(
            lambda: sorted(recorder.cells) == sorted(all_cells(datastore)), "all cells have run"
        )
        took_in_all_s = time.monotonic() - began_s
    doubled = math.ceil(math.log2(WAIT_MAX_S / WAIT_FIRST_S))
    assert tries_max <= 1 + doubled + took_s / WAIT_MAX_S
    told = [record.getMessage() for record in caplog.records if "wait" in record.getMessage()]
    assert 1 <= len(told) <= 1 + took_in_all_s / WARN_EVERY_S
    assert told[0].endswith("the master is away")
