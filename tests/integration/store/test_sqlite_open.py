"""The files of an embedded store belong together: a lost or foreign one is refused, one that a kill
left behind is completed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.rebuild import rebuild_indexes
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.store.cells import sharding
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.instance_lock import exclusive_lock, lock_path
from cellfeed.store.engines.sqlite.scrub import scrub_files
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE, INDEX_FILE, STATE_FILE
from cellfeed.store.errors import InvalidRequest, OutcomeUnknown, ProtectData, StorageUnavailable
from cellfeed.store.failpoints import (
    FailpointReached,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from cellfeed.store.histories import History
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.limits import SHARDS_MAX, SHARDS_STORED_MAX
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
SHARDS = 4
INDEX = parse_definition(
    "table: by_n\ndatastore: trips\ncolumn_defs:\n  - column_name: BASE\n    fields: [{field: n,"
    " type: int}]\n"
)


def filled(directory: Path, *, first: int = 0, index: bool = True) -> str:
    """A store with fifty cells and an index; its identity."""
    with Datastore.open_embedded(directory, shards=SHARDS) as store:
        store.put_cells([(UUID(int=first + n), "BASE", 1, {"n": n}) for n in range(50)])
        store.state.commit({"offset": b"50"})
        if index:
            store.engine.indexes.create(
                store.indexes.version(store.indexes.catalog.create(INDEX)).table
            )
        return store.history_id


def remove(directory: Path, name: str) -> None:
    for path in directory.glob(f"{name}*"):
        path.unlink()


def identities(directory: Path) -> set[str]:
    found = set()
    for path in directory.glob("*.sqlite3"):
        with closing(sqlite3.connect(path)) as connection:
            found |= set(connection.execute("SELECT history_id FROM history").fetchall())
    return {history_id for (history_id,) in found}


def as_before_identities(directory: Path) -> None:
    """As the version before left the files."""
    for path in directory.glob("*.sqlite3"):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TABLE history")
            if path.name == CELLS_FILE:
                connection.execute("DROP TABLE history_file")
                connection.execute("UPDATE datastore SET schema_version = 3")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    filled(tmp_path)
    return tmp_path / "trips"


def opened(place: Path) -> SqliteEngine:
    return SqliteEngine(place, "trips", SHARDS)


def test_every_file_has_the_identity_of_the_history_and_two_stores_differ(tmp_path: Path) -> None:
    first, second = filled(tmp_path / "one"), filled(tmp_path / "two")
    assert first != second
    assert len(first) == 32
    assert identities(tmp_path / "one" / "trips") == {first}
    with Datastore.open_embedded(tmp_path / "one", shards=SHARDS) as again:
        assert again.history_id == first


@pytest.mark.parametrize("name", [CELLS_FILE, STATE_FILE])
def test_a_lost_file_is_refused_and_not_made_again(place: Path, name: str) -> None:
    remove(place, name)
    for _ in range(2):
        with pytest.raises(ProtectData, match=rf"{name} is missing.*backup restore"):
            opened(place)
        assert not (place / name).exists()


def test_an_empty_file_in_the_place_of_the_cells_is_refused(place: Path) -> None:
    remove(place, CELLS_FILE)
    (place / CELLS_FILE).touch()
    with pytest.raises(ProtectData, match="has no tables"):
        opened(place)


@pytest.mark.parametrize("name", [STATE_FILE, INDEX_FILE])
@pytest.mark.parametrize("what", ["of another store", "of an older version", "empty"])
def test_a_foreign_file_is_refused_with_both_identities(
    place: Path, tmp_path: Path, name: str, what: str
) -> None:
    other = filled(tmp_path / "other")
    if what == "of an older version":
        as_before_identities(tmp_path / "other" / "trips")
    remove(place, name)
    if what == "empty":
        (place / name).touch()
    else:
        shutil.copy(tmp_path / "other" / "trips" / name, place / name)
    with pytest.raises(ProtectData) as caught, closing(opened(place)) as engine:
        _ = engine.indexes
    [mine] = identities_of_cells(place)
    assert all(
        told in str(caught.value)
        for told in (name, mine, *([other] if what == "of another store" else []))
    )


def identities_of_cells(place: Path) -> list[str]:
    with closing(sqlite3.connect(place / CELLS_FILE)) as connection:
        return [
            history_id for (history_id,) in connection.execute("SELECT history_id FROM history")
        ]


def test_a_lost_index_is_refused_until_it_is_renewed(place: Path) -> None:
    remove(place, INDEX_FILE)
    with closing(opened(place)) as engine:
        for _ in range(2):
            with pytest.raises(ProtectData, match=rf"{INDEX_FILE} is missing.*index rebuild"):
                _ = engine.indexes
        assert engine.heads()[0].watermark > 0
        engine.renew_indexes()
        assert engine.indexes.fence_numbers([0]) == {}
    with closing(opened(place)) as engine:
        assert engine.indexes is not None


@pytest.mark.parametrize(
    "killed_at", [None, "index.rebuild.marked", "index.rebuild.renewed", "index.rebuild.created"]
)
def test_a_rebuilt_index_has_every_row_again_and_is_not_asked_before(
    place: Path, killed_at: str | None
) -> None:
    with Datastore(opened(place)) as store, closing(StoreCoordinator(store.state)) as coordinator:
        kept_to_the_end(store, coordinator)
        assert len(store.query_index("by_n", 7).rows) == 1
    remove(place, INDEX_FILE)
    with Datastore(opened(place)) as store, closing(StoreCoordinator(store.state)) as coordinator:
        with pytest.raises(ProtectData, match="index rebuild"):
            store.query_index("by_n", 7)
        if killed_at is not None:
            set_failpoint(killed_at, "raise")
            with pytest.raises(FailpointReached):
                rebuild_indexes(store, coordinator)
    with Datastore(opened(place)) as store, closing(StoreCoordinator(store.state)) as coordinator:
        rebuild_indexes(store, coordinator)
        with pytest.raises(StorageUnavailable, match="still being built"):
            store.query_index("by_n", 7)
        kept_to_the_end(store, coordinator)
        assert [len(store.query_index("by_n", n).rows) for n in range(50)] == [1] * 50


def kept_to_the_end(store: Datastore, coordinator: StoreCoordinator) -> None:
    stop = threading.Event()
    thread = threading.Thread(
        target=IndexWorker(store, coordinator, "index-worker").run, args=(stop,)
    )
    thread.start()
    try:
        wait_until(lambda: store.indexes.catalog.get("by_n").building is None, "the index is built")
    finally:
        stop.set()
        thread.join()


# --- kills and stores of the version before -------------------------------------------------------


@pytest.mark.parametrize("failpoint", ["sqlite.open.after_cells", "sqlite.open.after_adoption"])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("at_pass", [1, 2])
def test_a_kill_while_the_files_are_made_or_adopted_is_completed(
    tmp_path: Path, failpoint: str, old: bool, at_pass: int
) -> None:
    if old:
        filled(tmp_path)
        as_before_identities(tmp_path / "trips")
    program = (
        "from pathlib import Path; from cellfeed.store.engines.sqlite.engine import"
        f" SqliteEngine\nwhile True:\n    engine = SqliteEngine(Path({str(tmp_path / 'trips')!r}),"
        f" 'trips', {SHARDS}); engine.indexes; engine.close()"
    )
    environment = {**os.environ, "CELLFEED_FAILPOINTS": f"{failpoint}=kill@{at_pass}"}
    killed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, timeout=60, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    with closing(opened(tmp_path / "trips")) as engine:
        assert engine.indexes is not None
        assert identities(tmp_path / "trips") == {engine.history.history_id}
        assert sum(head.watermark for head in engine.heads().values()) == (50 if old else 0)
    for name in (INDEX_FILE, STATE_FILE):
        remove(tmp_path / "trips", name)
        with pytest.raises(ProtectData, match=name), closing(opened(tmp_path / "trips")) as engine:
            _ = engine.indexes


@pytest.mark.parametrize("name", [STATE_FILE, INDEX_FILE])
def test_a_store_of_the_version_before_that_lacks_a_file_is_refused(place: Path, name: str) -> None:
    as_before_identities(place)
    remove(place, name)
    with pytest.raises(ProtectData, match=f"{name} is missing"), closing(opened(place)) as engine:
        _ = engine.indexes


def test_a_store_of_the_version_before_without_an_index_needs_no_index_file(tmp_path: Path) -> None:
    filled(tmp_path, index=False)
    as_before_identities(tmp_path / "trips")
    with closing(opened(tmp_path / "trips")) as engine:
        assert engine.state.get("offset") is not None
        assert engine.indexes is not None


# --- files under a running process ----------------------------------------------------------------


def move_away(place: Path) -> Callable[[], object]:
    place.rename(place.with_name("away"))
    return lambda: place.with_name("away").rename(place)


def replaced(*suffixes: str) -> Callable[[Path], Callable[[], object]]:
    """Replaces parts of the file with the cells by copies."""

    def replace(place: Path) -> Callable[[], object]:
        kept = place.with_name("kept")
        kept.mkdir(exist_ok=True)
        for suffix in suffixes:
            part = place / f"{CELLS_FILE}{suffix}"
            part.rename(kept / part.name)
            shutil.copy(kept / part.name, part)
        return lambda: [path.replace(place / path.name) for path in kept.iterdir()]

    return replace


def deleted(place: Path) -> Callable[[], object]:
    kept = place.with_name("kept")
    kept.mkdir(exist_ok=True)
    parts = list(place.glob(f"{CELLS_FILE}*"))
    for part in parts:
        part.rename(kept / part.name)
    return lambda: [(kept / part.name).rename(part) for part in parts]


FAULTS = {
    "moved": move_away,
    "deleted": deleted,
    "copied": replaced("", "-wal", "-shm"),
    "wal copied": replaced("-wal"),
    "shm copied": replaced("-shm"),
}


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> Callable[[Path], Callable[[], object]]:
    return FAULTS[request.param]


def test_no_put_is_acknowledged_and_no_cell_shown_once_the_files_were_replaced(
    place: Path, fault: Callable[[Path], Callable[[], object]]
) -> None:
    with Datastore(opened(place)) as store:
        store.put_cell(UUID(int=100), "BASE", 1, {})
        heal = fault(place)
        with pytest.raises(StorageUnavailable, match="deleted, replaced or moved"):
            store.put_cell(UUID(int=101), "BASE", 1, {})
        with pytest.raises(StorageUnavailable, match="deleted, replaced or moved"):
            store.heads()
        with pytest.raises(StorageUnavailable):
            store.get_cell(UUID(int=100), "BASE", 1)
        heal()
        assert store.get_cell(UUID(int=101), "BASE", 1) is None, "it said that nothing was written"
        assert store.put_cell(UUID(int=101), "BASE", 1, {}).outcome == "stored"
    with Datastore(opened(place)) as store:
        assert store.get_cell(UUID(int=100), "BASE", 1) is not None
        assert store.get_cell(UUID(int=101), "BASE", 1) is not None


def test_a_commit_whose_files_are_replaced_meanwhile_is_unknown(place: Path) -> None:
    healed: list[Callable[[], object]] = []
    with Datastore(opened(place)) as store:
        watch_failpoint("sqlite.file.before_commit", lambda: healed.append(move_away(place)))
        with pytest.raises(OutcomeUnknown):
            store.put_cell(UUID(int=101), "BASE", 1, {})
        unwatch_failpoint("sqlite.file.before_commit")
        [heal] = healed
        heal()
        assert store.put_cell(UUID(int=101), "BASE", 1, {}).outcome == "exists"


def test_a_replaced_state_file_refuses_commits_and_heads_report_it(place: Path) -> None:
    with closing(opened(place)) as engine:
        engine.state.commit({"key": b"1"})
        (place / STATE_FILE).rename(place / "kept")
        with pytest.raises(StorageUnavailable, match=STATE_FILE):
            engine.state.commit({"key": b"2"})
        with pytest.raises(StorageUnavailable, match=STATE_FILE):
            engine.heads()
        (place / "kept").rename(place / STATE_FILE)
        entry = engine.state.get("key")
        assert entry is not None
        assert entry.value == b"1"


# --- the lock -------------------------------------------------------------------------------------


def test_processes_share_the_lock_and_a_scrub_has_it_exclusively(place: Path) -> None:
    with (
        closing(opened(place)),
        closing(opened(place)),
        pytest.raises(ProtectData, match="a process has the datastore"),
    ):
        scrub_files(place)
    with exclusive_lock(place, "a scrub"):
        with pytest.raises(StorageUnavailable, match="restored or scrubbed"):
            opened(place)
        with pytest.raises(InvalidRequest, match="another restore or scrub"):
            scrub_files(place)
    assert scrub_files(place)
    opened(place).close()


def test_the_lock_of_a_store_whose_folder_was_moved_is_still_found(place: Path) -> None:
    engine = opened(place)
    move_away(place)
    with pytest.raises(ProtectData, match="moved away"), exclusive_lock(place, "a restore"):
        pass
    engine.close()
    with exclusive_lock(place, "a restore"):
        pass


def test_a_fork_keeps_the_lock_until_both_have_ended(place: Path) -> None:
    engine = opened(place)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # until the parent says so
        os._exit(0)
    os.close(reading)
    engine.close()
    try:
        with pytest.raises(ProtectData), exclusive_lock(place, "a restore"):
            pass
    finally:
        os.close(writing)
        os.waitpid(child, 0)
    with exclusive_lock(place, "a restore"):
        assert lock_path(place).exists()


def test_a_killed_process_leaves_no_lock_on_the_store(place: Path) -> None:
    opening = f"SqliteEngine(Path({str(place)!r}), 'trips', {SHARDS})"
    program = (
        "import os; from pathlib import Path; from cellfeed.store.engines.sqlite.engine import"
        f" SqliteEngine; {opening}; os.kill(os.getpid(), 9)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False
        ).returncode
        == -signal.SIGKILL
    )
    assert scrub_files(place)


def test_a_store_whose_history_has_no_origin_yet_is_its_own(place: Path) -> None:
    [identity] = identities_of_cells(place)
    with closing(sqlite3.connect(place / CELLS_FILE)) as connection, connection:
        connection.execute("ALTER TABLE history DROP COLUMN origin")
        connection.execute("UPDATE datastore SET schema_version = 4")
    for _ in range(2):
        with closing(opened(place)) as engine:
            assert engine.history == History(identity, "", identity)


def test_a_new_store_of_too_many_shards_is_refused_and_an_existing_one_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match=f"1 to {SHARDS_MAX} shards, not {SHARDS_MAX + 1}"):
        Datastore.open_embedded(tmp_path, "trips", SHARDS_MAX + 1)
    assert not list(tmp_path.rglob("*.sqlite3"))
    monkeypatch.setattr(sharding, "SHARDS_MAX", SHARDS_STORED_MAX)  # an earlier version
    with Datastore.open_embedded(tmp_path, "trips", SHARDS_STORED_MAX) as store:
        put = store.put_cell(UUID(int=1), "BASE", 1, {})
    monkeypatch.undo()
    with Datastore.open_embedded(tmp_path, "trips", SHARDS_STORED_MAX) as store:
        assert store.put_cell(UUID(int=1), "BASE", 1, {}).added_id == put.added_id
