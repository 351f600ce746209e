"""Nodes are compared cell by cell, by digests: `shard diff` names the first that differs, and
nothing drops the only good copy of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cellfeed.cli.main import command_line
from cellfeed.store.clusters.moves import copy_pair, mover
from cellfeed.store.clusters.moves.shard_diff import ShardDiff, diff_shard
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.errors import ProtectData
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster
from tests.support.move_steps import SHARD, admins, cells, log, move, open_engine, shown
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

CELLS = 700
TABLE = f"trips_{SHARD:04d}.cell"
KEPT = f"trips_{SHARD:04d}.moved_cell"


@pytest.fixture
def engine(
    clusters: dict[str, TestCluster], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClusteredEngine]:
    monkeypatch.setattr(copy_pair, "SETTLE_S", 0.5)
    with closing(open_engine(clusters)) as opened:
        opened.put(cells(1, CELLS))
        shown(opened, CELLS)
        master, minion = (clusters["c1"].servers[name] for name in "ab")
        wait_until(lambda: counted(minion) == counted(master) == CELLS, "the minion has all")
        yield opened


def counted(server: MariaDB) -> int:
    [(count,)] = server.sql(f"SELECT COUNT(*) FROM {TABLE}")
    return int(count)


def hurt(server: MariaDB, change: str) -> None:
    server.sql("SET SESSION sql_log_bin = 0", change)


def diff(clusters: dict[str, TestCluster]) -> ShardDiff:
    return diff_shard(admins(clusters), SHARD)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            f"UPDATE {TABLE} SET body = X'04' WHERE added_id = 300",
            "another body; its checksum says that it is damaged on node b of cluster c1",
        ),
        (
            f"UPDATE {TABLE} SET ref_key = 7, created_at = '2001-01-01' WHERE added_id = 300",
            "another ref_key, created_at; its checksum",
        ),
        (
            f"UPDATE {TABLE} SET crc = crc ^ 1 WHERE added_id = 300",
            "another checksum; its checksum says that it is damaged on node b of cluster c1",
        ),
        (f"DELETE FROM {TABLE} WHERE added_id = 300", "missing on node b of cluster c1"),
    ],
)
def test_the_first_cell_that_a_minion_has_otherwise_is_named(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, change: str, named: str
) -> None:
    assert diff(clusters).equal
    assert diff(clusters).compared == {"node b of cluster c1": CELLS}
    hurt(clusters["c1"].servers["b"], change)
    hurt(clusters["c1"].servers["b"], f"UPDATE {TABLE} SET body = X'05' WHERE added_id = 650")
    found = diff(clusters)
    assert [(each.shard, each.added_id) for each in found.differences] == [
        (SHARD, 300),
        (SHARD, 650),
    ]
    assert named in str(found.differences[0])


def test_a_target_that_has_a_cell_otherwise_keeps_the_source_from_being_cleaned(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    whole = log(engine)
    assert move(clusters, engine, "c2").cells == CELLS
    target, source = clusters["c2"].servers["a"], clusters["c1"].servers["a"]
    assert diff(clusters).equal
    for change in (
        f"UPDATE {TABLE} SET body = X'04' WHERE added_id = 69",
        f"DELETE FROM {TABLE} WHERE added_id = 69",
        f"UPDATE {TABLE} SET body = X'04', crc = NULL WHERE added_id = 69",
    ):
        [before] = target.sql(
            "SELECT HEX(row_key), HEX(column_name), ref_key, HEX(body), created_at, crc FROM"
            f" {TABLE} WHERE added_id = 69"
        )
        hurt(target, change)
        [first, *_] = diff(clusters).differences
        assert (first.added_id, first.loses) == (69, True)
        with pytest.raises(ProtectData, match=f"nothing dropped.*shard {SHARD}, added_id 69"):
            mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
        with pytest.raises(ProtectData, match="nothing dropped"):
            move(clusters, engine, "c1")
        assert source.sql(f"SELECT COUNT(*) FROM {KEPT}") == [(CELLS,)], (
            "the good copy is still there"
        )
        row_key, column, ref_key, body, at, crc = before
        names = "added_id, row_key, column_name, ref_key, body, created_at, crc"
        values = f"69, X'{row_key}', X'{column}', {ref_key}, X'{body}', '{at}', {crc}"
        hurt(target, f"REPLACE INTO {TABLE} ({names}) VALUES ({values})")
    assert mover.clean(admins(clusters), SHARD, engine.dictionaries.complete) == "c1"
    assert log(engine) == whole


def test_a_kept_copy_is_dropped_when_it_alone_is_damaged_or_the_target_erased_or_trimmed(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    move(clusters, engine, "c2")
    source = clusters["c1"].servers["a"]
    for number in (3, 200, 201):
        assert engine.erase(cells(1, CELLS)[number].row_key).done
    wait_until(lambda: engine.trim_limits([SHARD])[SHARD] > 20, "every node has them")
    engine.trim(SHARD, 20)
    assert diff(clusters).equal, "erased and trimmed since"
    hurt(source, f"UPDATE {KEPT} SET body = X'04' WHERE added_id = 100")
    hurt(source, f"DELETE FROM {KEPT} WHERE added_id = 101")
    assert [(each.added_id, each.loses) for each in diff(clusters).differences] == [
        (100, False),
        (101, False),
    ]
    assert mover.clean(admins(clusters), SHARD, engine.dictionaries.complete) == "c1"


def test_the_command_exits_with_1_for_a_node_that_differs_or_is_away(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, tmp_path: Path
) -> None:
    path = tmp_path / "cellfeed.yaml"
    nodes = [{"name": node, "url": server.url} for node, server in clusters["c1"].servers.items()]
    given = [{"name": "c1", "nodes": nodes}]
    path.write_text(
        yaml.safe_dump({"datastore": {"name": DATASTORE, "shards": SHARDS, "clusters": given}})
    )

    def run(words: str) -> tuple[int, str]:
        done = CliRunner().invoke(command_line("shard"), [*words.split(), "--config", str(path)])
        return done.exit_code, done.output or str(done.exception)

    code, output = run("shard diff --shard 0-1")
    assert (
        code,
        f"shard {SHARD}: node b of cluster c1 equals node a of cluster c1 in {CELLS} ids" in output,
    ) == (0, True), output
    minion = clusters["c1"].servers["b"]
    hurt(minion, f"UPDATE {TABLE} SET body = X'04' WHERE added_id = 300")
    code, output = run(f"shard diff --shard {SHARD} --json")
    assert (code, json.loads(output)["differences"][0]["added_id"]) == (1, 300)
    minion.stop()
    try:
        code, output = run("shard diff --shard 0")
        assert (code, "c1/b is not compared" in output) == (1, True), output
    finally:
        minion.start()


def test_the_remains_of_a_cell_that_no_side_has_in_good_order_stay(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    move(clusters, engine, "c2")
    hurt(clusters["c2"].servers["a"], f"UPDATE {TABLE} SET body = X'04' WHERE added_id = 69")
    hurt(clusters["c1"].servers["a"], f"UPDATE {KEPT} SET body = X'05' WHERE added_id = 69")
    found, *_ = diff(clusters).differences
    assert (found.added_id, found.loses) == (69, True)
    with pytest.raises(ProtectData, match="nothing dropped"):
        mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
