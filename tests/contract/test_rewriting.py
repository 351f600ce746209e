"""E27 on both engines: stored bodies get another encoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.cells.body_codec import (
    CODEC_ERASED,
    CODEC_JSON_ZSTD,
    CODEC_MSGPACK_ZLIB,
    decode_body,
)
from cellfeed.store.cells.body_encoding import encode_body, encode_with
from cellfeed.store.cells.known_dictionaries import KnownDictionary
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.contract.rewritable import RewritableEngine
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import StorageUnavailable
from tests.support.backups_made import trained_dictionary
from tests.support.local_mysql import EMPTY
from tests.support.mariadb_cluster import SHARDS, cells_of_shard


@pytest.fixture(params=["sqlite", "mysql", "mysql server"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RewritableEngine]:
    opened: RewritableEngine
    if request.param == "sqlite":
        opened = SqliteEngine(tmp_path, "trips", SHARDS)
    else:
        server = MySqlServer(request.getfixturevalue(EMPTY[request.param]).address)
        opened = MySqlEngine(server, "trips", SHARDS, create=True)
    with closing(opened):
        yield opened


def test_e27_rewriting_changes_the_encoding_of_bodies_and_no_other_field(
    engine: RewritableEngine,
) -> None:
    cells = cells_of_shard(1, 0, 6)
    assert all(result.acknowledged for result in engine.put(cells))
    erased = engine.scan(1, 2, 1)[0]
    engine.erase(erased.row_key)
    before = engine.scan(1, 0, 100)
    heads = engine.heads()
    assert engine.settle_puts(1) == 7
    prefix = bytes([CODEC_JSON_ZSTD])
    assert sum(engine.bodies_with(prefix).values()) == 5
    named = engine.bodies_named(1, prefix, 0, 4)
    assert ([cell.added_id for cell in named.cells], named.next_location) == ([0, 1, 3], 4)
    assert engine.bodies_named(1, prefix, 7, 4) == ([], None)
    wanted = [*named.cells, erased]
    encoded = [(cell, encode_body(decode_body(cell.body), CODEC_MSGPACK_ZLIB)) for cell in wanted]
    assert engine.replace_bodies(1, encoded) == 3, "the body that was erased since stays erased"
    assert engine.replace_bodies(1, encoded) == 0
    after = engine.scan(1, 0, 100)
    assert [cell[:5] for cell in after] == [cell[:5] for cell in before]
    assert [decode_body(cell.body) for cell in after] == [decode_body(cell.body) for cell in before]
    assert [cell.body[0] for cell in after] == [1, 1, CODEC_ERASED, 1, 2, 2, CODEC_ERASED]
    assert engine.heads() == heads
    assert [result.outcome for result in engine.put([cells[0], cells[5]])] == [Outcome.EXISTS] * 2


def test_e27_a_search_skips_trimmed_cells_and_continues_where_no_body_matches(
    engine: RewritableEngine,
) -> None:
    engine.put(cells_of_shard(1, 0, 6))
    absent, there = bytes([CODEC_MSGPACK_ZLIB]), bytes([CODEC_JSON_ZSTD])
    assert engine.bodies_named(1, absent, 0, 4) == ([], 4)
    assert engine.bodies_named(1, absent, 4, 4) == ([], 6)
    engine.trim(1, 3)
    found = engine.bodies_named(1, there, 0, 2)
    assert ([cell.added_id for cell in found.cells], found.next_location) == ([3, 4], 5)


def test_e27_no_body_is_stored_with_a_dictionary_that_was_retired_meanwhile(
    engine: RewritableEngine,
) -> None:
    """Its content goes next, and nobody could read the body."""
    dictionary = trained_dictionary()
    engine.put(cells_of_shard(1, 0, 2))
    before = engine.scan(1, 0, 2)
    bodies = encode_with(KnownDictionary(dictionary), [decode_body(cell.body) for cell in before])
    encoded = list(zip(before, bodies, strict=True))
    engine.dictionaries.add(dictionary)
    engine.dictionaries.use(dictionary, 0)
    engine.dictionaries.stop_using(dictionary.dictionary_id)
    with pytest.raises(StorageUnavailable, match="was retired meanwhile"):
        engine.replace_bodies(1, encoded)
    assert engine.scan(1, 0, 2) == before
    engine.dictionaries.use(dictionary, 1)
    assert engine.replace_bodies(1, encoded) == 2
