"""Backups in an object store, as an operator gives the commands: nothing but the place differs."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyrage
import pytest

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.marker import MANIFEST, MARKER, Marker, write_marker
from cellfeed.store.backups.places import s3_files, s3_lock
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.backups.places.s3_bucket import Bucket
from cellfeed.store.backups.prune import decide, remove
from cellfeed.store.backups.sealed import FORMATS
from cellfeed.store.backups.taking import Source
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.backup_commands import SHARDS, filled_run_dir, log_of, run
from tests.support.cli_instance import CELLFEED
from tests.support.rides import rider, rides, row_of
from tests.support.s3_server import BUCKET, keys, s3_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

PREFIX = "cellfeed/trips"
URL = f"s3://{BUCKET}/{PREFIX}"
OURS = "20260301T120000Z-3f9a"
"""A name as this program gives them."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server(monkeypatch) as found:
        yield found


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return filled_run_dir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as opened:
        opened.put_new_cells(rides(0, 100))
        yield opened


def backed_up(store: Datastore, folder: BackupFolder, onto: Backup | None = None) -> Backup:
    return create(folder, Source(store.engine, belongs), onto=onto)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_backup_and_an_increment_are_restored_from_a_bucket(
    client: Any, run_dir: Path, tmp_path: Path, encrypted: bool
) -> None:
    to: list[object] = []
    identity: list[object] = []
    if encrypted:
        key = pyrage.x25519.Identity.generate()
        (tmp_path / "key").write_text(str(key))
        to, identity = ["--recipient", key.to_public()], ["--identity", tmp_path / "key"]
    words = ("backup", "create", URL, "--run-dir", run_dir)
    code, told = run(*words, *to)
    assert code == 0, told
    assert told.startswith(f"{URL}/20")
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        store.put_new_cells(rides(300, 100))
    assert run(*words, "--onto", "latest", *to)[0] == 0
    listed = [json.loads(line) for line in run("backup", "list", URL, "--json")[1].splitlines()]
    assert [each["cells"] for each in listed] == [300, 100]
    code, told = run(
        *("backup", "verify", URL, "--restore", "--tmp-dir", tmp_path, "--json", *identity)
    )
    assert code == 0, told
    assert json.loads(told)["restored"]["ids"] == 400
    with Datastore.open_embedded(run_dir / "store", "trips", SHARDS) as store:
        store.erase_row(row_of(7))
    assert run(*words, "--onto", "latest", *to)[0] == 0
    code, told = run(
        *("restore", URL, "--into", tmp_path / "new", "--config", run_dir / "config.yaml"),
        *("--backup", listed[1]["backup"], "--readers-ahead", "raise-epoch", "--json", *identity),
    )
    assert code == 0, told
    assert json.loads(told)["erased"] == [str(row_of(7))]
    code, told = run(
        "restore", URL, "--into", tmp_path / "all", "--config", run_dir / "config.yaml", *identity
    )
    assert code == 0, told
    assert log_of(tmp_path / "all") == log_of(run_dir)
    if encrypted:
        for each in keys(client):
            body = client.get_object(Bucket=BUCKET, Key=each)["Body"].read()
            assert rider(9).encode() not in body
    code, told = run("backup", "prune", URL, "--keep", "0")
    assert code == 3


def test_only_objects_with_our_marker_are_ever_removed(client: Any, store: Datastore) -> None:
    foreign = {
        "photo.jpg",
        f"{PREFIX}/photo.jpg",
        f"{PREFIX}/photos/deep/photo.jpg",
        f"{PREFIX}/{OURS}/state",  # by name ours, and without a marker
        f"{PREFIX}/20260301T120000Z-aaaa/{MANIFEST}",
        f"{PREFIX}-other/{OURS}/{MARKER}",
        f"{PREFIX}2/{OURS}/state",
    }
    for key in foreign:
        client.put_object(Bucket=BUCKET, Key=key, Body=b"somebody's")
    place = place_at(URL)
    rest, theirs = "20260301T120000Z-bbbb", "20260301T120000Z-cccc"
    for name, datastore in ((rest, "trips"), (theirs, "others")):
        write_marker(
            place.inside(name), Marker(FORMATS[1], "0" * 32, name, datastore, SHARDS, 1, 1)
        )
        place.inside(name).write("cells-0000", b"a rest")
        place.inside(name).write("notes.txt", b"somebody's")
    foreign |= {f"{PREFIX}/{rest}/notes.txt", f"{PREFIX}/{theirs}/notes.txt"}
    kept = foreign | {f"{PREFIX}/{theirs}/{name}" for name in (MARKER, "cells-0000")}
    folder = BackupFolder(place)
    old = backed_up(store, folder)
    assert kept <= set(keys(client))
    assert not {f"{PREFIX}/{rest}/{name}" for name in (MARKER, "cells-0000")} & set(keys(client))
    new = backed_up(store, folder)
    with folder.locked():
        decision = decide(folder, 0, new.manifest.created_at_us, "trips")
        assert [each.marker.name for each in decision.goes] == [old.name]
        remove(folder, decision.goes)
    assert kept <= set(keys(client))
    assert keys(client, f"{PREFIX}/{old.name}/") == []
    assert [each.name for each in folder.look()[0]] == [new.name]


@pytest.mark.parametrize(
    "failpoint",
    [
        "backup.after_marker",
        "backup.after_state",
        "backup.after_heads",
        "backup.after_log",
        "backup.before_manifest",
        "backup.after_manifest",
    ],
)
def test_a_killed_backup_is_no_backup_and_the_next_one_removes_it(
    client: Any, store: Datastore, failpoint: str
) -> None:
    folder = BackupFolder(place_at(URL))
    first = backed_up(store, folder)
    set_failpoint(failpoint, "raise")
    with pytest.raises(FailpointReached):
        backed_up(store, folder)
    clear_failpoints()
    finished = failpoint == "backup.after_manifest"
    found, unreadable = BackupFolder(place_at(URL)).look()
    assert len(found) == 1 + finished
    assert len(unreadable) == 1 - finished
    manifests = [each for each in keys(client) if each.endswith(MANIFEST)]
    assert len(manifests) == 1 + finished, "it is written last"
    backed_up(store, folder)
    found, unreadable = folder.look()
    assert (found[0].name, len(found), unreadable) == (first.name, 2 + finished, [])


def test_a_process_that_is_killed_amid_a_backup_leaves_the_lock_to_the_next_one(
    client: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*CELLFEED, "backup", "create", URL, "--run-dir", str(run_dir)]
    killed = subprocess.run(
        words,
        env={**os.environ, "CELLFEED_FAILPOINTS": "backup.before_manifest=kill"},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    code, told = run(*words[len(CELLFEED) :])
    assert code == 2
    assert "falls after 60 s" in told
    monkeypatch.setattr(s3_lock, "LEASE_S", 1.0)
    wait_until(lambda: run(*words[len(CELLFEED) :])[0] == 0, "the lock to fall")
    found, unreadable = BackupFolder(place_at(URL)).look()
    assert (len(found), unreadable) == (1, [])


def test_a_large_log_is_uploaded_in_parts_and_a_failed_upload_leaves_none(
    client: Any, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_files, "PART_BYTES", 5 << 20)  # less is refused by servers
    for number in range(18):
        text = base64.b64encode(os.urandom(750_000)).decode()
        [result] = store.put_cells([(row_of(number), "LARGE", 1, {"n": number, "text": text})])
        assert result.acknowledged
    folder = BackupFolder(place_at(URL))
    call = Bucket.call

    def failing(bucket: Bucket, operation: str, key: str, **arguments: Any) -> Any:
        if operation == "upload_part" and arguments["PartNumber"] == 2:
            raise StorageUnavailable("the store is away")
        return call(bucket, operation, key, **arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "call", failing)
        with pytest.raises(StorageUnavailable, match="the store is away"):
            backed_up(store, folder)
    assert client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []) == []
    assert [each.name for each in place_at(URL).entries()] == ["erasures", "erasures.copy", "lock"]
    made = backed_up(store, folder)
    assert made.manifest.bytes > 10 << 20
    code, told = run("backup", "verify", URL)
    assert code == 0, told


@pytest.mark.parametrize("asked", ["list", "verify", "prune"])
def test_a_store_that_does_not_answer_is_no_damage_and_nothing_goes(
    client: Any, store: Datastore, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    folder = BackupFolder(place_at(URL))
    old = backed_up(store, folder)
    backed_up(store, folder)
    before = keys(client)
    call = Bucket.call

    def away(bucket: Bucket, operation: str, key: str, **arguments: Any) -> Any:
        hidden = MANIFEST if asked != "verify" else "cells-0000"
        if operation == "get_object" and key.endswith(f"{old.name}/{hidden}"):
            raise StorageUnavailable("the store is away")
        return call(bucket, operation, key, **arguments)

    monkeypatch.setattr(Bucket, "call", away)
    words: list[object] = ["backup", asked, URL]
    words += {"list": [], "verify": ["--backup", old.name], "prune": ["--keep", "0"]}[asked]
    code, told = run(*words)
    assert (code, told) == (1, "the store is away")
    assert keys(client) == before


def test_two_processes_do_not_back_up_at_once(client: Any, store: Datastore) -> None:
    folder = BackupFolder(place_at(URL))
    with BackupFolder(place_at(URL)).locked(), pytest.raises(InvalidRequest, match="wait until"):
        backed_up(store, folder)
    backed_up(store, folder)


def test_a_prefix_without_a_backup_is_no_folder_of_backups(client: Any) -> None:
    code, told = run("backup", "list", f"s3://{BUCKET}/nothing")
    assert code == 1
    assert "is no folder of backups" in told
    code, told = run("backup", "list", "s3://no-such-bucket/nothing")
    assert code == 1
    assert "there is no bucket 'no-such-bucket'" in told
