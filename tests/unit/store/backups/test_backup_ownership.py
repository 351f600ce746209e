"""A folder of backups has all that people and tools put there: only files that this program wrote
are ever removed, and a dry run names exactly them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.cli.main import verb_alone
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import decode_manifest, encode_manifest
from cellfeed.store.backups.marker import MANIFEST, Marker, write_marker
from cellfeed.store.backups.places.local import LocalPlace
from cellfeed.store.backups.prune import DAY_US
from cellfeed.store.backups.sealed import FORMATS
from cellfeed.store.backups.taking import Source
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from tests.support.rides import rides

SHARDS = 2
OURS = "20260301T120000Z-3f9a"
"""A name as this program gives them."""


def foreign_file(place: Path) -> None:
    place.write_bytes(b"somebody's")


def foreign_folder(place: Path) -> None:
    place.mkdir()
    (place / "photo.jpg").write_bytes(b"\xff\xd8")
    (place / "deep").mkdir()
    (place / "deep" / "cells-0000").write_bytes(b"not ours, by whatever name")


def empty_folder(place: Path) -> None:
    place.mkdir()


def link_to_folder(place: Path) -> None:
    target = place.with_name(f"{place.name}.target")
    foreign_folder(target)
    place.symlink_to(target)


def link_to_killed_backup(place: Path) -> None:
    """The target of its link is a rest that the next backup would remove, and lies elsewhere."""
    elsewhere = place.with_name(f"{place.name}.elsewhere")
    elsewhere.mkdir()
    (elsewhere / place.name).mkdir()
    write_marker(
        LocalPlace(elsewhere / place.name),
        Marker(FORMATS[-1], "0" * 32, place.name, "trips", SHARDS, 1, 1),
    )
    place.symlink_to(elsewhere / place.name)


def dangling_link(place: Path) -> None:
    place.symlink_to(place.with_name("nowhere"))


def unmarked_rest(place: Path) -> None:
    """The files that a killed backup of an earlier version has left."""
    place.mkdir()
    (place / "state").write_bytes(b"x")


def other_tools_backup(place: Path) -> None:
    place.mkdir()
    (place / "manifest.json").write_text('{"tool": "restic"}')


def unreadable_folder(place: Path) -> None:
    foreign_folder(place)
    place.chmod(0)


def running_datastore(place: Path) -> None:
    with Datastore.open_embedded(place, "other", 1) as store:
        store.put_new_cells(rides(0, 3))


def a_foreign_marker(place: Path) -> None:
    """That of another backup, copied with all that lies beside it."""
    unfinished(place, "trips", "copied")


def a_damaged_marker(place: Path) -> None:
    made = unfinished(place, "trips")
    marker = made / "cellfeed-backup"
    marker.write_bytes(marker.read_bytes().replace(b"trips", b"tripz"))


def unfinished_of_another_datastore(place: Path) -> None:
    unfinished(place, "others")


def backup_of_another_datastore(place: Path) -> None:
    name = f"others_{place.name[-3:].lower()}"  # of one name two stores share no folder
    with Datastore.open_embedded(place.with_name(f"{place.name}.store"), name, 1) as store:
        store.put_new_cells(rides(0, 3))
        create(BackupFolder(place.parent), Source(store.engine, belongs))


def unfinished(place: Path, datastore: str, name: str | None = None) -> Path:
    """The rest of a killed backup, moved to ``place``'s folder; under ``name`` or its own."""
    apart = place.parent.with_name(f"{place.parent.name}.apart")
    with Datastore.open_embedded(
        place.parent.with_name(f"{place.parent.name}.stores"), datastore, 1
    ) as store:
        set_failpoint("backup.before_manifest", "raise")
        with pytest.raises(FailpointReached):
            create(BackupFolder(apart), Source(store.engine, belongs))
    [left] = apart.glob("2*")
    target = place.parent / (OURS if name else left.name)
    shutil.copytree(left, target)
    shutil.rmtree(apart)
    return target


KINDS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        foreign_file,
        foreign_folder,
        empty_folder,
        link_to_folder,
        link_to_killed_backup,
        dangling_link,
        unmarked_rest,
        other_tools_backup,
        unreadable_folder,
        running_datastore,
        a_foreign_marker,
        a_damaged_marker,
        unfinished_of_another_datastore,
        backup_of_another_datastore,
    )
}
NAMES = ["lost+found", OURS, f"{OURS}.old"]


def contents(path: Path, ignored: set[str] | None = None) -> dict[str, str]:
    """Everything below a folder, links as links; without the backup that this program is at work
    on."""
    found = {}
    for place in sorted(path.rglob("*")):
        name = str(place.relative_to(path))
        if name.split("/")[0] in (ignored or set()) or place.name in (
            "lock",
            "erasures",
            "erasures.copy",
        ):
            continue
        if place.is_symlink():
            found[name] = f"-> {place.readlink()}"
        else:
            found[name] = sha256(place.read_bytes()).hexdigest() if place.is_file() else "folder"
    return found


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("instance")
    (directory / "config.yaml").write_text(f"datastore: {{shards: {SHARDS}}}\n")
    with Datastore.open_embedded(directory / "store", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 30))
    return directory


@pytest.fixture
def backups(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "backups"
    folder.mkdir()
    yield folder
    for place in folder.iterdir():
        if not place.is_symlink() and place.is_dir():
            place.chmod(0o700)


command = cache(verb_alone)
"""Typer takes longer to make a command than this test's commands take to run."""


def run(*words: object) -> dict[str, Any]:
    said = StringIO()
    with redirect_stdout(said):
        code = command(str(words[0])).main([*map(str, words), "--json"], standalone_mode=False)
    assert not code, said.getvalue()
    return json.loads(said.getvalue().splitlines()[-1])  # type: ignore[no-any-return]


def aged(place: Path, days: int) -> None:
    """As if the backup had been taken so long ago."""
    manifest = decode_manifest((place / MANIFEST).read_bytes(), place.name)
    manifest = msgspec.structs.replace(
        manifest, created_at_us=manifest.created_at_us - days * DAY_US
    )
    (place / MANIFEST).write_bytes(encode_manifest(manifest))


def everything_done_to(backups: Path, run_dir: Path, into: Path, in_the_way: set[str]) -> None:
    """Each command that looks into a folder of backups, with the own files that it may remove. A
    folder with our name and with a manifest that is none may be a later backup; so a restore is
    refused while it is ``in_the_way``."""
    old = run("backup", "create", backups, "--run-dir", run_dir)["backup"]
    aged(backups / old, 40)
    set_failpoint("backup.before_manifest", "raise")
    with pytest.raises(FailpointReached):
        run("backup", "create", backups, "--run-dir", run_dir)
    kept = run("backup", "create", backups, "--run-dir", run_dir)["backup"]
    run("backup", "verify", backups, "--backup", kept)
    run("backup", "create", backups, "--onto", kept, "--run-dir", run_dir)
    ours = ("--datastore", "trips")
    before = {place.name for place in backups.iterdir()}
    dry = run("backup", "prune", backups, "--keep", 30, "--dry-run", *ours)
    assert {place.name for place in backups.iterdir()} == before
    done = run("backup", "prune", backups, "--keep", 30, *ours)
    assert {**dry, "dry_run": False} == done
    assert (
        before - {place.name for place in backups.iterdir()}
        == {old}
        == {*done["removed"], *done["unfinished"], *done["damaged"]}
    )
    words = (
        "restore",
        backups,
        "--backup",
        kept,
        "--into",
        into,
        "--config",
        run_dir / "config.yaml",
    )
    if in_the_way:
        with pytest.raises(CellfeedError) as refused:
            run(*words)
        assert str(refused.value).startswith(
            f"nothing restored: {min(in_the_way)}, which may be a later backup"
        )
    else:
        run(*words)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_foreign_files_and_folders_survive_every_command(
    kind: str, name: str, backups: Path, run_dir: Path, tmp_path: Path
) -> None:
    KINDS[kind](backups / name)
    before = contents(backups)
    assert before
    everything_done_to(
        backups,
        run_dir,
        tmp_path / "restored",
        {name} if kind == "other_tools_backup" and name == OURS else set(),
    )
    after = contents(backups)
    assert {key: after.get(key) for key in before} == before


TAKES_THE_NAME = (
    "foreign_file",
    "foreign_folder",
    "empty_folder",
    "link_to_folder",
    "dangling_link",
)


@pytest.mark.parametrize("kind", ["backup", *TAKES_THE_NAME])
def test_a_backup_whose_name_is_taken_is_not_made_and_the_present_files_stay(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups, then = tmp_path / "backups", datetime(2026, 3, 1, 12, tzinfo=UTC)
    backups.mkdir()
    monkeypatch.setattr("cellfeed.store.backups.create.secrets.token_hex", "3f9a".ljust)
    monkeypatch.setattr("cellfeed.store.backups.create.moment", lambda _: then)
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as store:
        store.put_new_cells(rides(0, 5))
        source = Source(store.engine, belongs)
        if kind == "backup":
            assert create(BackupFolder(backups), source).name == OURS
        else:
            KINDS[kind](backups / OURS)
        before = contents(backups)
        with pytest.raises(StorageUnavailable, match=r"no backup taken: .*File exists"):
            create(BackupFolder(backups), source)
    after = contents(backups)
    assert {key: after.get(key) for key in before} == before


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 0xFFFF)),
        min_size=1,
        max_size=6,
        unique_by=lambda each: each[1],
    )
)
def test_any_mixture_survives_a_create_and_a_prune(
    tmp_path_factory: pytest.TempPathFactory, run_dir: Path, entries: list[tuple[str, int]]
) -> None:
    backups = tmp_path_factory.mktemp("mixed") / "backups"
    backups.mkdir()
    for kind, number in entries:
        if kind != "a_foreign_marker":
            KINDS[kind](backups / f"20250101T000000Z-{number:04x}")
    before = contents(backups)
    in_the_way = {
        f"20250101T000000Z-{number:04x}" for kind, number in entries if kind == "other_tools_backup"
    }
    everything_done_to(backups, run_dir, backups.parent / "restored", in_the_way)
    after = contents(backups)
    assert {key: after.get(key) for key in before} == before
