"""A node returns to its cluster: an old master that is ahead or was never fenced, copies that
are cut off, minions that stopped."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.never_replicated import extra_cells, never_replicated
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import come_back, follow_again, heard_epoch, is_prefix
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.operation_locks import copy_lock
from cellfeed.store.engines.mysql.read_only import is_read_only
from cellfeed.store.engines.mysql.replication import follow, minion_status, position
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.cli_instance import cellfeed
from tests.support.cluster_steps import (
    cells,
    checksums,
    eventually,
    open_engine,
    put_until_stored,
    renew_a_lease,
    shown,
    supervised,
    without_replication,
)
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import TestCluster, configured, make_cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


def test_an_old_master_with_cells_of_its_own_is_never_promoted(asynchronous: TestCluster) -> None:
    with closing(open_engine(asynchronous)) as engine:
        engine.put(cells(range(10)))
        eventually(lambda: shown(engine) == 10, "replicated")
        without_replication(asynchronous, "b", "c")
        for number in range(20, 60):
            engine.put(cells(range(number, number + 1)))  # forty transactions that nobody else has
        asynchronous.servers["a"].kill()
        promote(asynchronous.admin, "b")
        put_until_stored(engine, cells(range(100, 110)))
        eventually(lambda: shown(engine) == 20, "shown in the new epoch")
        asynchronous.servers["a"].start()
        ahead, other = (position(asynchronous.admin.server(node)).sequence for node in "ac")
        assert ahead > other, "by its count alone the old master would be chosen"
        asynchronous.servers["b"].kill()
        with pytest.raises(ProtectData, match="a does not follow b"):
            promote(asynchronous.admin, "a")
        done = promote(asynchronous.admin)
        assert (done.master, done.left_out) == ("c", ["a"])
        put_until_stored(engine, cells(range(200, 201)))
        assert all(engine.get([cell.triple for cell in cells(range(100, 110))]))


def test_a_lost_tail_is_seen_after_any_number_of_promotions(asynchronous: TestCluster) -> None:
    with closing(open_engine(asynchronous)) as engine:
        engine.put(cells(range(10)))
        eventually(lambda: shown(engine) == 10, "replicated")
        without_replication(asynchronous, "b", "c")
        engine.put(lost_tail := cells(range(20, 30)))
        asynchronous.servers["a"].kill()
        for epoch, node in enumerate("bcb", 1):
            role, _ = cluster_role(asynchronous.admin)
            assert promote(asynchronous.admin, node).epoch == epoch
            if epoch > 1:
                follow_again(asynchronous.admin, role.master)
            for number in range(epoch * 1000, epoch * 1000 + 20):
                put_until_stored(engine, cells(range(number, number + 1)))
        asynchronous.servers["a"].start()
        role, _ = cluster_role(asynchronous.admin)
        assert (
            position(asynchronous.admin.server("a")).sequence
            < position(asynchronous.admin.server("b")).sequence
        )
        assert not is_prefix(asynchronous.admin, "a", role)
        beyond = never_replicated(asynchronous.admin, "a", role)
        assert sorted(cell.row_key for cell in beyond.cells) == sorted(
            cell.row_key for cell in lost_tail
        )
        with pytest.raises(ProtectData, match="never replicated"):
            follow_again(asynchronous.admin, "a")


def test_an_old_master_with_nobodys_cells_beyond_is_made_a_copy_by_the_supervisor(
    asynchronous: TestCluster,
) -> None:
    with closing(open_engine(asynchronous)) as engine:
        engine.put(cells(range(30)))
        eventually(lambda: shown(engine) == 30, "replicated")
        without_replication(asynchronous, "b", "c")
        renew_a_lease(asynchronous, "a")
        asynchronous.servers["a"].kill()
        promote(asynchronous.admin, "b")
        put_until_stored(engine, cells(range(30, 40)))
        asynchronous.servers["a"].start()
        role, _ = cluster_role(asynchronous.admin)
        assert not is_prefix(asynchronous.admin, "a", role)
        with supervised(asynchronous):
            eventually(
                lambda: checksums(asynchronous, "a") == checksums(asynchronous, "b"),
                "a copy of the master",
                30,
            )
        role, _ = cluster_role(asynchronous.admin)
        assert set(role.minions) == {"a", "c"}, "a minion that no promotion continues without"


def test_an_unfenced_old_master_is_fenced_before_the_search_and_keeps_its_later_writes(
    asynchronous: TestCluster,
) -> None:
    with closing(open_engine(asynchronous)) as engine:
        engine.put(cells(range(10)))
        eventually(lambda: shown(engine) == 10, "replicated")
        without_replication(asynchronous, "b", "c")
        engine.put(alone := cells(range(20, 25)))
        asynchronous.servers["a"].kill()
        promote(asynchronous.admin, "b")
        asynchronous.servers["a"].start()
        assert not is_read_only(asynchronous.admin.server("a")), (
            "it takes writes of callers that have not heard of the promotion"
        )
        with pytest.raises(ProtectData, match="b is the master"):
            come_back(asynchronous.admin, "b")
        beyond = come_back(asynchronous.admin, "a")
        assert beyond is not None
        assert is_read_only(asynchronous.admin.server("a"))
        assert sorted(cell.row_key for cell in beyond.cells) == sorted(
            cell.row_key for cell in alone
        )
        renew_a_lease(asynchronous, "a")  # by an account that may write to a read-only server
        with pytest.raises(ProtectData, match="listed again"):
            clone(asynchronous.admin, "a", listed=beyond)
        again = come_back(asynchronous.admin, "a")
        assert again is not None
        assert again.cells == beyond.cells, "nothing was wiped"
        put_until_stored(engine, again.cells)
        clone(asynchronous.admin, "a", listed=again)
        eventually(
            lambda: checksums(asynchronous, "a") == checksums(asynchronous, "b"),
            "a copy of the master",
            30,
        )
        assert come_back(asynchronous.admin, "a") is None, "it follows"


def test_rejoin_lists_the_cells_that_only_an_old_master_has_and_puts_them_again_on_request(
    asynchronous: TestCluster, tmp_path: Path
) -> None:
    config = configured(asynchronous, tmp_path, semi_sync=False)
    with closing(open_engine(asynchronous)) as engine:
        engine.put(cells(range(10)))
        eventually(lambda: shown(engine) == 10, "replicated")
        without_replication(asynchronous, "b", "c")
        [alone] = cells(range(20, 21))
        engine.put([alone])
        asynchronous.servers["a"].kill()
        assert (
            cellfeed("cluster", "promote", "c1", "--to", "b", "--config", str(config)).returncode
            == 0
        )
        asynchronous.servers["a"].start()
        of_master = cellfeed("cluster", "rejoin", "c1", "b", "--config", str(config))
        assert (of_master.returncode, "b is the master" in of_master.stderr) == (
            3,
            True,
        ), of_master.stderr
        refused = cellfeed("cluster", "rejoin", "c1", "a", "--config", str(config))
        assert refused.returncode == 3, refused.stderr
        assert f"never replicated: {alone.row_key.hex()} BASE 1" in refused.stdout + refused.stderr
        assert is_read_only(asynchronous.admin.server("a")), "fenced, though it is no minion yet"
        done = cellfeed("cluster", "rejoin", "c1", "a", "--put-again", "--config", str(config))
        assert done.returncode == 0, done.stderr
        assert engine.get([alone.triple])
        eventually(
            lambda: checksums(asynchronous, "a") == checksums(asynchronous, "b"),
            "a copy of the master",
            30,
        )
        again = cellfeed("cluster", "rejoin", "c1", "a", "--config", str(config))
        assert (again.returncode, "a follows b" in again.stdout) == (0, True), again.stderr


def test_cells_of_a_row_erased_and_trimmed_since_are_not_put_again_from_an_old_master(
    asynchronous: TestCluster, tmp_path: Path
) -> None:
    config = configured(asynchronous, tmp_path, semi_sync=False)
    engine = open_engine(asynchronous)
    with Datastore(engine) as store:
        engine.put(cells(range(10)))
        eventually(lambda: shown(engine) == 10, "replicated")
        without_replication(asynchronous, "b", "c")
        erased, kept = cells(range(20, 22))
        engine.put([erased, kept])
        asynchronous.servers["a"].kill()
        promote(asynchronous.admin, "b")
        put_until_stored(engine, cells(range(30, 34)))
        done = store.erase_row(UUID(bytes=erased.row_key))
        eventually(lambda: trimmed_beyond(store, done.shard, done.added_id), "trimmed")
        asynchronous.servers["a"].start()
        rejoined = cellfeed("cluster", "rejoin", "c1", "a", "--put-again", "--config", str(config))
        assert rejoined.returncode == 0, rejoined.stderr
        found = engine.get([erased.triple, kept.triple])
        assert [each is not None for each in found] == [False, True]
        row_key = UUID(bytes=erased.row_key)
        assert f"not put again: row {row_key} was erased since" in rejoined.stdout


def trimmed_beyond(store: Datastore, shard: int, added_id: int) -> bool:
    """Whether a step of a trim has taken the cell."""
    with suppress(ProtectData, StorageUnavailable):
        return store.trim(shard, added_id + 1) > added_id
    return False


@pytest.mark.parametrize(
    "point",
    [
        "rejoin.after_wipe",
        "rejoin.after_copy",
        "rejoin.after_position",
        "rejoin.after_meta",
        "rejoin.after_record",
    ],
)
def test_a_clone_cut_off_at_any_step_is_no_minion_and_the_supervisor_begins_again(
    cluster: TestCluster, engine: ClusteredEngine, point: str
) -> None:
    put_until_stored(engine, cells(range(30)))
    promote(cluster.admin, "b")
    set_failpoint(point, "raise")
    with pytest.raises(FailpointReached):
        clone(cluster.admin, "a")
    clear_failpoints()
    assert minion_status(cluster.admin.server("a")) is None
    role, _ = cluster_role(cluster.admin)
    whole = point in ("rejoin.after_meta", "rejoin.after_record")
    assert (heard_epoch(cluster.admin, "a") == role.epoch) == whole, (
        "it tells a role only when it has everything"
    )
    put_until_stored(engine, cells(range(30, 40)))
    with supervised(cluster):
        eventually(
            lambda: checksums(cluster, "a") == checksums(cluster, "b"), "a copy of the master", 30
        )


@pytest.mark.parametrize(
    "statement",
    [
        "RENAME TABLE trips_0003.cell TO trips_0003.moved_cell",
        "CREATE TABLE trips_0000.moved_cell (n INT)",
    ],
)
def test_a_clone_during_which_tables_were_renamed_begins_again(
    cluster: TestCluster, engine: ClusteredEngine, statement: str
) -> None:
    put_until_stored(engine, cells(range(30)))

    def move_goes_on(_: int) -> None:
        if not cluster.servers["a"].sql(
            "SELECT * FROM information_schema.TABLES WHERE TABLE_NAME = 'moved_cell'"
        ):
            cluster.servers["a"].sql(statement)

    with pytest.raises(StorageUnavailable, match="copy"):
        clone(cluster.admin, "c", move_goes_on)
    assert minion_status(cluster.admin.server("c")) is None
    assert heard_epoch(cluster.admin, "c") is None
    assert clone(cluster.admin, "c", move_goes_on) > 0
    cluster.servers["a"].sql(
        "RENAME TABLE trips_0003.moved_cell TO trips_0003.cell"
        if "RENAME" in statement
        else "DROP TABLE trips_0000.moved_cell"
    )
    eventually(
        lambda: checksums(cluster, "c") == checksums(cluster, "a"),
        "a copy of the master, which follows",
    )


def test_a_node_is_copied_to_by_one_at_a_time(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    put_until_stored(engine, cells(range(5)))
    with (
        copy_lock(cluster.admin.server("a"), "c"),
        pytest.raises(StorageUnavailable, match="c is being made a copy"),
    ):
        clone(cluster.admin, "c")
    assert clone(cluster.admin, "c") > 0
    with pytest.raises(StorageUnavailable, match="no half copy any more"):
        clone(cluster.admin, "c", cut_off=True)  # as a supervisor that saw one a moment ago
    assert heard_epoch(cluster.admin, "c") == 0, "nothing was touched"
    set_failpoint("rejoin.after_copy", "raise")
    with pytest.raises(FailpointReached):
        clone(cluster.admin, "c")
    with pytest.raises(
        StorageUnavailable, match=r"a copy to it is under way: .* rejoin c1 c --copy"
    ):
        follow_again(cluster.admin, "c")
    assert clone(cluster.admin, "c", cut_off=True) > 0


def test_the_supervisor_repairs_minions_that_stopped_or_follow_another_server(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    put_until_stored(engine, cells(range(10)))
    eventually(lambda: shown(engine) == 10, "replicated")
    cluster.servers["b"].sql("STOP SLAVE")
    follow(cluster.admin.server("c"), cluster.admin.server("b"))
    with supervised(cluster):
        eventually(
            lambda: all(
                (told := minion_status(cluster.admin.server(name)))
                and told.follows(cluster.admin.server("a"))
                for name in "bc"
            ),
            "both",
        )
        put_until_stored(engine, cells(range(10, 20)))
        eventually(
            lambda: checksums(cluster, "b") == checksums(cluster, "c") == checksums(cluster, "a"),
            "the same everywhere",
        )


def test_a_node_that_follows_without_being_written_down_as_minion_is_written_down(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    put_until_stored(engine, cells(range(10)))
    promote(cluster.admin, "b")
    follow(cluster.admin.server("a"), cluster.admin.server("b"))  # as far as a killed process came
    assert cluster_role(cluster.admin)[0].minions == ["c"]
    with supervised(cluster):
        eventually(
            lambda: set(cluster_role(cluster.admin)[0].minions) == {"a", "c"},
            "no promotion continues without it",
        )
        put_until_stored(engine, cells(range(10, 20)))
        eventually(lambda: checksums(cluster, "a") == checksums(cluster, "b"), "the same on both")


def test_an_old_master_with_own_cells_is_refused_and_loses_none_nor_shows_one_under_a_taken_id(
    servers: list[MariaDB],
) -> None:
    cluster = make_cluster("c1", servers, semi_sync=False)
    engine = open_engine(cluster)
    try:
        engine.put(cells(range(20)))
        eventually(lambda: shown(engine) == 20, "replicated")
        for name in "bc":
            cluster.servers[name].sql("STOP SLAVE IO_THREAD")
        lost_tail = cells(range(20, 30))
        assert {result.outcome for result in engine.put(lost_tail)} == {Outcome.STORED}
        cluster.servers["a"].kill()
        promote(cluster.admin)
        put_until_stored(engine, cells(range(100, 110)))
        cluster.servers["a"].start()
        with pytest.raises(ProtectData, match="never replicated"):
            follow_again(cluster.admin, "a")
        role, _ = cluster_role(cluster.admin)
        extra = [cell for _, cell in extra_cells(cluster.admin, "a", role)]
        assert sorted(cell.row_key for cell in extra) == sorted(cell.row_key for cell in lost_tail)
        put_until_stored(engine, lost_tail)
        assert clone(cluster.admin, "a") > 0
        eventually(
            lambda: (
                cluster.servers["a"].sql("SELECT SUM(next_added_id) FROM trips_meta.shard_counter")
                == [(40,)]
            ),
            "the copy follows",
        )
        put_until_stored(engine, cells(range(200, 205)))
        eventually(lambda: shown(engine) == 45, "all shown")
        eventually(
            lambda: checksums(cluster, "a") == checksums(cluster, role.master), "the same on both"
        )
    finally:
        engine.close()
        for server in cluster.admin.servers.values():
            server.close()
        cluster.bare()
