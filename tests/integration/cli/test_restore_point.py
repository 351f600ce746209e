"""cellfeed restore --at: the cells that it brings back, its output, and its refusals."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from cellfeed.cli import restore as restore_command
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.cells.cell import RESTORED_COLUMN
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, ProtectData
from tests.integration.cli.test_cli_restore import CONFIG
from tests.support.cli_commands import done, killed, refused
from tests.support.rides import rides, row_of

pytestmark = pytest.mark.integration


class Backed(NamedTuple):
    """A folder of two backups, a moment between them, and the ends of the logs then."""

    folder: Path
    words: list[object]
    at: str
    ends: dict[int, int]
    history_id: str


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    run_dir, folder = tmp_path / "run", tmp_path / "backups"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(CONFIG)
    create = ("backup", "create", folder, "--run-dir", run_dir)
    with Datastore.open_embedded(run_dir / "store", "trips", 4) as store:
        store.put_new_cells(rides(0, 100))
    done(*create)
    with Datastore.open_embedded(run_dir / "store", "trips", 4) as store:
        store.put_new_cells(rides(100, 100))
        ends = {shard: head.watermark for shard, head in store.heads().items()}
        time.sleep(0.002)
        at = datetime.now(UTC).isoformat()
        time.sleep(0.002)
        store.put_new_cells(rides(200, 100))
        store.erase_row(row_of(7))
        history_id = store.engine.history.history_id
    done(*create, "--onto", "latest")
    words = ["restore", folder, "--config", run_dir / "config.yaml", "--at", at]
    return Backed(folder, words, at, ends, history_id)


def test_a_restore_to_a_point_gives_the_store_of_that_moment_and_names_the_lost_cells(
    backed: Backed, tmp_path: Path
) -> None:
    into = ("--into", tmp_path / "new", "--reason", "a wrong release")
    killed("sqlite.restore.before_rename", *backed.words, *into)
    told = json.loads(done(*backed.words, *into, "--json"))
    assert told["at"] == backed.at
    assert told["ends"] == {str(shard): end for shard, end in backed.ends.items()}
    assert (told["ids"], told["trimmed"]) == (200, {})
    assert told["erased"] == [str(row_of(7))]
    with Datastore.open_embedded(tmp_path / "new" / "store", "trips", 4) as store:
        assert store.engine.history.parent == backed.history_id
        for shard, end in backed.ends.items():
            cells = store.engine.scan(shard, 0, 1_000)
            assert [cell.added_id for cell in cells][:end] == list(range(end))
            note = cells[end]
            assert note.column_name == RESTORED_COLUMN
            assert note.added_id == told["left_out"][str(shard)]["to"] + 1 > end + 100_000
        body = store.get_cell_latest(UUID(bytes=note.row_key), RESTORED_COLUMN)
        assert body is not None
        assert body.body["reason"].endswith(f"a wrong release, as of {backed.at}")
        assert store.get_row(row_of(150))
        assert not store.get_row(row_of(250))
    text = done(*backed.words, "--into", tmp_path / "again")
    assert f"as of {backed.at}, the state of {told['state_of']}" in text


def test_a_moment_outside_of_the_backups_and_options_that_do_not_fit_are_refused(
    backed: Backed, tmp_path: Path
) -> None:
    words = [*backed.words[:-1]]
    into = ("--into", tmp_path / "new")
    day = timedelta(days=1)
    for at in (datetime.now(UTC) + day, datetime.now(UTC) - day):
        error = refused(*words, at.isoformat(), *into)
        assert isinstance(error, InvalidRequest)
        assert all(name in str(error) for name in (each.name for each in backed.folder.glob("2*")))
    assert "no time zone" in str(refused(*words, "2026-03-01T12:00:00", *into))
    assert "leave --backup out" in str(refused(*backed.words, *into, "--backup", "x"))
    assert "--at goes without" in str(refused(*backed.words, *into, "--shard", 1))
    assert not (tmp_path / "new").exists()


def test_readers_that_are_beyond_the_moment_are_refused_unless_they_are_left_behind(
    backed: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Reader("lake", "trips", 2, backed.ends[2] + 1, source="warehouse")
    monkeypatch.setattr(restore_command, "readers_of_config", lambda *_: [lake])
    into = ("--into", tmp_path / "new")
    error = refused(*backed.words, *into)
    assert isinstance(error, ProtectData)
    assert "warehouse lake" in str(error)
    assert not (tmp_path / "new" / "store" / "trips").exists()
    told = json.loads(done(*backed.words, *into, "--readers-ahead", "raise-epoch", "--json"))
    assert set(told["left_out"]) == {"0", "1", "2", "3"}
