"""`cellfeed check` of clusters looks at every node by itself: damage of one node is named with it,
with any cells on the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cellfeed.assembly.checked_places import background_check
from cellfeed.cli.main import command_line
from cellfeed.config.model import ChecksConfig
from cellfeed.instance.config_file import load_config
from cellfeed.store import checks
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from tests.support.cluster_steps import open_engine
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, cells_of_shard
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

CELLS = 300
SHARD = 1
TABLE = f"trips_{SHARD:04d}.cell"


@pytest.fixture
def filled(cluster: TestCluster) -> Iterator[ClusteredEngine]:
    with closing(open_engine(cluster)) as engine:
        engine.put(cells_of_shard(SHARD, 0, CELLS))

        def counted(node: str) -> list[tuple[Any, ...]]:
            return cluster.servers[node].sql(f"SELECT COUNT(*) FROM {TABLE}")

        wait_until(lambda: all(counted(node) == [(CELLS,)] for node in "abc"), "all nodes have all")
        yield engine


@pytest.fixture
def config(cluster: TestCluster, tmp_path: Path) -> Path:
    path = tmp_path / "cellfeed.yaml"
    nodes = [{"name": node, "url": server.url} for node, server in cluster.servers.items()]
    path.write_text(
        yaml.safe_dump(
            {
                "datastore": {
                    "name": DATASTORE,
                    "shards": SHARDS,
                    "clusters": [{"name": cluster.name, "nodes": nodes}],
                }
            }
        )
    )
    return path


def check(config: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(
        command_line("check"), ["check", "--json", "--config", str(config), *words]
    )
    assert isinstance(done.exception, SystemExit | None), repr(done.exception)
    return done.exit_code, [json.loads(line) for line in done.output.splitlines()]


def hurt(cluster: TestCluster, node: str, *changes: str) -> None:
    cluster.servers[node].sql("SET SESSION sql_log_bin = 0", *changes)


def test_nodes_in_good_order_have_no_findings_beside_trims_and_erasures(
    cluster: TestCluster, filled: ClusteredEngine, config: Path
) -> None:
    wait_until(lambda: filled.trim_limits([SHARD])[SHARD] == CELLS, "every node has them")
    filled.trim(SHARD, 20)
    filled.erase(cells_of_shard(SHARD, 0, 100)[99].row_key)
    wait_until(
        lambda: all(
            cluster.servers[node].sql(f"SELECT COUNT(*) FROM {TABLE}") == [(CELLS - 19,)]
            for node in "abc"
        ),
        "all nodes have it",
    )
    code, [told] = check(config)
    assert (code, told["well"], told["cells"]) == (0, True, 3 * (CELLS - 19))


@pytest.mark.parametrize(
    ("node", "change", "kind", "ids"),
    [
        ("b", f"UPDATE {TABLE} SET body = X'04' WHERE added_id = 7", "checksum", (7, 7)),
        ("a", f"UPDATE {TABLE} SET column_name = X'FF' WHERE added_id = 7", "checksum", (7, 7)),
        (
            "c",
            f"UPDATE {TABLE} SET crc = NULL, body = X'0203' WHERE added_id = 7",
            "checksum",
            (7, 7),
        ),
        ("c", f"DELETE FROM {TABLE} WHERE added_id BETWEEN 40 AND 44", "gap", (40, 44)),
        (
            "b",
            "UPDATE trips_meta.shard_counter SET next_added_id = 290 WHERE shard = 1",
            "counter",
            (290, 299),
        ),
        (
            "b",
            "UPDATE trips_meta.shard_counter SET log_start = 3 WHERE shard = 1",
            "counter",
            (0, 2),
        ),
        (
            "b",
            "UPDATE trips_meta.shard_counter SET last_created_at = '2001-01-01' WHERE shard = 1",
            "counter",
            None,
        ),
        ("b", "DELETE FROM trips_meta.column_seen", "counter", (0, 0)),
    ],
)
def test_damage_of_one_node_is_named_with_node_shard_and_ids(
    cluster: TestCluster,
    filled: ClusteredEngine,
    config: Path,
    node: str,
    change: str,
    kind: str,
    ids: tuple[int, int] | None,
) -> None:
    hurt(cluster, node, change)
    code, found = check(config, "--no-indexes")
    assert (code, {each["place"] for each in found[:-1]}) == (1, {f"{cluster.name}/{node}"})
    [named] = [each for each in found[:-1] if each["kind"] == kind]
    assert named["shard"] == SHARD
    assert ids is None or (named["from"], named["to"]) == ids
    assert found[-1]["cells"] >= 3 * CELLS - 10


def test_a_node_that_is_away_and_one_of_another_history_are_named(
    cluster: TestCluster, filled: ClusteredEngine, config: Path
) -> None:
    history_id = filled.history.history_id
    other = "ab" * 16
    hurt(
        cluster,
        "b",
        f"UPDATE trips_meta.state_entry SET value = REPLACE(value, '{history_id}', '{other}')",
    )
    cluster.servers["c"].stop()
    try:
        code, found = check(config, "--no-indexes")
    finally:
        cluster.servers["c"].start()
    assert code == 1
    hurt(
        cluster,
        "b",
        f"UPDATE trips_meta.state_entry SET value = REPLACE(value, '{other}', '{history_id}')",
    )
    assert {each["place"] for each in found[:-1]} >= {cluster.name}
    assert other in found[0]["text"]
    code, found = check(config, "--no-indexes")
    hurt(
        cluster,
        "b",
        f"UPDATE trips_meta.state_entry SET value = REPLACE(value, '{history_id}', '{other}')",
    )
    code, found = check(config, "--no-indexes")
    assert (code, [(each["kind"], each["place"]) for each in found[:-1]]) == (
        1,
        [("identity", f"{cluster.name}/b")],
    )


def rows(cluster: TestCluster, node: str) -> list[tuple[Any, ...]]:
    return cluster.servers[node].sql(
        "SELECT added_id, HEX(row_key), column_name, ref_key, HEX(body), created_at, crc FROM"
        f" {TABLE} ORDER BY added_id"
    )


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_node_gets_its_damaged_and_lost_cells_from_another_one(
    cluster: TestCluster, filled: ClusteredEngine, config: Path, node: str
) -> None:
    before = rows(cluster, node)
    victim = cells_of_shard(SHARD, 0, 42)[41]
    hurt(
        cluster,
        node,
        f"UPDATE {TABLE} SET row_key = REPEAT(X'07', 16) WHERE added_id = 7",
        f"DELETE FROM {TABLE} WHERE added_id BETWEEN 50 AND 54",
    )
    others = [rows(cluster, other) for other in "abc" if other != node]
    position = cluster.servers[node].sql("SELECT @@gtid_binlog_pos")
    code, found = check(config, "--repair", "--no-indexes")
    assert (code, len(found)) == (0, 3)
    source = "b" if node == "a" else "a"
    assert {each["mended"] for each in found[:-1]} == {
        (
            f"shard {SHARD}: replaced added_id 7 by the copy of node {source} of cluster"
            f" {cluster.name}"
        ),
        (
            f"shard {SHARD}: replaced added_ids 50 to 54 by the copy of node {source} of cluster"
            f" {cluster.name}"
        ),
    }
    assert rows(cluster, node) == before
    assert [rows(cluster, other) for other in "abc" if other != node] == others
    assert cluster.servers[node].sql("SELECT @@gtid_binlog_pos") == position, (
        "no part of the history"
    )
    filled.erase(victim.row_key)
    wait_until(
        lambda: len({tuple(rows(cluster, other)) for other in "abc"}) == 1, "the node follows"
    )


def test_a_copy_that_no_checksum_proves_is_not_taken(
    cluster: TestCluster, filled: ClusteredEngine, config: Path
) -> None:
    hurt(cluster, "b", f"UPDATE {TABLE} SET body = X'04' WHERE added_id = 7")
    hurt(cluster, "a", f"UPDATE {TABLE} SET crc = NULL WHERE added_id = 7")
    hurt(cluster, "c", f"UPDATE {TABLE} SET body = X'05' WHERE added_id = 7")
    before = [rows(cluster, node) for node in "abc"]
    code, found = check(config, "--repair", "--no-indexes")
    assert code == 1
    named = [each for each in found[:-1] if each["kind"] == "checksum"]
    assert {(each["place"], each["from"]) for each in named} == {
        (f"{cluster.name}/{node}", 7) for node in "bc"
    }
    assert all("nothing changed: added_id 7: no verified copy" in each["text"] for each in named)
    assert [rows(cluster, node) for node in "abc"] == before


def test_a_repaired_cell_of_an_erased_row_has_no_body(
    cluster: TestCluster, filled: ClusteredEngine, config: Path
) -> None:
    victim = cells_of_shard(SHARD, 0, 42)[41]
    filled.erase(victim.row_key)
    wait_until(
        lambda: all(len(rows(cluster, node)) == CELLS + 1 for node in "abc"), "all nodes have it"
    )
    before = rows(cluster, "b")
    hurt(cluster, "b", f"DELETE FROM {TABLE} WHERE added_id = 41")
    assert check(config, "--repair", "--no-indexes")[0] == 0
    assert rows(cluster, "b") == before


def test_the_workers_check_looks_at_every_node_in_pieces_beside_trims_and_erasures(
    cluster: TestCluster, filled: ClusteredEngine, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_config(config)
    check = background_check(settings, ChecksConfig(cells_per_s=1e6), config.parent, filled.state)
    monkeypatch.setattr(checks, "PIECE_CELLS", 37)
    wait_until(lambda: filled.trim_limits([SHARD])[SHARD] == CELLS, "every node has them")
    changes = iter(range(20))

    class Changes(Event):
        def wait(self, timeout: float | None = None) -> bool:
            if (number := next(changes, None)) is not None:
                filled.trim(SHARD, number)
                filled.erase(cells_of_shard(SHARD, 0, 100)[99 - number].row_key)
            return False

    check.look(Changes())
    last = check.known.last
    assert last is not None
    assert last.named == []
    assert last.cells > 3 * (CELLS - 20)
    hurt(cluster, "b", f"UPDATE {TABLE} SET body = X'04' WHERE added_id = 150")
    hurt(cluster, "c", f"DELETE FROM {TABLE} WHERE added_id BETWEEN 200 AND 202")
    cluster.servers["a"].sql(f"UPDATE {TABLE} SET ref_key = ref_key + 1 WHERE added_id = 260")
    filled.state.commit({checks.KEY: None})
    check.look(Event())
    last = check.known.last
    assert last is not None
    assert last.unread == 0
    named = "\n".join(last.named)
    assert f"{cluster.name}/b: checksum: shard {SHARD}, added_id 150" in named
    assert f"{cluster.name}/c: gap: shard {SHARD} lacks cells 200 to 202" in named
    assert f"{cluster.name}/a: checksum: shard {SHARD}, added_id 260" in named
