"""A shard and a row of a backup go back into clusters of real MariaDB servers: through the guarded
put, so minions have every cell that is reported as put."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from typer.testing import CliRunner

from cellfeed.cli.main import command_line
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import clear_failpoints, watch_failpoint
from tests.support.cli_commands import done, refused
from tests.support.cluster_steps import open_engine
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, cells_of_shard
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

SHARD = 1
CELLS = cells_of_shard(SHARD, 0, 60)
TABLE = f"trips_{SHARD:04d}.cell"


@pytest.fixture
def config(cluster: TestCluster, tmp_path: Path) -> Path:
    path = tmp_path / "cellfeed.yaml"
    nodes = [{"name": node, "url": server.url} for node, server in cluster.servers.items()]
    clusters = [{"name": cluster.name, "nodes": nodes}]
    datastore = {"name": DATASTORE, "shards": SHARDS, "clusters": clusters}
    path.write_text(yaml.safe_dump({"datastore": datastore}))
    return path


@pytest.fixture
def store(cluster: TestCluster) -> Iterator[Datastore]:
    """With a shard whose cells every node has."""
    with Datastore(open_engine(cluster)) as opened:
        assert all(each.acknowledged for each in opened.put_new_cells(CELLS))
        replicated(cluster, len(CELLS))
        yield opened


def replicated(cluster: TestCluster, cells: int) -> None:
    wait_until(
        lambda: all(
            server.sql(f"SELECT COUNT(*) FROM {TABLE}") == [(cells,)]
            for server in cluster.servers.values()
        ),
        "every node has them",
    )


def part(config: Path, tmp_path: Path, *words: object) -> tuple[int, dict[str, Any]]:
    given = ["restore", tmp_path / "backups", "--into", tmp_path / "run", "--config", config]
    result = CliRunner().invoke(
        command_line("restore"), [*map(str, given), *map(str, words), "--json"]
    )
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, {name: value for name, value in found.items() if value}


def test_trimmed_cells_are_restored_on_every_node_and_an_erased_row_is_not(
    store: Datastore, cluster: TestCluster, config: Path, tmp_path: Path
) -> None:
    done("backup", "create", tmp_path / "backups", "--config", config, "--run-dir", tmp_path)
    erased, other = CELLS[0], CELLS[1]
    store.erase_row(UUID(bytes=erased.row_key))
    wait_until(
        lambda: store.engine.trim_limits([SHARD])[SHARD] == len(CELLS) + 1, "every node has it"
    )
    store.trim(SHARD, len(CELLS) + 1)
    store.put_new_cells([other._replace(body_json=b'{"other":"body"}')])
    words = (config, tmp_path, "--shard", SHARD)
    counts = {"stored": len(CELLS) - 2, "other": 1, "erased": 1}
    for more in (("--dry-run",), ()):
        code, told = part(*words, *more)
        assert (code, counts.items() <= told.items()) == (1, True), told
        [problem] = told["problems"]
        assert problem["row_key"] == str(UUID(bytes=other.row_key))
    replicated(cluster, len(CELLS) - 1)
    first = len(CELLS) + 1
    found = store.engine.scan(SHARD, first, 1_000)
    assert [cell.added_id for cell in found] == list(range(first, first + len(CELLS) - 1))
    assert {(cell.row_key, decode_body(cell.body)) for cell in found[1:]} == {
        (cell.row_key, cell.body_json) for cell in CELLS[2:]
    }
    code, told = part(config, tmp_path, "--row-key", UUID(bytes=CELLS[5].row_key))
    assert (code, told["same"]) == (0, 1)


def test_while_the_master_is_away_no_cell_is_counted_as_put(
    store: Datastore,
    cluster: TestCluster,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done("backup", "create", tmp_path / "backups", "--config", config, "--run-dir", tmp_path)
    wait_until(lambda: store.engine.trim_limits([SHARD])[SHARD] == len(CELLS), "all have them")
    store.trim(SHARD, len(CELLS))
    replicated(cluster, 0)
    words = (config, tmp_path, "--shard", SHARD)

    def kill_once() -> None:
        if cluster.servers["a"].is_running():
            cluster.servers["a"].kill()

    watch_failpoint("restore.part.compared", kill_once)
    monkeypatch.setattr("cellfeed.store.backups.partial.PART_BATCH_CELLS", 20)
    try:
        code, told = part(*words)
    finally:
        clear_failpoints()
    assert code == 1
    assert "stored" not in told
    assert told.get("failed", 0) + told.get("unknown", 0) == 20
    assert told["not_reached"] == len(CELLS) - 20
    assert {each["retriable"] for each in told["problems"]} == {True}
    # The list of erased rows cannot be read now, so nothing is begun.
    refusal = refused(
        *("restore", tmp_path / "backups", "--into", tmp_path / "run", "--config", config),
        *("--shard", SHARD),
    )
    assert isinstance(refusal, StorageUnavailable)
    cluster.servers["a"].start()
    with closing(open_engine(cluster)) as engine:
        wait_until(lambda: bool(engine.heads()), "the master is back")
    code, told = part(*words)
    assert (code, told["stored"]) == (0, len(CELLS))
    replicated(cluster, len(CELLS))
