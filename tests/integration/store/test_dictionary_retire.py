"""A dictionary with names in it is retired: its bodies come back as they were, and no file has the
names any more."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.cli.main import main
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.body_codec import CODEC_JSON_DICTIONARY, forget_dictionaries
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.retiring import retire
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.scrub import scrub_files
from cellfeed.store.errors import NotFound
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from tests.support.rides import ride, row_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("no_other_stores"),
]

NAME = "Jane D. Roe of 7 Harbour Street"
BODIES = 900
SHARDS = 4


def body_of(number: int) -> dict[str, object]:
    return {
        **json.loads(ride(number).body_json),
        "driver": NAME if number == 3 else f"driver {number}",
    }


def planted() -> Dictionary:
    """The dictionary that an older program trained: the name is in it."""
    samples = [
        json.dumps(
            body_of(number) | {"driver": NAME}, separators=(",", ":"), sort_keys=True
        ).encode()
        for number in range(BODIES)
    ]
    content = zstandard.train_dictionary(
        8_192, list[bytes | bytearray | memoryview](samples), level=3
    ).as_bytes()
    assert NAME.encode() in content
    return Dictionary("BASE", content, 1, BODIES)


def engine_of(datastore: Datastore) -> SqliteEngine:
    assert isinstance(datastore.engine, SqliteEngine)
    return datastore.engine


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as opened:
        publish(opened.engine.dictionaries, planted(), 0)
        opened.put_cells([(row_of(number), "BASE", 1, body_of(number)) for number in range(BODIES)])
        yield opened


def named(datastore: Datastore, dictionary: Dictionary) -> int:
    prefix = bytes([CODEC_JSON_DICTIONARY]) + dictionary.dictionary_id.to_bytes(4)
    return sum(engine_of(datastore).bodies_with(prefix).values())


def all_there(datastore: Datastore, count: int = BODIES) -> None:
    forget_dictionaries()
    for number in range(count):
        cell = datastore.get_cell(row_of(number), "BASE", 1)
        assert cell is not None
        assert cell.body == body_of(number)


def has_name(directory: Path) -> list[str]:
    return [
        path.name
        for path in directory.rglob("*")
        if path.is_file() and b"Harbour Street" in path.read_bytes()
    ]


def test_a_retired_dictionary_is_in_no_file_and_every_body_stays_as_it_was(
    datastore: Datastore, tmp_path: Path
) -> None:
    old = planted()
    assert named(datastore, old) == BODIES
    datastore.erase_row(row_of(3))
    told = retire(engine_of(datastore), old.dictionary_id, readers_s=0)
    assert (told.rewritten, bool(told.replacement)) == (BODIES - 1, True)
    assert (named(datastore, old), datastore.engine.dictionaries.find(old.dictionary_id)) == (
        0,
        None,
    )
    assert datastore.get_cell(row_of(3), "BASE", 1) is None
    with pytest.raises(NotFound):
        retire(engine_of(datastore), old.dictionary_id, readers_s=0)
    datastore.close()
    scrub_files(tmp_path / "trips")
    assert has_name(tmp_path) == []
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as again:
        forget_dictionaries()
        assert all(
            again.get_cell(row_of(number), "BASE", 1) is not None
            for number in range(BODIES)
            if number != 3
        )


@pytest.mark.parametrize("where", ["trained", "stopped", "rewritten", "searched", "removed"])
def test_a_retirement_that_was_killed_continues(datastore: Datastore, where: str) -> None:
    old = planted()
    set_failpoint(f"dictionary.retire.{where}", "raise")
    with pytest.raises(FailpointReached):
        retire(engine_of(datastore), old.dictionary_id, readers_s=0)
    all_there(datastore)
    if where != "removed":
        retire(engine_of(datastore), old.dictionary_id, readers_s=0)
    all_there(datastore)
    assert (named(datastore, old), datastore.engine.dictionaries.find(old.dictionary_id)) == (
        0,
        None,
    )


def test_a_process_that_has_not_heard_of_it_stores_no_body_with_a_retired_dictionary(
    datastore: Datastore, tmp_path: Path
) -> None:
    old = planted()
    with Datastore.open_embedded(tmp_path, shards=SHARDS) as other:
        other.put_cell(row_of(0), "BASE", 2, body_of(0))
        assert named(other, old) == BODIES + 1
        retire(engine_of(datastore), old.dictionary_id, readers_s=0)
        assert other.put_cell(row_of(0), "BASE", 3, body_of(0)).acknowledged
        assert named(other, old) == 0
        forget_dictionaries()
        cell = other.get_cell(row_of(0), "BASE", 3)
        assert cell is not None
        assert cell.body == body_of(0)


def test_puts_and_readers_beside_a_retirement_never_fail(
    datastore: Datastore, tmp_path: Path
) -> None:
    old, stop, failed, puts = planted(), threading.Event(), list[BaseException](), list[int]()

    def work(act: str) -> None:
        try:
            with Datastore.open_embedded(tmp_path, shards=SHARDS) as other:
                number = BODIES
                while not stop.is_set():
                    if act == "put":
                        assert other.put_cell(
                            row_of(number), "BASE", 1, body_of(number)
                        ).acknowledged
                        puts.append(number)
                        number += 1
                    else:
                        cells = [
                            cell
                            for shard in range(SHARDS)
                            for cell in other.get_cells_for_shard(shard, 0, 1_000).cells
                        ]
                        assert len(cells) >= BODIES
                        assert all(cell.body["driver"] for cell in cells)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(act,)) for act in ("put", "read", "read")]
    for thread in threads:
        thread.start()
    retire(engine_of(datastore), old.dictionary_id, readers_s=0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert puts
    all_there(datastore, BODIES + len(puts))
    assert named(datastore, old) == 0


def test_backups_from_before_and_increments_onto_them_are_restored(
    datastore: Datastore, tmp_path: Path
) -> None:
    folder = BackupFolder(tmp_path / "backups")
    source = Source(datastore.engine, belongs)
    full = create(folder, source)
    retire(engine_of(datastore), planted().dictionary_id, readers_s=0)
    datastore.put_cell(row_of(BODIES), "BASE", 1, body_of(BODIES))
    increment = create(folder, source, onto=full)
    datastore.close()
    chain = folder.chain(increment)
    assert len(chain) == 2
    with SqliteTarget(tmp_path / "again" / "trips", "trips", SHARDS) as target:
        restore(plan(chain, [], [], {}, 0, "test"), target)
    forget_dictionaries()
    with Datastore.open_embedded(tmp_path / "again", shards=SHARDS) as restored:
        all_there(restored, BODIES + 1)


def test_the_retire_command_refuses_an_invalid_name_and_prints_its_result(
    datastore: Datastore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    datastore.close()
    config = tmp_path / "config.yaml"
    config.write_text(
        f"datastore: {{name: trips, shards: {SHARDS}, directory: {tmp_path}}}\nworkers:"
        " []\ngateways: []\n"
    )
    for name, code in (("photos", 2), ("00000000", 1), (planted().name, 0)):
        monkeypatch.setattr(
            "sys.argv",
            [
                "cellfeed",
                "dictionary",
                "retire",
                name,
                "--config",
                str(config),
                "--run-dir",
                str(tmp_path),
                "--json",
            ],
        )
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert int(ended.value.code or 0) == code, captured.err
    assert json.loads(captured.out)["rewritten"] == BODIES
