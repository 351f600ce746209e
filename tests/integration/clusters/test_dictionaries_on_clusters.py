"""Dictionaries over two real clusters: everywhere before the first use, and there after kills,
promotions, copies and losses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from cellfeed.store.cells.body_codec import (
    CODEC_JSON_DICTIONARY,
    CODEC_JSON_ZSTD,
    decode_body,
    forget_dictionaries,
)
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving import confirmed_dictionaries as clustered
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.engines.contract import dictionaries_of_puts as dictionary_contract
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.errors import DataDamaged, DictionaryLost, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support import local_mariadb
from tests.support.cli_instance import cellfeed
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, bare_servers
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("no_other_stores"),
]

FIRST = train("BASE", [Sample(cell.row_key, cell.body_json) for cell in rides(0, 600)]).dictionary


@pytest.fixture(scope="module")
def four_servers() -> Iterator[list[MariaDB]]:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with bare_servers(4) as started:
        yield started


@pytest.fixture
def pair(
    four_servers: list[MariaDB], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[TestCluster, TestCluster]]:
    """A cluster of three nodes and one of a single node, with half of the shards each."""
    monkeypatch.setattr(dictionary_contract, "REFRESH_S", 0.0)
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    made = []
    for name, nodes in (
        ("c1", dict(zip("abc", four_servers, strict=False))),
        ("c2", {"d": four_servers[3]}),
    ):
        admin = ClusterServers(
            name,
            DATASTORE,
            SHARDS,
            {node: MySqlServer(server.url) for node, server in nodes.items()},
            semi_sync=len(nodes) > 1,
        )
        init_cluster(admin, divided)
        made.append(TestCluster(name, nodes, admin))
    yield made[0], made[1]
    for each in made:
        each.admin.close()
        each.bare()


Pair = tuple[TestCluster, TestCluster]


def open_engine(pair: Pair) -> ClusteredEngine:
    """As in a process that has just begun."""
    forget_dictionaries()
    return ClusteredEngine(DATASTORE, SHARDS, {each.name: each.openers() for each in pair})


def table(pair: Pair, node: str) -> MySqlDictionaries:
    server = next(each.admin.servers[node] for each in pair if node in each.servers)
    return MySqlDictionaries(server, "trips_meta")


def nodes_with(pair: Pair, wanted: Dictionary = FIRST) -> str:
    """The nodes that have the content, and behind a slash those where it is in use."""
    names = [node for each in pair for node in each.servers]
    found = [name for name in names if table(pair, name).find(wanted.dictionary_id) == wanted]
    using = [name for name in names if wanted.column_name in table(pair, name).current()]
    return f"{''.join(found)}/{''.join(using)}"


def put(engine: ClusteredEngine, cells: list[NewCell]) -> None:
    assert [str(result.error) for result in engine.put(cells) if not result.acknowledged] == []


def shown(engine: ClusteredEngine) -> list[tuple[int, bytes]]:
    engine.heads()  # a scan from the start is content with the cells shown before
    return sorted(
        (cell.body[0], decode_body(cell.body))
        for shard in range(SHARDS)
        for cell in engine.scan(shard, 0, 10_000)
    )


def bodies(engine: ClusteredEngine) -> list[bytes]:
    return sorted(body for _, body in shown(engine))


def of(cells: list[NewCell]) -> list[bytes]:
    return sorted(cell.body_json for cell in cells)


def sql_here_only(server: MariaDB, statement: str) -> None:
    """A loss that no other node hears of."""
    with closing(MySqlServer(server.url)) as connections, connections.connection() as connection:
        connection.query("SET SESSION sql_log_bin = 0")
        connection.query(statement)


def test_a_dictionary_is_on_every_node_before_its_first_body_and_every_process_reads_that_body(
    pair: Pair,
) -> None:
    with closing(open_engine(pair)) as engine, closing(open_engine(pair)) as reader:
        put(engine, rides(0, 40))
        engine.dictionaries.add(FIRST)
        content, _, in_use = nodes_with(pair).partition("/")
        assert {"a", "d"} < set(content)  # and a minion
        assert not in_use
        assert engine.dictionaries.use(FIRST, 0)
        put(engine, rides(40, 40))
        wait_until(lambda: len(shown(reader)) == 80, "all cells are shown")
        wait_until(lambda: nodes_with(pair) == "abcd/abcd", "both minions have followed")
        forget_dictionaries()
        assert bodies(reader) == of(rides(0, 80))
        assert {codec for codec, _ in shown(reader)} == {CODEC_JSON_ZSTD, CODEC_JSON_DICTIONARY}


def test_kill_9_of_the_master_right_after_the_first_use_and_a_promotion_keep_dictionary_and_bodies(
    pair: Pair,
) -> None:
    first, _ = pair
    with closing(open_engine(pair)) as engine:
        publish(engine.dictionaries, FIRST, 0)
        put(engine, rides(0, 60))
        first.servers["a"].kill()
        done = promote(first.admin)
        assert done.master in "bc"
        assert table(pair, done.master).find(FIRST.dictionary_id) == FIRST
        forget_dictionaries()
        wait_until(
            lambda: (
                cluster_role(first.admin)[0].master == done.master
                and engine.clusters["c1"].role().master == done.master
            ),
            "heard of it",
        )
        assert bodies(engine) == of(rides(0, 60))
        wait_until(
            lambda: all(result.acknowledged for result in engine.put(rides(60, 60))),
            "puts work",
        )
        wait_until(lambda: len(shown(engine)) == 120, "all cells are shown")
        assert bodies(engine) == of(rides(0, 120))
    # The old master returns as a copy: with the dictionaries.
    first.servers["a"].start()
    clone(first.admin, "a")
    assert table(pair, "a").find(FIRST.dictionary_id) == FIRST


def test_a_dictionary_is_not_used_before_a_minion_has_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustered, "CONFIRM_TIMEOUT_S", 0.3)
    first, _ = pair
    first.servers["a"].sql("SET GLOBAL rpl_semi_sync_master_enabled = 0")
    for minion in "bc":
        first.servers[minion].sql("STOP SLAVE SQL_THREAD")
    with closing(open_engine(pair)) as engine:
        with pytest.raises(StorageUnavailable, match=f"no minion has dictionary {FIRST.name}"):
            publish(engine.dictionaries, FIRST, 0)
        assert nodes_with(pair) == "ad/"
        for minion in "bc":
            first.servers[minion].sql("START SLAVE")
        wait_until(lambda: nodes_with(pair) == "abcd/", "the minions follow")
        assert publish(engine.dictionaries, FIRST, 0)


def test_a_death_between_two_clusters_is_completed_by_the_next_process(pair: Pair) -> None:
    """Where it dies, on which nodes that leaves content and turn, and on which they are when
    another process has completed it."""
    steps = [
        ("mysql.dictionary.before_add", "/", "/"),
        ("cluster.dictionary.between_contents", "abc/", "abcd/"),
        ("cluster.dictionary.before_turns", "abcd/", "abcd/"),
        ("cluster.dictionary.between_turns", "abcd/abc", "abcd/abcd"),
        ("dictionary.after_use", "abcd/abcd", "abcd/abcd"),
    ]
    for number, (point, left, completed) in enumerate(steps):
        column, cells = f"COLUMN{number}", 80 * number
        dictionary = train(
            column, [Sample(cell.row_key, cell.body_json) for cell in rides(500 * number, 500)]
        ).dictionary
        with closing(open_engine(pair)) as engine:
            set_failpoint(point, "raise")
            with pytest.raises(FailpointReached):
                publish(engine.dictionaries, dictionary, 0)
            clear_failpoints()
            put(engine, rides(0, 40, column))
        wait_until(lambda: nodes_with(pair, dictionary) == left, f"{point} leaves {left}")  # noqa: B023 - called here and now
        with closing(open_engine(pair)) as engine:
            wait_until(lambda: len(shown(engine)) == cells + 40, "all cells are shown")  # noqa: B023 - as above
            engine.dictionaries.complete()
            wait_until(
                lambda: nodes_with(pair, dictionary) == completed,  # noqa: B023
                f"{point}: completed to {completed}",
            )
            engine.dictionaries.complete()
            if column not in engine.dictionaries.current():
                assert publish(engine.dictionaries, dictionary, 0)
            put(engine, rides(40, 40, column))
            wait_until(lambda: len(shown(engine)) == cells + 80, "all cells are shown")  # noqa: B023 - as above
            assert bodies(engine) == sorted(of(rides(0, 80)) * (number + 1))


def config(pair: Pair, directory: Path) -> str:
    clusters = [
        {
            "name": each.name,
            "nodes": [{"name": n, "url": s.url} for n, s in each.servers.items()],
            "semi_sync": False,
        }
        for each in pair
    ]
    file = directory / "cellfeed.yaml"
    file.write_text(
        yaml.safe_dump({"datastore": {"name": DATASTORE, "shards": SHARDS, "clusters": clusters}})
    )
    return str(file)


def test_a_master_that_has_lost_one_is_refused_by_name_and_recovers_it_from_the_other_cluster(
    pair: Pair, tmp_path: Path
) -> None:
    with closing(open_engine(pair)) as engine:
        publish(engine.dictionaries, FIRST, 0)
        put(engine, rides(0, 40))
    first, _ = pair
    first.servers["a"].sql("DELETE FROM trips_meta.dictionary")
    wait_until(lambda: nodes_with(pair) == "d/d", "it is gone from the whole cluster")
    with pytest.raises(
        DictionaryLost,
        match=f"cluster c1, node a: .*dictionary {FIRST.name} of column 'BASE' is missing",
    ):
        open_engine(pair)
    file = config(pair, tmp_path)
    listed = cellfeed("dictionary", "list", "--config", file)
    assert listed.returncode == 3
    assert "c1/a: missing" in listed.stdout
    refused = cellfeed("dictionary", "recover", "--from", "c1", "--config", file)
    assert refused.returncode == 3
    recovered = cellfeed("dictionary", "recover", "--from", "c2", "--config", file)
    assert recovered.returncode == 0, recovered.stderr
    assert f"c1/a: {FIRST.name} of column BASE is back, from c2/d" in recovered.stdout
    assert nodes_with(pair) == "abcd/abcd"
    with closing(open_engine(pair)) as engine:
        assert bodies(engine) == of(rides(0, 40))
        put(engine, rides(40, 40))  # replication continues
        wait_until(lambda: len(shown(engine)) == 80, "all cells are shown")


def test_a_minion_that_has_lost_one_takes_no_part_until_it_is_mended(
    pair: Pair, tmp_path: Path
) -> None:
    with closing(open_engine(pair)) as engine:
        publish(engine.dictionaries, FIRST, 0)
        put(engine, rides(0, 40))
    wait_until(lambda: nodes_with(pair) == "abcd/abcd", "the minions follow")
    sql_here_only(pair[0].servers["b"], "DELETE FROM trips_meta.dictionary")
    with closing(open_engine(pair)) as engine:
        [told] = [node for each in engine.status() for node in each.nodes if node.name == "b"]
        assert FIRST.name in str(told.error)
        assert bodies(engine) == of(rides(0, 40))
    assert cellfeed("dictionary", "recover", "--config", config(pair, tmp_path)).returncode == 0
    assert nodes_with(pair) == "abcd/abcd"


def test_a_body_whose_dictionary_is_nowhere_is_an_error_that_names_the_dictionary(
    pair: Pair,
) -> None:
    with closing(open_engine(pair)) as engine:
        publish(engine.dictionaries, FIRST, 0)
        put(engine, rides(0, 40))
        wait_until(lambda: len(shown(engine)) == 40, "all cells are shown")
        for each in pair:
            each.servers[next(iter(each.servers))].sql("DELETE FROM trips_meta.dictionary")
        wait_until(lambda: nodes_with(pair) == "/", "gone everywhere")
        forget_dictionaries()
        with pytest.raises(DataDamaged, match=f"names dictionary {FIRST.name}"):
            bodies(engine)


def test_another_process_reads_bodies_of_a_dictionary_that_it_has_never_loaded(
    pair: Pair, tmp_path: Path
) -> None:
    with closing(open_engine(pair)) as engine:
        publish(engine.dictionaries, FIRST, 0)
        put(engine, rides(0, 40))
        wait_until(lambda: len(shown(engine)) == 40, "all cells are shown")
    program = (
        "import sys; from pathlib import Path; from cellfeed.assembly.datastore import"
        " open_datastore; from cellfeed.instance.config_file import load_config\nwith"
        " open_datastore(load_config(Path(sys.argv[1])), Path()) as store:\n   "
        " print(sum(len(store.get_cells_for_shard(shard).cells) for shard in range(store.shards)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, config(pair, tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout.strip() == "40"
