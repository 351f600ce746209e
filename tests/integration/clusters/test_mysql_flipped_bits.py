"""Flipped bits in the files of a MariaDB server's tables: each answer is right or names the damage,
the other shards are read, and a check finds it."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

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
