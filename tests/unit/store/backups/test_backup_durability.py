"""The files that a power cut may leave of a backup: a manifest that is on disk names only files,
and names of files, that are on disk as well."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.marker import MANIFEST, MARKER, STATE
from cellfeed.store.backups.prune import decide, remove
from cellfeed.store.backups.taking import Source
from cellfeed.store.datastore import Datastore
from tests.support.rides import rides

Event = tuple[str, str]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Each sync, rename and removal, by the path below the test's folder, in order."""
    seen: list[Event] = []
    fsync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def recorded_fsync(descriptor: int) -> None:
        seen.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        fsync(descriptor)

    def recorded_replace(path: Path, target: Path) -> Path:
        seen.append(("rename", str(target)))
        return replace(path, target)

    def recorded_unlink(path: Path, missing_ok: bool = False) -> None:
        seen.append(("unlink", str(path)))
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    monkeypatch.setattr(Path, "unlink", recorded_unlink)
    return seen


@pytest.mark.parametrize("first", [True, False])
def test_files_and_folders_are_synced_before_the_manifest_and_its_name_after_it(
    tmp_path: Path, events: list[Event], first: bool
) -> None:
    directory = tmp_path / "deep" / "backups"
    with Datastore.open_embedded(tmp_path / "source", "trips", 2) as store:
        store.put_new_cells(rides(0, 50))
        if not first:
            create(BackupFolder(directory), Source(store.engine, belongs))
        events.clear()
        backup = create(BackupFolder(directory), Source(store.engine, belongs))
    place = str(backup.path)
    order = [
        (kind, path)
        for kind, path in events
        if path.startswith(str(tmp_path)) and "/source" not in path
    ]
    renamed = order.index(("rename", f"{place}/{MANIFEST}"))
    before, after = order[:renamed], order[renamed + 1 :]
    assert before[-1] == ("sync", f"{place}/.{MANIFEST}.staged"), "its content before its name"
    assert after == [("sync", place)], "then its name, and nothing behind it"
    # The folder of backups, made with the one above it; the marker before anything else in the
    # backup's folder.
    assert before[:2] == [("sync", str(tmp_path)), ("sync", str(tmp_path / "deep"))] or not first
    inside = [(kind, path.removeprefix(place)) for kind, path in before if path.startswith(place)]
    assert inside[:3] == [("sync", f"/.{MARKER}.staged"), ("rename", f"/{MARKER}"), ("sync", "")]
    assert ("sync", str(directory)) in before[: before.index(("sync", f"{place}/{STATE}"))], (
        "the backup's own name"
    )
    # Every file is synced, and the folder after the last of them.
    synced = {path for kind, path in inside if kind == "sync"}
    for file in backup.manifest.files:
        assert f"/{file.name}" in synced or (
            f"/.{file.name}.staged" in synced and ("rename", f"/{file.name}") in inside
        )
    last_file = max(
        number
        for number, (kind, path) in enumerate(inside)
        if kind == "sync" and path.startswith("/cells")
    )
    assert ("sync", "") in inside[last_file:]
    # Both copies of the register are whole before a manifest that records them.
    for name in ("erasures", "erasures.copy"):
        renames = [
            number
            for number, event in enumerate(before)
            if event == ("rename", str(directory / name))
        ]
        assert bool(renames) == first, "it is written when there is something new"
        if not first:
            continue
        assert ("sync", str(directory)) in before[renames[-1] :]


def test_a_removal_begins_with_the_manifest_and_ends_with_the_marker(
    tmp_path: Path, events: list[Event]
) -> None:
    folder = BackupFolder(tmp_path / "backups")
    with Datastore.open_embedded(tmp_path / "source", "trips", 2) as store:
        store.put_new_cells(rides(0, 50))
        old, new = (create(folder, Source(store.engine, belongs)) for _ in range(2))
    decision = decide(folder, 0, (old.manifest.created_at_us + new.manifest.created_at_us) // 2)
    events.clear()
    remove(folder, decision.goes)
    place = str(old.path)
    steps = [(kind, path.removeprefix(place)) for kind, path in events]
    assert steps[:2] == [("unlink", f"/{MANIFEST}"), ("sync", "")]
    assert steps[-3:] == [("sync", ""), ("unlink", f"/{MARKER}"), ("sync", str(folder.path))]
    assert not old.path.exists()
