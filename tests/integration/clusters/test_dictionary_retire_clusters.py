"""A dictionary is retired on two real clusters: beside puts, moves, promotions and kills; its
content goes from every node, and every body returns as it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cellfeed.store.cells.body_codec import (
    CODEC_JSON_DICTIONARY,
    decode_body,
    forget_dictionaries,
    is_erased,
)
from cellfeed.store.cells.cell import NewCell, StoredCell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving import placement
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.dictionaries.retiring import Retired, retire
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.errors import NotFound, ProtectData, ShardMoving, StorageUnavailable
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    watch_failpoint,
)
from tests.support.cli_commands import done, killed
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, configured
from tests.support.move_steps import SHARD, move, open_engine
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("no_other_stores"),
]

CELLS = rides(0, 600)
OLD = train("BASE", [Sample(cell.row_key, cell.body_json) for cell in CELLS]).dictionary
PREFIX = bytes([CODEC_JSON_DICTIONARY]) + OLD.dictionary_id.to_bytes(4)
READERS_S = 0.5
"""A minion of these tests may take this long to apply the events that it has received."""

Clusters = dict[str, TestCluster]


@pytest.fixture
def engine(clusters: Clusters) -> Iterator[ClusteredEngine]:
    """With 600 bodies that name the dictionary."""
    with filled(clusters, len(CELLS) + sum(map(on_c1, CELLS))) as opened:
        yield opened


@pytest.fixture
def three(cluster: TestCluster) -> Iterator[tuple[Clusters, ClusteredEngine]]:
    """The same on one cluster of three nodes."""
    with filled({"c1": cluster}, 3 * len(CELLS)) as opened:
        yield {"c1": cluster}, opened


@contextmanager
def filled(clusters: Clusters, bodies: int) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        assert publish(opened.dictionaries, OLD, 0)
        put(opened, CELLS)
        wait_until(
            lambda: sum(opened.bodies_with(PREFIX).values()) == bodies, "minions have all of them"
        )
        try:
            yield opened
        finally:
            clear_failpoints()


def on_c1(cell: NewCell) -> bool:
    """Whether the cell is on two nodes: c1 has the first half of the shards, and a minion."""
    return shard_of(cell.row_key, SHARDS) < SHARDS // 2


def put(engine: ClusteredEngine, cells: list[NewCell]) -> None:
    assert [str(result.error) for result in engine.put(cells) if not result.acknowledged] == []


def retired(engine: ClusteredEngine) -> Retired:
    return retire(engine, OLD.dictionary_id, readers_s=READERS_S)


def logs(clusters: Clusters) -> dict[int, list[StoredCell]]:
    """All that a process that has just begun reads, bodies as JSON."""
    forget_dictionaries()
    with closing(open_engine(clusters)) as reader:
        heads = reader.heads()
        wait_until(
            lambda: all(h.watermark == h.next_added_id for h in reader.heads().values()), "shown"
        )
        return {
            shard: [
                cell._replace(body=decode_body(cell.body))
                for cell in reader.scan(shard, head.log_start, 10_000)
            ]
            for shard, head in heads.items()
            if head.next_added_id
        }


def nodes_with_content(clusters: Clusters) -> list[str]:
    return [
        f"{each.name}/{node}"
        for each in clusters.values()
        for node, server in each.admin.servers.items()
        if MySqlDictionaries(server, f"{DATASTORE}_meta").find(OLD.dictionary_id) is not None
    ]


def is_gone(clusters: Clusters, engine: ClusteredEngine) -> None:
    """The content is on no node, once minions have applied it, and no body names it."""
    wait_until(lambda: nodes_with_content(clusters) == [], "no node has the content")
    assert engine.bodies_with(PREFIX) == {}
    with pytest.raises(NotFound):
        retired(engine)


def test_a_retired_dictionary_is_removed_from_every_node_and_every_body_stays_as_it_was(
    clusters: Clusters, engine: ClusteredEngine
) -> None:
    erased = CELLS[7].row_key
    while not engine.erase(erased).done:
        pass
    before = logs(clusters)
    told = retired(engine)
    assert (told.rewritten, bool(told.replacement)) == (len(CELLS) - 1, True)
    is_gone(clusters, engine)
    assert logs(clusters) == before, "ids, times and bodies are as they were"
    assert [cell for cells in before.values() for cell in cells if is_erased(cell.body)] == []
    c1 = clusters["c1"]
    for shard in range(SHARDS // 2):
        rows = f"SELECT added_id, SHA1(body), crc FROM {DATASTORE}_{shard:04d}.cell ORDER BY 1"
        wait_until(
            lambda rows=rows: c1.servers["a"].sql(rows) == c1.servers["b"].sql(rows),  # type: ignore[misc]
            "the minion has the same bodies",
        )


@pytest.mark.parametrize(
    "where",
    [
        "dictionary.retire.trained",
        "dictionary.retire.stopped",
        "mysql.rewrite.before_commit",
        "mysql.rewrite.after_commit",
        "dictionary.retire.between_batches",
        "dictionary.retire.rewritten",
        "dictionary.retire.searched",
        "cluster.dictionary.between_removals",
    ],
)
def test_a_retirement_that_was_killed_continues(
    clusters: Clusters, engine: ClusteredEngine, where: str
) -> None:
    before = logs(clusters)
    set_failpoint(where, "raise")
    with pytest.raises(FailpointReached):
        retired(engine)
    clear_failpoints()
    assert logs(clusters) == before
    retired(engine)
    is_gone(clusters, engine)
    assert logs(clusters) == before


def test_the_command_that_was_killed_with_kill_9_is_run_again(
    three: tuple[Clusters, ClusteredEngine], tmp_path: Path
) -> None:
    clusters, engine = three
    before = logs(clusters)
    config = configured(clusters["c1"], tmp_path)
    words = ("dictionary", "retire", OLD.name, "--config", config, "--run-dir", tmp_path)
    killed("dictionary.retire.between_batches", *words)
    assert sum(engine.bodies_with(PREFIX).values()) > 0
    assert f"{OLD.name} of column BASE is gone" in done(*words)
    is_gone(clusters, engine)
    assert logs(clusters) == before


def test_a_process_that_missed_the_retirement_stores_no_body_with_the_dictionary(
    clusters: Clusters, engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.engines.contract.dictionaries_of_puts.REFRESH_S", 3_600.0)
    with closing(open_engine(clusters)) as other:
        put(other, rides(600, 40))
        assert retired(engine).rewritten == len(CELLS) + 40
        put(other, rides(640, 40))
        is_gone(clusters, engine)
    assert sum(map(len, logs(clusters).values())) == len(CELLS) + 80


def test_a_retirement_waits_for_a_put_that_has_its_locks_and_rewrites_the_body(
    clusters: Clusters, engine: ClusteredEngine
) -> None:
    [late] = [each for each in rides(900, 40) if shard_of(each.row_key, SHARDS) == SHARD][:1]
    has_locks, stopped = threading.Event(), threading.Event()
    writer = threading.Thread(target=lambda: put(engine, [late]))

    def hold() -> None:
        if threading.current_thread() is writer:
            has_locks.set()
            stopped.wait(30)
            # anybody who does not wait for the put has passed the shard by now
            time.sleep(READERS_S)

    watch_failpoint("mysql.put.before_commit", hold)
    watch_failpoint("dictionary.retire.stopped", stopped.set)
    writer.start()
    assert has_locks.wait(30)
    told = retired(engine)
    writer.join()
    assert told.rewritten == len(CELLS) + 1
    is_gone(clusters, engine)


def test_two_retirements_at_once_leave_no_body_that_nobody_can_read(
    clusters: Clusters, engine: ClusteredEngine
) -> None:
    """One stores bodies with a dictionary that the other retires."""
    before = logs(clusters)
    inner = list[str]()

    def retire_the_replacement() -> None:
        clear_failpoints()
        with closing(open_engine(clusters)) as other:
            turn = other.dictionaries.current()["BASE"]
            assert turn.dictionary_id != OLD.dictionary_id
            retire(other, turn.dictionary_id, readers_s=READERS_S)
            inner.append("done")

    watch_failpoint("dictionary.retire.between_batches", retire_the_replacement)
    with pytest.raises(StorageUnavailable, match="retired meanwhile"):
        retired(engine)
    assert inner == ["done"]
    assert logs(clusters) == before
    retired(engine)
    is_gone(clusters, engine)
    assert logs(clusters) == before


def test_a_moved_shard_is_rewritten_on_its_target_and_the_cells_kept_at_the_source_are_named(
    clusters: Clusters, engine: ClusteredEngine
) -> None:
    before = logs(clusters)
    move(clusters, engine, "c2")
    with pytest.raises(ProtectData, match="shard clean") as refused:
        retired(engine)
    assert f"node a, shard {SHARD}" in str(refused.value)
    assert nodes_with_content(clusters), "the copy that c1 keeps can be read"
    assert logs(clusters) == before
    servers = {name: each.admin for name, each in clusters.items()}
    mover.clean(servers, SHARD, engine.dictionaries.complete)
    retired(engine)
    is_gone(clusters, engine)
    assert logs(clusters) == before


def test_while_a_shard_is_copied_its_bodies_are_not_rewritten_and_the_dictionary_stays(
    clusters: Clusters, engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "MOVE_WAIT_S", 0.2)
    before = logs(clusters)
    counters = f"UPDATE {DATASTORE}_meta.shard_counter SET copied_to"
    clusters["c1"].servers["a"].sql(f"{counters} = 'c2' WHERE shard = {SHARD}")
    with pytest.raises(ShardMoving, match=f"shard {SHARD} is being moved"):
        retired(engine)
    assert len(nodes_with_content(clusters)) == 3
    clusters["c1"].servers["a"].sql(f"{counters} = '' WHERE shard = {SHARD}")
    retired(engine)
    is_gone(clusters, engine)
    assert logs(clusters) == before


def test_a_promotion_before_the_content_goes_keeps_it_until_the_command_is_run_again(
    three: tuple[Clusters, ClusteredEngine],
) -> None:
    clusters, engine = three
    before = logs(clusters)

    def promote_once() -> None:
        clear_failpoints()
        promote(clusters["c1"].admin, "b")

    watch_failpoint("dictionary.retire.searched", promote_once)
    with pytest.raises(StorageUnavailable, match="was promoted since"):
        retired(engine)
    assert {"c1/b", "c1/c"} <= set(nodes_with_content(clusters))
    assert logs(clusters) == before
    retired(engine)
    wait_until(lambda: nodes_with_content(clusters) == ["c1/a"], "the old master alone has it")
    assert logs(clusters) == before


def test_a_dictionary_used_again_during_its_retirement_is_kept_and_a_removed_one_is_never_used(
    clusters: Clusters, engine: ClusteredEngine
) -> None:
    def use_again() -> None:
        clear_failpoints()
        turn = engine.dictionaries.current()["BASE"].turn
        assert engine.dictionaries.use(OLD, turn + 1)

    watch_failpoint("dictionary.retire.searched", use_again)
    with pytest.raises(StorageUnavailable, match="put to use again"):
        retired(engine)
    assert len(nodes_with_content(clusters)) == 3
    retired(engine)
    is_gone(clusters, engine)
    turn = engine.dictionaries.current()["BASE"].turn
    with pytest.raises(StorageUnavailable, match="was retired meanwhile"):
        engine.dictionaries.use(OLD, turn + 1)
    forget_dictionaries()
    with closing(open_engine(clusters)) as again:  # no turn lacks its content
        put(again, rides(1_000, 10))


def _stop_applying(minion: MariaDB) -> None:
    minion.sql("STOP SLAVE SQL_THREAD")


def test_a_dictionary_stays_while_a_minion_has_bodies_that_name_it(
    clusters: Clusters, engine: ClusteredEngine
) -> None:
    minion = clusters["c1"].servers["b"]
    watch_failpoint("dictionary.retire.stopped", lambda: _stop_applying(minion))
    try:
        with pytest.raises(ProtectData, match="node b"):
            retired(engine)
        assert len(nodes_with_content(clusters)) == 3
    finally:
        clear_failpoints()
        minion.sql("START SLAVE SQL_THREAD")
    wait_until(lambda: engine.bodies_with(PREFIX) == {}, "the minion has caught up")
    retired(engine)
    is_gone(clusters, engine)
