"""cellfeed backup and restore from the command line: the refusals, with the exit codes, and the
state that a kill -9 at each point leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.groups.control import group_prefix
from cellfeed.cli.main import command_line
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, NotFound, ProtectData
from tests.support.cli_commands import done, killed, refused
from tests.support.local_zookeeper import ZooKeeper
from tests.support.rides import rides

pytestmark = pytest.mark.integration

CONFIG = "datastore: {shards: 4}\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An instance's, none of whose processes run, with 300 cells."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "config.yaml").write_text(CONFIG)
    with Datastore.open_embedded(directory / "store", "trips", 4) as store:
        store.put_new_cells(rides(0, 300))
    return directory


@pytest.fixture
def backups(run_dir: Path) -> Path:
    """A folder with one backup of it."""
    done("backup", "create", run_dir.parent / "backups", "--run-dir", run_dir)
    return run_dir.parent / "backups"


def ends(directory: Path) -> Iterator[int]:
    with Datastore.open_embedded(directory / "store", "trips", 4) as store:
        yield from (head.watermark for head in store.heads().values())


def test_a_restore_killed_with_kill_9_can_be_run_again(run_dir: Path, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    killed("backup.before_manifest", "backup", "create", backups, "--run-dir", run_dir)
    [unfinished] = backups.glob("2*")
    assert "not finished" in done("backup", "list", backups)
    assert isinstance(refused("backup", "verify", backups), NotFound)
    told = json.loads(done("backup", "create", backups, "--run-dir", run_dir, "--json"))
    assert (told["cells"], told["onto"], unfinished.exists()) == (300, None, False)
    into = ("--into", tmp_path / "new", "--config", run_dir / "config.yaml")
    killed("sqlite.restore.before_rename", "restore", backups, *into)
    assert not (tmp_path / "new" / "store" / "trips").exists()
    restored: dict[str, Any] = json.loads(done("restore", backups, *into, "--json"))
    assert (restored["ids"], restored["left_out"]) == (300, {})
    assert list(ends(tmp_path / "new")) == list(ends(run_dir))


def test_a_damaged_backup_is_reported_and_not_restored(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    assert "is whole: 300 cells" in done("backup", "verify", backups)
    [cells] = backups.glob("*/cells-0000")
    content = bytearray(cells.read_bytes())
    content[-10] ^= 1
    cells.write_bytes(content)
    result = CliRunner().invoke(
        command_line("backup"), ["backup", "verify", str(backups), "--json"]
    )
    assert result.exit_code == 1
    [line] = json.loads(result.stdout.splitlines()[0])["damage"]
    assert "cells-0000: its content differs from its SHA-256" in line
    error = refused(
        "restore", backups, "--into", tmp_path / "new", "--config", run_dir / "config.yaml"
    )
    assert "nothing restored" in str(error)
    assert error.exit_code == 1
    assert not (tmp_path / "new" / "store" / "trips").exists()


def test_a_restore_with_wrong_arguments_is_refused_before_any_change(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    assert isinstance(
        refused("backup", "create", backups, "--datastore", "others", "--run-dir", run_dir),
        NotFound,
    )
    assert isinstance(
        refused(
            "backup", "create", backups, "--onto", "20200101T000000Z-0000", "--run-dir", run_dir
        ),
        NotFound,
    )
    assert isinstance(refused("restore", backups, "--into", run_dir), ProtectData)
    error = refused("restore", backups, "--into", tmp_path / "new")
    assert isinstance(error, ProtectData)
    assert "with 4 shards, the configuration has 'trips' with 16" in str(error)
    for above in ("x", "-1", "1:", "3:x", str(1 << 47)):
        error = refused(
            "restore",
            backups,
            "--into",
            tmp_path / "new",
            "--config",
            run_dir / "config.yaml",
            "--above",
            above,
        )
        assert isinstance(error, InvalidRequest)
        assert "--above" in str(error)
    assert isinstance(
        refused(
            "restore",
            backups,
            "--into",
            tmp_path / "new",
            "--config",
            run_dir / "config.yaml",
            "--above",
            "9:5",
        ),
        NotFound,
    )
    assert not (tmp_path / "new" / "store" / "trips").exists()


def erased_since(run_dir: Path, backups: Path) -> tuple[str, UUID]:
    """Erases a row of the only backup and makes another one; the first backup's name, and the
    row."""
    [old] = [
        json.loads(line)["backup"]
        for line in done("backup", "list", backups, "--json").splitlines()
    ]
    row = UUID(bytes=rides(0, 1)[0].row_key)
    with Datastore.open_embedded(run_dir / "store", "trips", 4) as store:
        store.erase_row(row)
    done("backup", "create", backups, "--onto", "latest", "--run-dir", run_dir)
    return old, row


def test_rows_that_a_later_backup_knows_as_erased_are_named_and_erased_again(
    run_dir: Path, backups: Path, tmp_path: Path
) -> None:
    old, row = erased_since(run_dir, backups)
    config = ("--config", run_dir / "config.yaml", "--readers-ahead", "raise-epoch")
    told = done("restore", backups, "--backup", old, "--into", tmp_path / "old", *config)
    assert f"erased again, as the register of erasures says: 1 rows: {row}" in told.replace(
        "\n", " "
    )
    newest = json.loads(done("restore", backups, "--into", tmp_path / "newest", *config, "--json"))
    assert newest["erased"] == []
    for directory in ("old", "newest"):
        with Datastore.open_embedded(tmp_path / directory / "store", "trips", 4) as store:
            assert store.get_row(row) == {}
            assert store.erase_row(row).cells == 0


def test_rows_of_a_cluster_that_an_earlier_run_has_opened_are_named_to_be_erased_by_hand(
    run_dir: Path, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, row = erased_since(run_dir, backups)
    monkeypatch.setattr(
        SqliteTarget, "not_erased", lambda _, plan: plan.erased
    )  # as of clusters, whose own test is of two of them
    words = (
        "restore",
        backups,
        "--backup",
        old,
        "--config",
        run_dir / "config.yaml",
        "--readers-ahead",
        "raise-epoch",
    )
    told = done(*words, "--into", tmp_path / "told").replace("\n", " ")
    assert f"cellfeed erase {row}" in told
    assert "erased again" not in told
    line = json.loads(done(*words, "--into", tmp_path / "json", "--json"))
    assert (line["erased"], line["not_erased"]) == ([], [str(row)])


def test_backups_are_listed_and_pruned_by_the_declared_time(run_dir: Path, backups: Path) -> None:
    done("backup", "create", backups, "--onto", "latest", "--run-dir", run_dir)
    full, increment = (
        json.loads(line) for line in done("backup", "list", backups, "--json").splitlines()
    )
    assert (full["onto"], increment["onto"], increment["cells"]) == (None, full["backup"], 0)
    assert json.loads(done("backup", "prune", backups, "--keep", "1", "--json"))["removed"] == []
    error = refused("backup", "prune", backups, "--keep", "0")
    assert error.exit_code == 3
    assert f"cellfeed backup create {backups}" in str(error)
    assert len(done("backup", "list", backups, "--json").splitlines()) == 2
    assert isinstance(refused("backup", "prune", backups, "--keep", "-1"), InvalidRequest)
    assert isinstance(refused("backup", "list", backups.with_name("none")), NotFound)


@pytest.mark.xdist_group("zookeeper")
def test_a_group_that_has_read_further_is_named_and_no_id_is_given_out_twice(
    run_dir: Path, backups: Path, tmp_path: Path, zookeeper_server: ZooKeeper
) -> None:
    coordination = f"{zookeeper_server.url}/{tmp_path.name}?timeout_s=10"
    config = tmp_path / "zookeeper.yaml"
    config.write_text(f"{CONFIG}coordination: {coordination}\n")
    first, second, *_ = ends(run_dir)
    with (
        Datastore.open_embedded(run_dir / "store", "trips", 4) as store,
        closing(open_coordinator(coordination, store.state)) as coordinator,
    ):
        at = {
            ("trips", 0): CommittedOffset(first + 500, 3),
            ("trips.BASE", 1): CommittedOffset(second),
        }
        coordinator.commit_offsets("reports", at)
    error = refused("restore", backups, "--into", tmp_path / "new", "--config", config)
    assert error.exit_code == 3
    assert f"group reports has come, in topic trips, to 0:{first + 500}" in str(error)
    assert "trips.BASE" not in str(error)
    words = (
        "restore",
        backups,
        "--into",
        tmp_path / "new",
        "--config",
        config,
        "--readers-ahead",
        "raise-epoch",
        "--reason",
        "a test",
        "--json",
    )
    told = json.loads(done(*words))
    assert told["leader_epoch"] >= 1_003
    assert told["left_out"]["0"] == {"from": first, "to": first + 500 + 100_000 - 1}
    with Datastore.open_embedded(tmp_path / "new" / "store", "trips", 4) as store:
        given = [
            result.added_id for result in store.put_new_cells(rides(300, 100)) if result.shard == 0
        ]
        assert min(added_id for added_id in given if added_id is not None) > first + 500


@pytest.mark.xdist_group("zookeeper")
def test_a_restore_into_the_chroot_of_another_datastore_is_refused_and_changes_nothing(
    run_dir: Path, backups: Path, tmp_path: Path, zookeeper_server: ZooKeeper
) -> None:
    """Staging's backup, production's chroot: its triggers would run finished cells again."""
    coordination = f"{zookeeper_server.url}/{tmp_path.name}?timeout_s=10"
    config = tmp_path / "zookeeper.yaml"
    config.write_text(f"{CONFIG}coordination: {coordination}\n")
    with Datastore.open_embedded(run_dir / "store", "trips", 4) as staging:
        staging_history = staging.history().history_id
    with (
        Datastore.open_embedded(tmp_path / "production", "trips", 4) as production,
        closing(open_coordinator(coordination, production.state, production.history)) as groups,
    ):
        groups.commit_offsets("billing", {("trips", 0): CommittedOffset(100_000)})
        words = "restore", backups, "--config", config, "--into", tmp_path / "new"
        for more in ((), ("--readers-ahead", "raise-epoch")):
            error = refused(*words, *more)
            assert isinstance(error, ProtectData)
            assert production.history().history_id in str(error)
            assert f"the backup to {staging_history}" in str(error)
        assert not (tmp_path / "new" / "store" / "trips").exists()
        assert groups.fetch_offsets("billing")["trips", 0].offset == 100_000


@pytest.mark.xdist_group("zookeeper")
def test_a_restore_resets_offsets_in_its_parents_chroot_and_owns_the_chroot_afterwards(
    run_dir: Path, tmp_path: Path, zookeeper_server: ZooKeeper
) -> None:
    coordination = f"{zookeeper_server.url}/{tmp_path.name}?timeout_s=10"
    (run_dir / "config.yaml").write_text(f"{CONFIG}coordination: {coordination}\n")
    with (
        Datastore.open_embedded(run_dir / "store", "trips", 4) as store,
        closing(open_coordinator(coordination, store.state, store.history)) as groups,
    ):
        store.state.commit({f"{group_prefix('billing')}declared": b"{}"})
        groups.commit_offsets("billing", {("trips", 0): CommittedOffset(5)})
        done("backup", "create", tmp_path / "backups", "--run-dir", run_dir)
        groups.commit_offsets("billing", {("trips", 0): CommittedOffset(10)})
        words = "restore", tmp_path / "backups", "--config", run_dir / "config.yaml", "--json"
        told = json.loads(done(*words, "--into", tmp_path / "new"))
        assert len(told["set_back"]) == 1
        assert groups.fetch_offsets("billing")["trips", 0].offset == 5
    with (
        Datastore.open_embedded(tmp_path / "new" / "store", "trips", 4) as store,
        closing(open_coordinator(coordination, store.state, store.history)) as groups,
    ):
        assert groups.fetch_offsets("billing")["trips", 0].offset == 5


@pytest.mark.xdist_group("zookeeper")
def test_offsets_of_a_cluster_that_an_earlier_run_has_opened_are_left_where_they_are(
    run_dir: Path, tmp_path: Path, zookeeper_server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells are in use, and the cells parked since are there: a trigger's offsets are set back
    only with the cells of its shard."""
    coordination = f"{zookeeper_server.url}/{tmp_path.name}?timeout_s=10"
    (run_dir / "config.yaml").write_text(f"{CONFIG}coordination: {coordination}\n")
    with (
        Datastore.open_embedded(run_dir / "store", "trips", 4) as store,
        closing(open_coordinator(coordination, store.state)) as coordinator,
    ):
        store.state.commit({f"{group_prefix('billing')}declared": b"{}"})
        for location in (5, 10):
            coordinator.commit_offsets(
                "billing", {("trips", shard): CommittedOffset(location) for shard in range(4)}
            )
            if location == 5:
                done("backup", "create", run_dir.parent / "backups", "--run-dir", run_dir)
        monkeypatch.setattr(
            SqliteTarget, "is_open", lambda _, shard: shard in (0, 2)
        )  # as of clusters, whose own tests are of two of them
        words = (
            "restore",
            run_dir.parent / "backups",
            "--config",
            run_dir / "config.yaml",
            "--into",
        )
        told = json.loads(done(*words, tmp_path / "json", "--json"))
        assert [each for each in told["set_back"] if "billing" in each] == told["set_back"]
        assert len(told["set_back"]) == 2
        now = {
            shard: offset.offset
            for (_, shard), offset in coordinator.fetch_offsets("billing").items()
        }
        assert now == {0: 10, 1: 5, 2: 10, 3: 5}
        text = done(*words, tmp_path / "text", "--readers-ahead", "raise-epoch")
    assert [line.split(":")[0] for line in text.splitlines() if "are nobody's" in line] == [
        "shard 1",
        "shard 3",
    ]
