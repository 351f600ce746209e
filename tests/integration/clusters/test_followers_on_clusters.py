"""Followers of a cluster: no cell before a minion has it, and none lost or doubled by a
promotion."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

import pytest

from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.followed import FollowedCell, Follower
from cellfeed.store.http.client import Client
from tests.support.cluster_steps import applying_nothing, cells, put_until_stored, shown
from tests.support.mariadb_cluster import TestCluster
from tests.support.waiting import wait_until
from tests.support.worker_thread import worker_thread

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


@pytest.fixture(params=["client", "store"])
def follower(store: Datastore, request: pytest.FixtureRequest) -> Iterator[Follower]:
    with ExitStack() as opened:
        if request.param == "store":
            yield opened.enter_context(store.follow())
        else:
            url = opened.enter_context(worker_thread(store))
            client = opened.enter_context(Client(url, "trips", timeout_s=60))
            yield opened.enter_context(client.follow())


def test_a_follower_gets_a_cell_once_a_minion_has_it_and_once_across_a_promotion(
    cluster: TestCluster, store: Datastore, follower: Follower
) -> None:
    engine = store.engine
    assert isinstance(engine, ClusteredEngine)
    found: list[FollowedCell] = []
    reading = threading.Thread(target=lambda: found.extend(islice(follower, 30)))
    reading.start()
    put_until_stored(engine, cells(range(10)))
    wait_until(lambda: len(found) == 10, "ten cells")
    with ExitStack() as behind:
        for name in "bc":
            behind.enter_context(applying_nothing(cluster, name))
        put_until_stored(engine, cells(range(10, 20)))
        assert shown(engine) == 10
        threading.Event().wait(0.5)  # time for cells that are shown too early
        assert len(found) == 10
    wait_until(lambda: len(found) == 20, "twenty cells")
    assert promote(cluster.admin).master != "a"
    follow_again(cluster.admin, "a")
    put_until_stored(engine, cells(range(20, 30)))
    reading.join(60)
    follower.close()
    assert sorted(each.body["n"] for each in found) == list(range(30))
    for shard in {each.shard for each in found}:
        ids = [each.added_id for each in found if each.shard == shard]
        assert ids == list(range(len(ids)))
