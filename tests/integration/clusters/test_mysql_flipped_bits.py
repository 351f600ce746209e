"""Flipped bits in the files of a MariaDB server's tables: each answer is right or names the damage,
the other shards are read, and a check finds it."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from crc32c import crc32c

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.integrity import check_node
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.errors import DataDamaged
from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import bare_servers
from tests.support.rides import rides

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SHARDS = 2
CELLS = rides(0, 400)
PAGE_BYTES = 16_384
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@pytest.fixture
def server() -> Iterator[MariaDB]:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with bare_servers(1) as [made]:
        with closing(MySqlEngine(MySqlServer(made.url), "trips", SHARDS, create=True)) as engine:
            engine.put(CELLS)
        made.sql("SET GLOBAL innodb_fast_shutdown = 0")
        yield made


def pages(data: bytes) -> list[int]:
    """Those that hold something."""
    return [
        page
        for page in range(len(data) // PAGE_BYTES)
        if any(data[page * PAGE_BYTES + 38 : (page + 1) * PAGE_BYTES - 100])
    ]


def test_a_flipped_bit_of_a_page_is_named_by_every_read_that_meets_it_and_by_a_check(
    server: MariaDB,
) -> None:
    with closing(MySqlEngine(MySqlServer(server.url), "trips", SHARDS)) as engine:
        logs = [engine.scan(shard, 0, 10_000) for shard in range(SHARDS)]
    path = server.directory / "data" / "trips_0000" / "cell.ibd"
    server.stop()
    whole, chance, refused = path.read_bytes(), random.Random(21), 0
    for page in pages(whole):
        if page in (1, 2):
            continue  # bitmaps and inodes of the file: the server ends where they are wrong
        bit = page * PAGE_BYTES * 8 + chance.randrange(PAGE_BYTES * 8)
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        server.start()
        with closing(MySqlEngine(MySqlServer(server.url), "trips", SHARDS)) as engine:
            asked: list[tuple[Callable[[], object], object]] = [
                (lambda: engine.scan(0, 0, 10_000), logs[0]),
                (
                    lambda: [
                        found and found.cell.row_key
                        for found in engine.get([cell.triple for cell in CELLS])
                    ],
                    [cell.row_key for cell in CELLS],
                ),
            ]
            for ask, right in asked:
                try:
                    assert ask() == right, f"page {page}"
                except DataDamaged:
                    refused += 1
            assert engine.scan(1, 0, 10_000) == logs[1], "the other shard is well"
        found = Findings()
        check_node("c1/a", MySqlServer(server.url), Layout("trips", SHARDS), found)
        assert found.found, f"a check finds nothing of page {page}"
        assert {each.shard for each in found.found if each.shard is not None} <= {0}
        server.stop()
        path.write_bytes(whole)
    assert refused > 3, "the flips hit nothing"


@pytest.mark.parametrize("byte", [0, 14, 17, 24], ids=["row key", "its end", "column", "ref key"])
def test_a_cell_whose_own_key_is_damaged_is_not_absent(server: MariaDB, byte: int) -> None:
    """The page's checksum fits again, as where a page was damaged before it was written."""
    [cell] = [each for each in CELLS if shard_of(each.row_key, SHARDS) == 0][:1]
    path = server.directory / "data" / "trips_0000" / "cell.ibd"
    server.stop()
    data = bytearray(path.read_bytes())
    places = [found.start() for found in re.finditer(re.escape(cell.row_key), data)]
    [at] = [each for each in places if ZSTD_MAGIC in data[each + 28 : each + 36]]
    data[at + byte] ^= 1
    page = at // PAGE_BYTES * PAGE_BYTES
    end = page + PAGE_BYTES
    data[end - 4 : end] = crc32c(bytes(data[page : end - 4])).to_bytes(4)
    path.write_bytes(data)
    server.start()
    with closing(MySqlEngine(MySqlServer(server.url), "trips", SHARDS)) as engine:
        reads: list[Callable[[], object]] = [
            lambda: engine.get([cell.triple]),
            lambda: engine.latest([(cell.row_key, cell.column_name)]),
            lambda: engine.row([cell.row_key]),
            lambda: engine.row_cells(cell.row_key),
            lambda: engine.indexes.current({0: [cell.row_key]}, None),
        ]
        for read in reads:
            with pytest.raises(DataDamaged, match="of shard 0 is damaged"):
                read()
        [result] = engine.put([cell])
        assert (result.outcome, type(result.error)) == (Outcome.FAILED, DataDamaged)


def test_a_lost_file_of_a_table_is_damage_and_no_move(server: MariaDB) -> None:
    path: Path = server.directory / "data" / "trips_0000" / "cell.ibd"
    server.stop()
    path.rename(path.with_suffix(".away"))
    server.start()
    with (
        closing(MySqlEngine(MySqlServer(server.url), "trips", SHARDS)) as engine,
        pytest.raises(DataDamaged),
    ):
        engine.scan(0, 0, 10)


def test_a_check_of_large_bodies_names_no_gap() -> None:
    """An answer of MariaDB holds as many of them as come to 8 MiB."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    chance = random.Random(3)
    large = [
        cell._replace(body_json=b'{"a":"' + base64.b64encode(chance.randbytes(90_000)) + b'"}')
        for cell in rides(0, 150)
    ]
    with bare_servers(1) as [made]:
        with closing(MySqlEngine(MySqlServer(made.url), "trips", 1, create=True)) as engine:
            engine.put(large)
        check_node("c1/a", MySqlServer(made.url), Layout("trips", 1), found := Findings())
    assert (found.found, found.cells) == ([], 150)
