"""C3 on both engines: the puts of a process take the dictionary that it puts to use, at once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.engines.contract import dictionaries_of_puts
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from tests.support.rides import rides

SHARDS = 4


@pytest.mark.parametrize("kind", ["sqlite", "mysql"])
def test_c3_puts_take_the_dictionary_that_their_process_puts_to_use_at_once(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionaries_of_puts, "REFRESH_S", 3_600.0)
    if kind == "mysql":
        server = MySqlServer(request.getfixturevalue("empty_mariadb").url)
        made: MySqlEngine | SqliteEngine = MySqlEngine(server, "trips", SHARDS, create=True)
    else:
        made = SqliteEngine(tmp_path, "trips", SHARDS)
    trained = train("BASE", [Sample(cell.row_key, cell.body_json) for cell in rides(0, 600)])

    def codecs() -> set[int]:
        return {cell.body[0] for shard in range(SHARDS) for cell in made.scan(shard, 0, 1_000)}

    with closing(made):
        made.dictionaries.add(trained.dictionary)
        made.put(rides(600, 10))
        assert codecs() == {2}
        assert made.dictionaries.use(trained.dictionary, 0)
        made.put(rides(610, 10))
        assert codecs() == {2, 3}
