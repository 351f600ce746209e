"""After an erasure and a scrub no file of a MariaDB server has a byte of the erased bodies: not the
tables (cells, index, buffer, parked cells), not the logs, not the other files of InnoDB."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from cellfeed.assembly.clusters import engine_of
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.cells.cell import NewCell, StoredCell, new_cell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.operating.scrub import scrub_cluster
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from cellfeed.store.indexes.version import IndexVersion
from tests.support import local_mariadb
from tests.support.cli_instance import cellfeed
from tests.support.cluster_steps import checksums, open_engine
from tests.support.local_mariadb import MariaDB
from tests.support.made_of_cells import indexed_and_parked
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, bare_servers, make_cluster
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(300),
]

NAMESPACE = UUID("5d1c3e0e-55a4-4b5e-9a55-7b7d2f1f0a31")
ROWS, ERASED = 90, 30
BODY_BYTES = (20, 150, 1_500, 9_000)
"""As text they are twice as long: within a page, and beside it."""


@pytest.fixture
def pair() -> Iterator[TestCluster]:
    """A master and a minion with small redo logs, which are quick to search."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with bare_servers(2, ("--innodb-log-file-size=8M", "--innodb-log-buffer-size=2M")) as servers:
        made = make_cluster("c1", servers)
        yield made
        made.admin.close()


def written(row: UUID, ref_key: int) -> NewCell:
    """A body that does not compress, and stands nowhere else."""
    chance = random.Random(row.int + ref_key)
    return new_cell(
        row,
        "BASE",
        ref_key,
        {
            "text": chance.randbytes(BODY_BYTES[(row.int + ref_key) % len(BODY_BYTES)]).hex(),
            "secret": secret(row),
        },
    )


def secret(row: UUID) -> str:
    """In each body of a row, and likewise in everything made of them."""
    return random.Random(row.int).randbytes(20).hex()


def made_of_cells(datastore: Datastore, rows: Sequence[UUID]) -> IndexVersion:
    """As :func:`indexed_and_parked`, and copies in the buffer as another cluster's puts leave
    them."""
    buffer = engine_of(datastore).clusters["c1"]
    buffer.write(
        lambda node, role: node.buffer.add("c2", [written(row, 9) for row in rows], role.terms)
    )
    version, _ = indexed_and_parked(datastore, {row: secret(row) for row in rows})
    return version


def found_in(server: MariaDB, needles: Sequence[bytes]) -> dict[str, int]:
    """By file of the data directory, how many of these bytes stand in it."""
    data = server.directory / "data"
    counts = {}
    for path in data.rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue  # a file of the server's own that went meanwhile
        if count := sum(needle in content for needle in needles):
            counts[str(path.relative_to(data))] = count
    return counts


def flushed(server: MariaDB) -> None:
    """Puts every page that was changed into its file, as it happens in time."""
    server.sql("SET GLOBAL innodb_max_dirty_pages_pct = 0")
    wait_until(
        lambda: server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")[0][1] == "0",
        "all pages are in their files",
    )
    server.sql("SET GLOBAL innodb_max_dirty_pages_pct = 90")


def others(
    engine: ClusteredEngine, erased: Sequence[UUID], ends: dict[int, int]
) -> list[StoredCell]:
    gone = {row.bytes for row in erased}
    return [
        cell
        for shard, end in ends.items()
        for cell in engine.scan(shard, 0, end)
        if cell.row_key not in gone
    ]


def config_of(cluster: TestCluster, directory: Path) -> Path:
    path = directory / "cellfeed.yaml"
    nodes = [{"name": name, "url": server.url} for name, server in cluster.servers.items()]
    path.write_text(
        json.dumps(
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


class Writer(threading.Thread):
    """Puts cells one after the other, until it is asked to stop."""

    def __init__(self, engine: ClusteredEngine) -> None:
        super().__init__()
        self._engine = engine
        self._ended = threading.Event()
        self.stored = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                [result] = self._engine.put(
                    [
                        new_cell(
                            uuid5(NAMESPACE, f"later {self.stored}"), "BASE", 1, {"n": self.stored}
                        )
                    ]
                )
                assert result.acknowledged, result
                self.stored += 1
                self._ended.wait(0.01)
        except Exception as error:  # told by the test
            self.error = error

    def stop(self) -> None:
        self._ended.set()
        self.join()


def test_no_file_of_a_server_has_a_byte_of_an_erased_body_and_puts_continue_meanwhile(
    pair: TestCluster, tmp_path: Path
) -> None:
    rows = [uuid5(NAMESPACE, str(number)) for number in range(ROWS)]
    erased = rows[:ERASED]
    with Datastore(engine := open_engine(pair)) as datastore:
        datastore.when_erased(ParkedCells(datastore.state).forget_row)
        for ref_key in range(4):
            engine.put([written(row, ref_key) for row in rows])
        ends = {shard: head.next_added_id for shard, head in engine.heads().items()}
        wait_until(
            lambda: {shard: head.watermark for shard, head in engine.heads().items()} == ends,
            "the minion has all cells",
        )
        # The frame of a body, behind its head.
        needles = [cell.body[14:44] for row in erased[::5] for cell in engine.row_cells(row.bytes)]
        needles += [secret(row).encode() for row in erased[::5]]
        version = made_of_cells(datastore, rows)
        wanted = ",".join(f"X'{row.hex}'" for row in erased[::5])
        needles += [
            bytes(body)[14:44]
            for (body,) in pair.servers["a"].sql(
                f"SELECT body FROM trips_meta.buffered_cell WHERE row_key IN ({wanted})"
            )
        ]
        made = {"trips_meta/buffered_cell.ibd", "trips_meta/state_entry.ibd"}
        before = others(engine, erased, ends)
        for name, server in pair.servers.items():
            wait_until(
                lambda name=name: checksums(pair, name) == checksums(pair, "a"),  # type: ignore[misc]
                f"{name} has all of it",
            )
            flushed(server)
            places = found_in(server, needles)
            assert made <= set(places), "they are in the buffer and in the state"
            assert any(path.endswith(f"/{version.table.name}.ibd") for path in places), (
                "and in the index"
            )
        for row in erased:
            assert datastore.erase_row(row).cells == 4
            engine.clusters["c1"].write(
                lambda node, role, row=row: node.buffer.remove_row("c2", row.bytes, role.terms)  # type: ignore[misc]
            )  # as an erasure on that cluster does
        for server in pair.servers.values():
            flushed(server)
            places = found_in(server, needles)
            shards = {shard_of(row.bytes, SHARDS) for row in erased}
            assert {
                "binlog.000001",
                "ib_logfile0",
                *(f"trips_{shard:04d}/cell.ibd" for shard in shards),
            } <= set(places), "they are there before"
        set_failpoint("mysql.scrub.after_undo", "raise")
        with pytest.raises(FailpointReached):
            scrub_cluster(pair.admin)
        writer = Writer(engine)
        writer.start()
        begun = writer.stored
        try:
            scrubbed = cellfeed(
                "scrub", "--json", "--config", str(config_of(pair, tmp_path)), timeout_s=240
            )
        finally:
            writer.stop()
        assert (writer.error, writer.stored > begun) == (None, True), "puts went on"
        assert [json.loads(line) for line in scrubbed.stdout.splitlines()] == [
            {"cluster": "c1", "node": node, "tables": 2 * SHARDS + 2, "checksums": 0, "left": []}
            for node in ("b", "a")
        ], scrubbed.stderr
        for server in pair.servers.values():
            wait_until(
                lambda server=server: found_in(server, needles) == {},  # type: ignore[misc]
                f"no file of {server.url} has any of it",
            )
            assert ("trips_scrubbing",) not in server.sql("SHOW DATABASES")
        assert others(engine, erased, ends) == before, "every other cell is as before, at its place"
        wait_until(
            lambda: checksums(pair, "a") == checksums(pair, "b"), "the minion follows as before"
        )


def test_a_cluster_with_a_node_away_is_not_scrubbed_and_keeps_its_binary_logs(
    pair: TestCluster, tmp_path: Path
) -> None:
    master, minion = pair.servers["a"], pair.servers["b"]
    logs = master.sql("SHOW BINARY LOGS")
    minion.kill()
    refused = cellfeed("scrub", "--config", str(config_of(pair, tmp_path)))
    assert (refused.returncode, "every node has to be there" in refused.stderr) == (
        1,
        True,
    ), refused.stderr
    assert [name for name, _ in master.sql("SHOW BINARY LOGS")] == [name for name, _ in logs]


def test_cells_of_an_earlier_version_get_a_checksum_on_every_node_unless_they_are_damaged(
    pair: TestCluster,
) -> None:
    engine = open_engine(pair)
    try:
        engine.put([written(uuid5(NAMESPACE, str(n)), 1) for n in range(1_500)])
        tables = [f"trips_{shard:04d}.cell" for shard in range(SHARDS)]
        wait_until(lambda: checksums(pair, "a") == checksums(pair, "b"), "the minion has all")
        wait_until(
            lambda: sum(head.watermark for head in engine.heads().values()) == 1_500,
            "all are shown",
        )
        before = [cell for shard in range(SHARDS) for cell in engine.scan(shard, 0, 2_000)]
        for server in pair.servers.values():
            server.sql(
                "SET SESSION sql_log_bin = 0",
                *(f"UPDATE {table} SET crc = NULL WHERE added_id <> 3" for table in tables),
            )
        pair.servers["b"].sql(
            "SET SESSION sql_log_bin = 0",
            "UPDATE trips_0001.cell SET body = CONCAT(LEFT(body, 9), X'00FF', SUBSTR(body, 12))"
            " WHERE added_id = 7",
        )
        done = {server.node: server for server in scrub_cluster(pair.admin)}
        assert (done["a"].checksums, done["b"].checksums) == (1_500 - SHARDS, 1_500 - SHARDS - 1)
        assert not [line for line in done["a"].left if "damaged" in line]
        assert [
            line
            for line in done["b"].left
            if "trips_0001.cell: 1 damaged cells get no checksum, at added_id 7" in line
        ]
        without = [
            server.sql(
                " UNION ALL ".join(
                    f"SELECT added_id FROM {table} WHERE crc IS NULL" for table in tables
                )
            )
            for server in pair.servers.values()
        ]
        assert sorted(map(list, without)) == [[], [(7,)]]
        assert [cell for shard in range(SHARDS) for cell in engine.scan(shard, 0, 2_000)] == before
    finally:
        engine.close()


def test_a_shard_with_a_trim_and_no_erasure_is_scrubbed(pair: TestCluster) -> None:
    rows = [uuid5(NAMESPACE, str(number)) for number in range(ROWS)]
    engine = open_engine(pair)
    try:
        engine.put([written(row, 1) for row in rows])
        shard = shard_of(rows[0].bytes, SHARDS)
        wait_until(lambda: engine.trim_limits([shard])[shard] > 0, "both nodes have them")
        gone = engine.scan(shard, 0, 1)
        needles = [each.body[14:44] for each in gone]
        for server in pair.servers.values():
            flushed(server)
            assert found_in(server, needles), "it is there before"
        engine.trim(shard, 1)
        done = scrub_cluster(pair.admin)
        assert [(each.tables, each.left) for each in done] == [(3, []), (3, [])]
        for server in pair.servers.values():
            wait_until(
                lambda server=server: found_in(server, needles) == {},  # type: ignore[misc]
                f"no file of {server.url} has any of it",
            )
    finally:
        engine.close()
