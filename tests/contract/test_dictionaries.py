"""Dictionaries in a storage, promise by promise (C1–C4 in store/engines/contract/dictionaries.py),
over SQLite and MariaDB."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.cells.body_codec import (
    CODEC_JSON_DICTIONARY,
    CODEC_JSON_ZSTD,
    CODEC_MSGPACK_ZLIB,
    DEFAULT_CODEC,
    decode_body,
    forget_dictionaries,
)
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.dictionaries import trainer
from cellfeed.store.dictionaries.log_sample import sample_of_log
from cellfeed.store.dictionaries.recovery import Place, recover
from cellfeed.store.dictionaries.trainer import DictionaryTrainer, publish
from cellfeed.store.dictionaries.training import SAMPLES_MIN, Sample, train
from cellfeed.store.engines.contract import dictionaries_of_puts
from cellfeed.store.engines.contract.dictionaries import Condition, DictionaryTable
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.engines.sqlite.tables import SCHEMA_VERSION
from cellfeed.store.errors import DataDamaged, DictionaryLost, ProtectData
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, clear_failpoints, set_failpoint
from tests.support.local_mariadb import MariaDB
from tests.support.local_mysql import EMPTY
from tests.support.rides import rides

pytestmark = pytest.mark.usefixtures("no_other_stores")

SHARDS = 4
FIRST = train("BASE", [Sample(cell.row_key, cell.body_json) for cell in rides(0, 600)]).dictionary
SECOND = train(
    "BASE", [Sample(cell.row_key, cell.body_json) for cell in rides(600, 600)]
).dictionary

AnyEngine = SqliteEngine | MySqlEngine


class Storage:
    """One storage, its engines, and a way around them: a damage to it."""

    def __init__(self, directory: Path, server: MariaDB | None) -> None:
        self._directory, self._server = directory, server
        self._opened: list[AnyEngine | SqliteFile | MySqlServer] = []

    def open(self, codec: int = DEFAULT_CODEC) -> AnyEngine:
        """As another process that has just begun would."""
        forget_dictionaries()
        engine: AnyEngine
        if self._server is None:
            engine = SqliteEngine(self._directory, "trips", SHARDS, codec=codec)
        else:
            engine = MySqlEngine(
                MySqlServer(self._server.address), "trips", SHARDS, create=True, codec=codec
            )
        self._opened.append(engine)
        return engine

    def table(self) -> DictionaryTable:
        """Without an engine, which may be refused."""
        if self._server is None:
            file = SqliteFile(self._directory / CELLS_FILE)
            self._opened.append(file)
            return SqliteDictionaries(file)
        server = MySqlServer(self._server.address)
        self._opened.append(server)
        return MySqlDictionaries(server, "trips_meta")

    def run(self, sql: str) -> None:
        if self._server is None:
            with sqlite3.connect(self._directory / CELLS_FILE) as connection:
                connection.execute(sql)
        else:
            self._server.sql(sql.replace("dictionary", "trips_meta.dictionary", 1))

    def close(self) -> None:
        for each in reversed(self._opened):
            each.close()
        self._opened.clear()


@pytest.fixture(params=["sqlite", "mysql", "mysql server"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Storage]:
    monkeypatch.setattr(dictionaries_of_puts, "REFRESH_S", 0.0)
    made = Storage(
        tmp_path, request.getfixturevalue(EMPTY[request.param]) if request.param in EMPTY else None
    )
    yield made
    made.close()


def bodies(engine: AnyEngine) -> list[bytes]:
    return sorted(
        decode_body(cell.body) for shard in range(SHARDS) for cell in engine.scan(shard, 0, 10_000)
    )


def codecs(engine: AnyEngine) -> set[int]:
    return {cell.body[0] for shard in range(SHARDS) for cell in engine.scan(shard, 0, 10_000)}


def of(cells: list[NewCell]) -> list[bytes]:
    return sorted(cell.body_json for cell in cells)


def test_c1_an_added_dictionary_is_found_by_every_process_and_adding_it_again_changes_nothing(
    storage: Storage,
) -> None:
    engine, other = storage.open(), storage.open()
    assert engine.dictionaries.find(FIRST.dictionary_id) is None
    for _ in range(2):
        engine.dictionaries.add(FIRST)
        assert other.dictionaries.find(FIRST.dictionary_id) == FIRST
        assert (other.dictionaries.count(), other.dictionaries.current()) == (1, {})


def test_c1_a_second_dictionary_content_under_the_same_id_is_refused(storage: Storage) -> None:
    engine = storage.open()
    engine.dictionaries.add(FIRST)
    twin = Dictionary("BASE", SECOND.content, 0, 0)
    twin.__dict__["sha256"] = FIRST.sha256
    with pytest.raises(ProtectData, match=f"another dictionary has the id {FIRST.name}"):
        engine.dictionaries.add(twin)
    assert engine.dictionaries.find(FIRST.dictionary_id) == FIRST


def test_c2_of_two_concurrent_uses_of_one_turn_one_returns_false(storage: Storage) -> None:
    engines = [storage.open() for _ in range(4)]
    told: list[bool] = []

    def take(engine: AnyEngine, dictionary: Dictionary) -> None:
        engine.dictionaries.add(dictionary)
        told.append(engine.dictionaries.use(dictionary, 0))

    threads = [
        threading.Thread(target=take, args=pair)
        for pair in zip(engines, (FIRST, SECOND) * 2, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False, False, False, True]
    assert len({engine.dictionaries.current()["BASE"] for engine in engines}) == 1


def test_c3_puts_take_the_dictionary_of_their_column_once_it_is_in_use(storage: Storage) -> None:
    engine = storage.open()
    engine.put(rides(0, 50))
    engine.dictionaries.add(FIRST)
    engine.put(rides(50, 50))
    assert codecs(engine) == {CODEC_JSON_ZSTD}
    assert publish(engine.dictionaries, FIRST, 0)
    engine.put(rides(100, 50) + rides(0, 50, "STATUS"))
    kinds = {
        (cell.column_name, cell.body[0])
        for shard in range(SHARDS)
        for cell in engine.scan(shard, 0, 10_000)
    }
    assert kinds == {
        ("BASE", CODEC_JSON_ZSTD),
        ("BASE", CODEC_JSON_DICTIONARY),
        ("STATUS", CODEC_JSON_ZSTD),
    }
    assert bodies(engine) == of(rides(0, 150) + rides(0, 50, "STATUS"))


def test_c3_a_column_may_change_its_dictionary_and_every_body_keeps_its_own(
    storage: Storage,
) -> None:
    engine = storage.open()
    for turn, dictionary in enumerate((FIRST, SECOND)):
        assert publish(engine.dictionaries, dictionary, turn)
        engine.put(rides(100 * turn, 100))
    reader = storage.open()
    ids = {cell.body[1:5] for shard in range(SHARDS) for cell in reader.scan(shard, 0, 10_000)}
    assert ids == {FIRST.dictionary_id.to_bytes(4), SECOND.dictionary_id.to_bytes(4)}
    assert bodies(reader) == of(rides(0, 200))
    assert [
        (each.name, each.turns)
        for each in sorted(reader.dictionaries.kept(), key=lambda each: each.turns)
    ] == [(FIRST.name, (0,)), (SECOND.name, (1,))]


def test_c3_a_body_decodes_the_same_from_every_codec(storage: Storage) -> None:
    engine = storage.open(CODEC_MSGPACK_ZLIB)
    publish(engine.dictionaries, FIRST, 0)
    engine.put(rides(0, 20))
    assert codecs(engine) == {CODEC_MSGPACK_ZLIB}
    engine = storage.open()
    assert {result.outcome for result in engine.put(rides(20, 20))} == {Outcome.STORED}
    for each in (engine, storage.open(CODEC_MSGPACK_ZLIB)):
        assert {result.outcome for result in each.put(rides(0, 40))} == {Outcome.EXISTS}
    changed = [cell._replace(body_json=b'{"another":1}') for cell in rides(0, 40)]
    assert {result.outcome for result in engine.put(changed)} == {Outcome.CONFLICT}
    assert codecs(engine) == {CODEC_MSGPACK_ZLIB, CODEC_JSON_DICTIONARY}


def test_c3_a_reader_that_was_open_before_learns_of_it_from_the_store(storage: Storage) -> None:
    reader, writer = storage.open(), storage.open()
    publish(writer.dictionaries, FIRST, 0)
    writer.put(rides(0, 100))
    forget_dictionaries()
    assert bodies(reader) == of(rides(0, 100))


def test_c3_a_dictionary_that_is_lost_meanwhile_is_not_taken_any_more(storage: Storage) -> None:
    engine = storage.open()
    publish(engine.dictionaries, FIRST, 0)
    engine.put(rides(0, 20))
    storage.run("DELETE FROM dictionary")
    engine.put(rides(20, 20))
    assert [cell.body[0] for shard in range(SHARDS) for cell in engine.scan(shard, 0, 1_000)].count(
        CODEC_JSON_DICTIONARY
    ) == 20
    assert bodies(engine) == of(rides(0, 40))  # this process still has it
    forget_dictionaries()
    with pytest.raises(DataDamaged, match=f"names dictionary {FIRST.name}"):
        bodies(engine)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DELETE FROM dictionary", "missing"),
        ("UPDATE dictionary SET content = X'00'", "damaged"),
        (
            (
                f"UPDATE dictionary SET content = X'{SECOND.content.hex()}', sha256 ="
                f" X'{SECOND.sha256.hex()}'"
            ),
            "damaged",
        ),
    ],
    ids=["missing", "damaged", "another"],
)
def test_c4_a_lost_dictionary_is_named_at_the_start_and_restored_from_a_copy(
    storage: Storage, damage: str, told: str
) -> None:
    engine = storage.open()
    publish(engine.dictionaries, FIRST, 0)
    engine.put(rides(0, 60))
    storage.close()
    storage.run(damage)
    with pytest.raises(
        DictionaryLost,
        match=f"dictionary {FIRST.name} of column 'BASE' is {told}.*cellfeed dictionary recover",
    ):
        storage.open()
    place = Place("c1", "a", storage.table())
    assert [each.condition for each in place.table.kept() if each.turns] == [Condition(told)]
    for useless in ([], [SECOND]):
        with pytest.raises(
            DictionaryLost,
            match=f"dictionary {FIRST.name} of column 'BASE' on c1/a is whole nowhere",
        ):
            recover([place], useless)
    assert [(each.name, each.source) for each in recover([place], [SECOND, FIRST])] == [
        (FIRST.name, "the file")
    ]
    assert recover([place], [FIRST]) == []
    assert bodies(storage.open()) == of(rides(0, 60))


def test_c4_missing_dictionary_tables_are_refused_and_not_made_again(storage: Storage) -> None:
    publish(storage.open().dictionaries, FIRST, 0)
    storage.close()
    storage.run("DROP TABLE dictionary")
    for _ in range(2):
        with pytest.raises(DictionaryLost, match="the tables of dictionaries cannot be read"):
            storage.open()


def test_c4_a_content_that_was_never_in_use_keeps_nobody_from_starting(storage: Storage) -> None:
    storage.open().dictionaries.add(FIRST)
    storage.close()
    storage.run("UPDATE dictionary SET content = X'00'")
    assert storage.open().dictionaries.find(FIRST.dictionary_id) is None


def test_a_death_at_any_step_loses_no_dictionary_and_the_next_process_continues(
    storage: Storage, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "SAMPLES_WANTED", SAMPLES_MIN)
    kind = request.node.callspec.params["storage"].removesuffix(" server")
    points = sorted(
        name
        for name in FAILPOINTS
        if name.startswith(("dictionary.", f"{kind}.dictionary."))
        and not name.startswith("dictionary.retire.")
    )
    assert len(points) == 7
    written: list[NewCell] = []
    for number, point in enumerate(points):
        column = f"COLUMN{number}"
        engine = storage.open()
        cells = rides(number * SAMPLES_MIN, SAMPLES_MIN, column)
        results = engine.put(cells)
        written += cells
        at_work = DictionaryTrainer(engine.dictionaries)
        at_work.offer(cells, results)
        set_failpoint(point, "raise")
        with pytest.raises(FailpointReached):
            at_work.work()
        clear_failpoints()
        storage.close()
        engine = storage.open()
        assert bodies(engine) == of(written)
        at_work = DictionaryTrainer(engine.dictionaries)
        at_work.offer(cells, results)
        at_work.work()
        after = rides(100_000 + number, 1, column)
        engine.put(after)
        written += after
        storage.close()
        engine = storage.open()
        assert column in engine.dictionaries.current()
        assert bodies(engine) == of(written)
        storage.close()


def test_cells_that_are_buffered_for_another_cluster_need_no_dictionary(
    empty_mariadb: MariaDB, tmp_path: Path
) -> None:
    with closing(Storage(tmp_path, empty_mariadb)) as storage:
        engine = storage.open()
        assert isinstance(engine, MySqlEngine)
        publish(engine.dictionaries, FIRST, 0)
        engine.buffer.add("c2", rides(0, 20))
        assert {
            codec
            for (codec,) in empty_mariadb.sql(
                "SELECT HEX(LEFT(body, 1)) FROM trips_meta.buffered_cell"
            )
        } == {"02"}
        assert sorted(
            each.cell.body_json for each in engine.buffer.waiting("c2", 0, 100, 0.0)
        ) == of(rides(0, 20))


def test_the_sample_of_a_log_is_the_first_cells_of_its_column(storage: Storage) -> None:
    engine = storage.open()
    engine.put(rides(0, 300) + rides(0, 300, "STATUS"))
    assert sorted(sample.body_json for sample in sample_of_log(engine, "STATUS")) == of(
        rides(0, 300)
    )
    assert sample_of_log(engine, "NOTE") == []


def test_a_file_of_the_version_before_gets_the_tables_when_it_is_opened(tmp_path: Path) -> None:
    old = Storage(tmp_path, None)
    old.open().put(rides(0, 20))
    old.close()
    for statement in (
        "DROP TABLE dictionary",
        "DROP TABLE dictionary_turn",
        "ALTER TABLE shard_counter DROP COLUMN erasures",
        "UPDATE datastore SET schema_version = 1",
    ):
        old.run(statement)
    engine = old.open()
    publish(engine.dictionaries, FIRST, 0)
    old.close()
    engine = old.open()
    engine.put(rides(20, 20))
    assert bodies(engine) == of(rides(0, 40))
    assert codecs(engine) == {CODEC_JSON_ZSTD, CODEC_JSON_DICTIONARY}
    old.close()
    old.run(f"UPDATE datastore SET schema_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(ProtectData, match=f"schema version {SCHEMA_VERSION + 1}"):
        old.open()
