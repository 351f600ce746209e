"""Archives of binlogs beyond one cluster and one disk: moved shards, buckets, dictionaries, trial
restores."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.backups.binlogs.covered import remove_superfluous, superfluous
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.cells.body_codec import (
    CODEC_JSON_DICTIONARY,
    decode_body,
    forget_dictionaries,
)
from cellfeed.store.cells.cell import StoredCell, moment
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import come_back
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.engines.contract import dictionaries_of_puts as dictionary_contract
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from tests.support import move_steps
from tests.support.archived_binlogs import (
    archiving,
    back_up,
    configured,
    engine_of,
    log_of,
    put,
    restored,
    target,
)
from tests.support.cli_commands import done, refused
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, cells_of_shard
from tests.support.rides import rides
from tests.support.s3_server import BUCKET, keys, s3_server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

SHARD = move_steps.SHARD


def test_cells_of_a_shard_that_moved_there_and_back_under_writes_are_restored(
    clusters: dict[str, TestCluster], folder: BackupFolder, tmp_path: Path
) -> None:
    with (
        closing(move_steps.open_engine(clusters)) as engine,
        archiving(clusters["c1"], folder, engine) as first,
        archiving(clusters["c2"], folder, engine) as second,
    ):
        store = Datastore(engine)
        put(store, cells_of_shard(SHARD, 1, 30))
        back_up(store, folder)
        put(store, cells_of_shard(SHARD, 2, 20))
        with move_steps.writing(store):
            move_steps.move(clusters, engine, "c2")
            put(store, cells_of_shard(SHARD, 3, 20))
            move_steps.move(clusters, engine, "c1")
        put(store, cells_of_shard(SHARD, 4, 20))
        first.await_now()
        second.await_now()
        log = log_of(store, SHARD, engine.heads()[SHARD].next_added_id)
        assert len(log) > 90
    assert restored(folder, tmp_path)[SHARD] == log


def test_a_promotion_in_the_middle_of_a_move_that_is_archived(
    clusters: dict[str, TestCluster], folder: BackupFolder, tmp_path: Path
) -> None:
    with (
        closing(move_steps.open_engine(clusters)) as engine,
        archiving(clusters["c1"], folder, engine) as first,
        archiving(clusters["c2"], folder, engine) as second,
    ):
        store = Datastore(engine)
        put(store, cells_of_shard(SHARD, 1, 30))
        back_up(store, folder)
        put(store, cells_of_shard(SHARD, 2, 20))
        set_failpoint("move.inside_copy", "raise")
        with pytest.raises(FailpointReached):
            move_steps.move(clusters, engine, "c2")
        assert promote(clusters["c1"].admin).master == "b"
        come_back(clusters["c1"].admin, "a")
        put(store, cells_of_shard(SHARD, 3, 20))
        move_steps.move(clusters, engine, "c2")
        put(store, cells_of_shard(SHARD, 4, 20))
        first.await_now()
        second.await_now()
        log = log_of(store, SHARD, 90)
    assert restored(folder, tmp_path)[SHARD] == log


def test_an_archive_in_a_bucket_is_restored_and_pruned(
    cluster: TestCluster, store: Datastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(monkeypatch) as client:
        url = f"s3://{BUCKET}/cellfeed/trips"
        folder = BackupFolder(place_at(url))
        with archiving(cluster, folder, engine_of(store)) as archive:
            full = back_up(store, folder)
            put(store, cells_of_shard(1, 1, 20))
            archive.await_now()
        assert [key for key in keys(client) if "/piece-" in key], "the archive is in the bucket"
        with archiving(cluster, folder, engine_of(store)) as archive:
            put(store, cells_of_shard(1, 2, 20))
            archive.await_now()
            log = log_of(store, 1, 40)
            assert archive.reports[-1].gap == ""
        assert restored(folder, tmp_path)[1] == log
        assert "pieces of archived binlogs" in done("backup", "verify", url)
        second = back_up(store, folder, full)
        back_up(store, folder, second)
        with folder.locked():
            remove_superfluous(superfluous(folder))
        assert len([key for key in keys(client) if "/piece-" in key]) == 1
        assert restored(folder, tmp_path)[1] == log
        piece = next(key for key in keys(client) if "/piece-" in key)
        client.put_object(Bucket=BUCKET, Key=piece, Body=b"another thing")
        assert "is damaged" in str(refused("backup", "verify", url))


@pytest.mark.usefixtures("no_other_stores")
def test_bodies_of_a_dictionary_that_only_the_archive_has_are_restored_at_any_moment(
    cluster: TestCluster, folder: BackupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionary_contract, "REFRESH_S", 0.0)
    trained = train("BASE", [Sample(cell.row_key, cell.body_json) for cell in rides(0, 600)])
    with (
        Datastore(ClusteredEngine(DATASTORE, SHARDS, {"c1": cluster.openers()})) as store,
        archiving(cluster, folder, engine_of(store)) as archive,
    ):
        archive.await_now()
        back_up(store, folder)
        put(store, rides(0, 20))
        publish(engine_of(store).dictionaries, trained.dictionary, 0)
        put(store, rides(20, 200))
        archive.await_now()
        logs = {shard: store.engine.scan(shard, 0, 5_000) for shard in range(SHARDS)}
        bodies = {shard: bodies_of(log) for shard, log in logs.items()}
    coded = [cell for log in logs.values() for cell in log if cell.body[0] == CODEC_JSON_DICTIONARY]
    assert coded, "no body needs the dictionary"
    forget_dictionaries()
    assert restored(folder, tmp_path) == logs
    forget_dictionaries()
    at = moment(max(cell.created_at_us for cell in coded)).isoformat()
    into = target(tmp_path)
    done("restore", folder.place, "--into", into, "--config", configured(tmp_path), "--at", at)
    forget_dictionaries()
    with Datastore.open_embedded(into / "data", DATASTORE, SHARDS) as opened:
        found = {shard: bodies_of(opened.engine.scan(shard, 0, 5_000)) for shard in bodies}
    assert found == bodies


def bodies_of(log: list[StoredCell]) -> list[bytes]:
    return [decode_body(cell.body) for cell in log if cell.column_name != "RESTORED"]


def test_a_trial_restore_includes_archived_binlogs(
    cluster: TestCluster, store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    with archiving(cluster, folder, engine_of(store)) as archive:
        put(store, cells_of_shard(1, 1, 20))
        full = back_up(store, folder)
        put(store, cells_of_shard(1, 2, 20))
        archive.await_now()
    words = "backup", "verify", folder.place, "--restore", "--json", "--tmp-dir", tmp_path
    assert json.loads(done(*words))["restored"]["ids"] == 40
    assert json.loads(done(*words, "--backup", full.name))["restored"]["ids"] == 20
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backups"]
