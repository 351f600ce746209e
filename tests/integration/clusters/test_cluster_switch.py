"""A planned switch: a healthy master is fenced, and its minions have its position before one is
promoted; a refused one leaves the cluster as it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cellfeed.store.clusters.operating import old_master
from cellfeed.store.clusters.operating import promote as failover
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.read_only import is_read_only, make_read_only
from cellfeed.store.engines.mysql.replication import minion_status, position
from cellfeed.store.errors import CellfeedError, ProtectData, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.cli_instance import cellfeed
from tests.support.cluster_steps import (
    applying_nothing,
    cells,
    eventually,
    open_engine,
    put_until_stored,
    shown,
    without_replication,
)
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import TestCluster, configured, make_cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


@pytest.fixture(params=[False, True], ids=["asynchronous", "semi-synchronous"])
def made(servers: list[MariaDB], request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    cluster = make_cluster("c1", servers, semi_sync=request.param)
    yield cluster
    cluster.admin.close()
    cluster.bare()


@pytest.fixture
def quick_handover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_master, "HANDOVER_S", 1.5)
    monkeypatch.setattr(old_master, "ALL_HANDOVER_S", 0.3)


def is_as_it_was(cluster: TestCluster, engine: ClusteredEngine, number: int) -> None:
    """The old master takes writes, and both minions follow it."""
    role, _ = cluster_role(cluster.admin)
    assert (role.master, role.epoch) == ("a", 0)
    assert not is_read_only(cluster.admin.server("a"))
    put_until_stored(engine, cells(range(number, number + 2)))
    for name in "bc":
        status = minion_status(cluster.admin.server(name))
        assert status is not None
        assert not status.is_stopped


def test_a_planned_switch_waits_until_the_minions_have_all_cells_of_the_master(
    made: TestCluster,
) -> None:
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, cells(range(3)))
        eventually(lambda: shown(engine) == 3, "replicated")
        with ExitStack() as behind:
            # Behind, as minions are that have much to apply.
            for name in "bc":
                behind.enter_context(applying_nothing(made, name))
            if not made.admin.semi_sync:
                without_replication(made, "b", "c")
            put_until_stored(engine, cells(range(3, 8)))
            assert shown(engine) == 3, "no minion has the rest yet"

            def catch_up() -> None:
                behind.close()
                if not made.admin.semi_sync:  # the others never stopped, and may be master by now
                    for name in "bc":
                        made.servers[name].sql("START SLAVE")

            later = threading.Timer(0.5, catch_up)
            later.start()
            done = promote(made.admin)
            later.join()
        assert (done.fenced, done.master) == (True, "b")
        assert made.servers["b"].sql("SELECT SUM(next_added_id) FROM trips_meta.shard_counter") == [
            (8,)
        ]
        follow_again(made.admin, "a")
        put_until_stored(engine, cells(range(8, 10)))
        assert all(engine.get([cell.triple for cell in cells(range(10))]))


def test_a_switch_that_no_minion_can_take_over_is_refused_and_the_master_takes_writes_again(
    made: TestCluster, quick_handover: None
) -> None:
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, cells(range(3)))
        eventually(lambda: shown(engine) == 3, "replicated")
        without_replication(made, "b", "c")
        alone = _ahead_by_one(made, engine)
        with pytest.raises(
            StorageUnavailable,
            match=(
                r"nobody was promoted: a is at 0-1-\d+, and after .* b at .*, c at .* --give-up a"
            ),
        ):
            promote(made.admin)
        alone.join()
        is_as_it_was(made, engine, 10)
        eventually(lambda: shown(engine) == 6, "the minions receive again")
        assert promote(made.admin).master == "b"


def _ahead_by_one(made: TestCluster, engine: ClusteredEngine) -> threading.Thread:
    """Begins one commit that only the master has. A semi-synchronous one waits for a minion, and
    ends at the fence. Gives the thread that put it."""
    alone = threading.Thread(target=_put_alone, args=(engine,))
    alone.start()
    eventually(
        lambda: (
            position(made.admin.server("a")).sequence > position(made.admin.server("b")).sequence
        ),
        "the master is ahead",
    )
    return alone


def _put_alone(engine: ClusteredEngine) -> None:
    try:
        engine.put(cells(range(3, 4)))
    except CellfeedError:
        assert engine.clusters["c1"].role().semi_sync, "an asynchronous commit does not wait"


def test_a_master_that_no_minion_catches_up_with_is_given_up_by_name(
    made: TestCluster, quick_handover: None, tmp_path: Path
) -> None:
    config = configured(made, tmp_path, semi_sync=made.admin.semi_sync)
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, cells(range(3)))
        eventually(lambda: shown(engine) == 3, "replicated")
        without_replication(made, "b", "c")
        alone = _ahead_by_one(made, engine)
        done = cellfeed("cluster", "promote", "c1", "--give-up", "a", "--config", str(config))
        assert (done.returncode, "b is master in epoch 1" in done.stdout) == (0, True), done.stderr
        alone.join()
        put_until_stored(engine, cells(range(10, 12)))
        eventually(lambda: shown(engine) == 5, "shown")
        assert is_read_only(made.admin.server("a"))
        with pytest.raises(ProtectData, match="never replicated"):
            follow_again(made.admin, "a")


def test_a_master_that_answers_and_cannot_be_fenced_loses_nothing(
    made: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asynchronous, it may acknowledge cells all the while; semi-synchronous, a minion has every
    cell that it acknowledges, and it is refused by its minions later."""
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, cells(range(3)))

        def fence_in_vain(server: MySqlServer) -> None:
            make_read_only(server)
            raise StorageUnavailable("no answer in time")

        monkeypatch.setattr(old_master, "make_read_only", fence_in_vain)
        if made.admin.semi_sync:
            assert not promote(made.admin, "b").fenced
        else:
            with pytest.raises(
                StorageUnavailable, match=r"a answers but could not be fenced.*--give-up a"
            ):
                promote(made.admin, "b")
            is_as_it_was(made, engine, 10)
            assert promote(made.admin, "b", give_up=["a"]).master == "b"


def test_one_minion_that_lags_delays_a_switch_for_a_moment_only(
    made: TestCluster, quick_handover: None
) -> None:
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, cells(range(3)))
        eventually(lambda: shown(engine) == 3, "replicated")
        made.servers["c"].sql("STOP SLAVE", "CHANGE MASTER TO MASTER_DELAY = 4", "START SLAVE")
        put_until_stored(engine, cells(range(3, 6)))
        with pytest.raises(StorageUnavailable, match="nobody was promoted"):
            promote(made.admin, "c")
        assert not is_read_only(made.admin.server("a"))
        put_until_stored(engine, cells(range(6, 8)))
        began_s = time.monotonic()
        assert promote(made.admin).master == "b"
        assert time.monotonic() - began_s < 20, (
            "c applies what it has received, and is not waited for longer"
        )
        made.servers["c"].sql("STOP SLAVE", "CHANGE MASTER TO MASTER_DELAY = 0", "START SLAVE")
        put_until_stored(engine, cells(range(8, 10)))
        assert all(engine.get([cell.triple for cell in cells(range(10))]))


@pytest.mark.parametrize("point", ["promote.after_fence", "promote.after_collect"])
def test_a_switch_that_is_killed_behind_the_fence_is_completed_by_the_next_one(
    made: TestCluster, point: str
) -> None:
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, cells(range(3)))
        set_failpoint(point, "raise")
        with pytest.raises(FailpointReached):
            promote(made.admin)
        clear_failpoints()
        assert is_read_only(made.admin.server("a"))
        done = promote(made.admin)
        assert (done.master, done.epoch) == (
            "a",
            0,
        ), "nobody else is promoted: the master is opened again"
        is_as_it_was(made, engine, 3)


def test_a_promotion_refused_behind_the_fence_leaves_the_master_open(
    made: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, cells(range(3)))
        number = 10
        for step in ("stop_receiving", "check_left_out", "choose"):
            with monkeypatch.context() as patched:

                def refuse(*_: object) -> None:
                    assert is_read_only(made.admin.server("a")), "behind the fence"
                    raise ProtectData("refused")

                patched.setattr(failover, step, refuse)
                with pytest.raises(ProtectData, match="refused"):
                    promote(made.admin)
            is_as_it_was(made, engine, number)
            number += 10
