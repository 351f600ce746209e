"""The commands of docs/clusters.md that add a cluster, move shards to it and drain it, run in their
order on real servers."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest
import yaml
from typer.testing import CliRunner

from cellfeed.assembly.background import moves_healed
from cellfeed.assembly.clusters import open_clusters
from cellfeed.cli.main import command_line
from cellfeed.instance.config_file import load_config
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.moves import healer, waiting
from cellfeed.store.clusters.serving import placement
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.local_mariadb import MariaDB, drop_all_databases
from tests.support.mariadb_cluster import BUSY_FENCE_MAX_S, SHARDS
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

NAMESPACE = UUID("5d1c3e0e-55a4-4b5e-9a55-7b7d2f1f0a31")
PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"


@pytest.fixture
def config(
    servers: list[MariaDB], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A configuration of c1 and c2, of one server each; c1 has been made, and holds cells."""
    monkeypatch.setattr(waiting, "FENCE_MAX_S", BUSY_FENCE_MAX_S)
    names = ["c1", "c2"]
    clusters = [
        {"name": name, "nodes": [{"name": f"{name}-a", "url": server.url}]}
        for name, server in zip(names, servers, strict=False)
    ]
    path = tmp_path / "cellfeed.yaml"
    told: dict[str, Any] = {
        "datastore": {"name": "trips", "shards": SHARDS, "clusters": clusters[:1]}
    }
    path.write_text(yaml.safe_dump(told))
    run("cluster init", path)
    with Datastore(open_clusters(load_config(path).datastore)) as datastore:
        datastore.put_new_cells(
            [new_cell(uuid5(NAMESPACE, str(n)), "BASE", 1, {"n": n}) for n in range(200)]
        )
    told["datastore"]["clusters"] = clusters
    path.write_text(yaml.safe_dump(told))
    yield path
    clear_failpoints()
    for server in servers:
        server.sql("SET GLOBAL read_only = 0")
        drop_all_databases(server)
        server.sql("RESET MASTER")


def run(words: str, config: Path, *, code: int = 0) -> str:
    done = CliRunner().invoke(
        command_line(words.split()[0]), [*shlex.split(words), "--config", str(config)]
    )
    if isinstance(done.exception, FailpointReached):
        raise done.exception
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.output


def held(config: Path) -> dict[str, list[int]]:
    lines = [json.loads(line) for line in run("shard list --json", config).splitlines()]
    return {line["cluster"]: line["shards"] for line in lines}


def commands() -> list[str]:
    """Those of the page's section, in its order, without the configuration."""
    section = PAGE.read_text().split("## More clusters at run time")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [
        " ".join(words[1 : words.index("--config")] + words[words.index("--config") + 2 :])
        for words in lines
    ]


def test_the_commands_of_the_guide_add_a_cluster_fill_it_and_drain_the_other(config: Path) -> None:
    wanted = commands()
    assert len(wanted) == 10
    for words in wanted[:3]:
        run(words, config)
    assert held(config) == {"c1": [0, 1, 2, 3], "c2": []}
    for words in wanted[3:6]:
        run(words, config)
    assert held(config) == {"c1": [0, 1], "c2": [2, 3]}
    assert [
        json.loads(line)["stage"] for line in run("shard moves --json", config).splitlines()
    ] == ["kept", "kept"]
    run(wanted[6], config)
    assert run("shard moves", config) == "no move is under way, and nothing is kept of one\n"
    run(wanted[7], config)
    assert held(config) == {"c1": [], "c2": [0, 1, 2, 3]}
    with closing(open_clusters(load_config(config).datastore)) as engine:
        assert sum(head.next_added_id for head in engine.heads().values()) == 200
    # A move back that is cut off: gone on with; another one, taken back.
    set_failpoint("move.after_fence", "raise")
    with pytest.raises(FailpointReached):
        run("shard move --shard 3 --to c1", config)
    clear_failpoints()
    run(wanted[8], config)
    assert held(config)["c1"] == [3]
    set_failpoint("move.after_fence", "raise")
    with pytest.raises(FailpointReached):
        run("shard move --shard 3 --to c2", config)
    clear_failpoints()
    assert "fenced" in run("shard moves", config)
    run(wanted[9], config)
    assert held(config)["c1"] == [3]


def test_a_shard_that_a_dead_mover_left_is_served_again_where_a_worker_or_a_failover_process_runs(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healer, "HEAL_AFTER_S", 0.5)
    run("cluster init", config)
    set_failpoint("move.after_fence", "raise")
    with pytest.raises(FailpointReached):
        run("shard move --shard 3 --to c2", config)
    clear_failpoints()
    assert held(config) == {"c1": [0, 1, 2], "c2": []}
    with moves_healed(load_config(config), threading.Event()):
        wait_until(lambda: held(config) == {"c1": [0, 1, 2, 3], "c2": []}, "it is served again")
    run("shard resume", config)
    assert held(config) == {"c1": [0, 1, 2], "c2": [3]}


def test_a_row_is_erased_although_a_dead_mover_has_left_a_copy_of_its_shard(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "MOVE_WAIT_S", 0.1)
    run("cluster init", config)
    set_failpoint("move.before_fence", "raise")
    with pytest.raises(FailpointReached):
        run("shard move --shard 3 --to c2", config)
    clear_failpoints()
    assert "copying" in run("shard moves", config)
    row_key = next(
        key for n in range(200) if shard_of((key := uuid5(NAMESPACE, str(n))).bytes, SHARDS) == 3
    )
    with Datastore(open_clusters(load_config(config).datastore)) as datastore:
        assert datastore.erase_row(row_key).cells == 1
    assert run("shard moves", config) == "no move is under way, and nothing is kept of one\n"
    run("shard move --shard 3 --to c2", config)
    assert held(config) == {"c1": [0, 1, 2], "c2": [3]}


def test_a_new_cluster_that_comes_first_is_refused_for_the_first_one_keeps_the_state(
    config: Path,
) -> None:
    told = yaml.safe_load(config.read_text())
    told["datastore"]["clusters"].reverse()
    config.write_text(yaml.safe_dump(told))
    done = CliRunner().invoke(command_line("cluster"), ["cluster", "init", "--config", str(config)])
    assert "added at the end of datastore.clusters" in str(done.exception)


def test_a_move_that_is_not_possible_is_refused_with_the_reason(config: Path) -> None:
    run("cluster init", config)
    for words, says in (
        ("shard move --shard 3 --to c9", "no cluster 'c9'"),
        ("shard move --shard 9 --to c2", "9"),
        ("shard move --shard x --to c2", "is not of the form 3,8-15"),
        ("shard rollback --shard 1", "no move of shard 1 is under way"),
        ("rebalance --drain c1 --drain c2", "one must be left"),
    ):
        done = CliRunner().invoke(
            command_line(words.split()[0]), [*shlex.split(words), "--config", str(config)]
        )
        assert says in str(done.exception), words
    config.write_text("datastore: {shards: 4}")
    done = CliRunner().invoke(command_line("shard"), ["shard", "list", "--config", str(config)])
    assert "has no clusters" in str(done.exception)
