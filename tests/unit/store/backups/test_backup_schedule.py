"""Backups on a schedule: the folder shows the due backup, and no failure ends it."""

from __future__ import annotations

import logging
import math
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyrage
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cellfeed.assembly.recovery_metrics import RecoveryMetrics
from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.config.model import BackupsConfig, Config
from cellfeed.instance.config_file import check_config
from cellfeed.run_dir import RunDir
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.due import (
    INCREMENTS_MAX,
    SECOND_US,
    Policy,
    RecoveryState,
    Report,
    due_in_s,
    is_full_due,
    recovery_state_of,
)
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.prune import DAY_US
from cellfeed.store.backups.schedule import RETRY_FIRST_S, RETRY_MAX_S, BackupSchedule
from cellfeed.store.backups.taking import Source
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.failpoints import clear_failpoints, watch_failpoint
from tests.support.backups_made import backed_up, restored_into
from tests.support.rides import rides

SHARDS = 4
ALWAYS = Policy(every_s=0, full_every_s=86_400)
"""A backup is due at every turn."""


class Turns(threading.Event):
    """Ends the schedule after the given steps: one is done in each wait. ``waited``: for how many
    seconds it was to wait."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = list(steps)
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout if timeout is not None else math.inf)
        if not self._steps:
            self.set()
        else:
            self._steps.pop(0)()
        return self.is_set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as opened:
        opened.put_new_cells(rides(0, 100))
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def scheduled(
    store: Datastore,
    folder: BackupFolder,
    turns: Turns,
    policy: Policy = ALWAYS,
    reports: list[Report] | None = None,
) -> list[Report]:
    """Runs a schedule of its own, as a process that was just started does; its reports."""
    told = reports if reports is not None else []
    BackupSchedule(folder, lambda: Source(store.engine, belongs), policy, told.append).run(turns)
    return told


def onto(folder: BackupFolder) -> list[int | None]:
    """Of each backup, the place in the folder of the one that it stands on; -1 for one that cannot
    be read."""
    found, _ = folder.look()
    places = {each.name: place for place, each in enumerate(found)}
    return [places.get(name, -1) if (name := each.manifest.onto) else None for each in found]


def shortened(backup: Backup) -> None:
    path = backup.path / "state"
    path.write_bytes(path.read_bytes()[:-1])


def nothing() -> None:
    pass


def test_increments_build_on_each_other_and_a_restart_continues_them(
    store: Datastore, folder: BackupFolder
) -> None:
    reports = scheduled(store, folder, Turns(lambda: store.put_new_cells(rides(100, 50)), nothing))
    assert onto(folder) == [None, 0, 1]
    scheduled(store, folder, Turns())
    assert onto(folder) == [None, 0, 1, 2]
    found, _ = folder.look()
    assert [each.manifest.cells for each in found] == [100, 50, 0, 0]
    assert reports[0] == Report()
    assert (reports[-1].backup, reports[-1].begun_at_us) == (
        found[2].name,
        found[2].manifest.created_at_us,
    )
    scheduled(store, folder, Turns(), Policy(every_s=0, full_every_s=0))
    assert onto(folder) == [None, 0, 1, 2, None]


def test_a_process_that_is_started_again_waits_until_the_next_is_due(
    store: Datastore, folder: BackupFolder
) -> None:
    scheduled(store, folder, Turns())
    scheduled(store, folder, turns := Turns(), Policy(every_s=3_600, full_every_s=86_400))
    assert onto(folder) == [None]
    assert 3_500 < turns.waited[0] <= 3_600


def test_a_clock_that_went_back_puts_nothing_off(store: Datastore, folder: BackupFolder) -> None:
    policy = Policy(every_s=300, full_every_s=86_400)
    backup = backed_up(store, folder)
    recovery = RecoveryState([backup], {})
    begun_us = backup.manifest.created_at_us
    for at_s, due_s in ((0, 300), (100, 200), (300, 0), (10_000, 0), (-1, 0), (-10_000, 0)):
        assert due_in_s(recovery, policy, begun_us + at_s * SECOND_US) == due_s
    for at_s, full in ((0, False), (86_399, False), (86_400, True), (-1, True)):
        assert is_full_due(recovery, policy, begun_us + at_s * SECOND_US) is full
    assert is_full_due(RecoveryState([], {}), policy, begun_us)
    for count, full in ((INCREMENTS_MAX, False), (INCREMENTS_MAX + 1, True)):
        assert is_full_due(RecoveryState([backup] * count, {}), policy, begun_us) is full


def test_a_schedule_with_recipients_encrypts_and_new_recipients_begin_with_a_full_backup(
    store: Datastore, folder: BackupFolder
) -> None:
    keys = [str(pyrage.x25519.Identity.generate().to_public()) for _ in range(2)]
    for key in keys:
        policy = BackupsConfig("backups", every_s=1, recipients=[key]).policy()
        policy = replace(policy, every_s=0)
        scheduled(store, folder, Turns(nothing), policy)
    assert onto(folder) == [None, 0, None, 2]
    assert [each.manifest.recipients for each in folder.look()[0]] == [
        [key] for key in keys for _ in range(2)
    ]
    reports = scheduled(store, folder, Turns())
    assert "give --recipient" in reports[-1].error
    with pytest.raises(InvalidRequest, match="backups: recipients: no age recipient"):
        check_config(Config(backups=[BackupsConfig("backups", recipients=["age1x"])]))


def test_no_increment_is_taken_onto_a_damaged_backup(
    store: Datastore, folder: BackupFolder, caplog: pytest.LogCaptureFixture
) -> None:
    scheduled(store, folder, Turns(nothing))
    found, _ = folder.look()
    shortened(found[1])
    reports = scheduled(store, folder, Turns())
    assert onto(folder) == [None, 0, 0], "the one below it is whole"
    assert reports[0].backup == found[0].name, "the recovery point is one that can be restored"
    assert list(reports[-1].passed_over) == [found[1].name]
    assert f"backup {found[1].name} is damaged" in caplog.text
    manifest = found[0].path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    reports = scheduled(store, folder, Turns())
    assert (reports[0].backup, onto(folder)[-1]) == (None, None)


def test_a_failure_is_logged_and_tried_again_and_the_error_stays_until_a_backup_is_taken(
    store: Datastore, folder: BackupFolder, caplog: pytest.LogCaptureFixture
) -> None:
    lock = folder.locked()
    lock.__enter__()
    times = 9
    steps = [*[nothing] * (times - 1), lambda: lock.__exit__(None, None, None)]
    reports = scheduled(store, folder, turns := Turns(*steps))
    assert turns.waited[:times] == [min(RETRY_FIRST_S * 2**n, RETRY_MAX_S) for n in range(times)]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == times
    assert "another backup is being made" in errors[0].getMessage()
    assert "tried again in 2 s" in errors[0].getMessage()
    assert [bool(each.error) for each in reports] == [False, *[True] * (2 * times), False]
    assert onto(folder) == [None]


def test_a_report_that_cannot_be_written_keeps_no_backup_from_being_taken(
    store: Datastore, folder: BackupFolder, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: Report) -> None:
        raise OSError(28, "No space left on device")

    BackupSchedule(folder, lambda: Source(store.engine, belongs), ALWAYS, full).run(Turns())
    assert onto(folder) == [None]
    assert "cannot be reported" in caplog.text


def test_a_stop_amid_a_backup_ends_it_and_leaves_nothing(
    store: Datastore, folder: BackupFolder
) -> None:
    turns = Turns()
    watch_failpoint("backup.after_log", turns.set)
    try:
        reports = scheduled(store, folder, turns)
    finally:
        clear_failpoints()
    assert (turns.waited, reports[-1].error) == ([], "")
    assert [each.name for each in folder.path.glob("2*")] == []


def test_a_full_backup_is_taken_where_every_proof_of_the_history_was_trimmed(
    store: Datastore, folder: BackupFolder, caplog: pytest.LogCaptureFixture
) -> None:
    def trim() -> None:
        store.put_new_cells(rides(100, 100))
        for shard, head in store.heads().items():
            store.engine.trim(shard, head.watermark)

    scheduled(store, folder, Turns(trim))
    assert onto(folder) == [None, None]
    assert "a full backup is taken instead" in caplog.text


def test_a_restored_store_begins_with_a_full_backup_and_both_continue_their_own(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    scheduled(store, folder, Turns())
    [first], _ = folder.look()
    with restored_into(tmp_path / "restored", folder, first) as restored:
        reports = scheduled(restored, folder, Turns(nothing))
        assert (reports[0].backup, onto(folder)) == (None, [None, None, 1])
        scheduled(store, folder, Turns())
        assert onto(folder) == [None, None, 1, 0]
        assert [
            recovery_state_of(folder, each.engine).chain[0].name for each in (store, restored)
        ] == [each.name for each in folder.look()[0][:2]]


def test_the_folder_of_another_store_is_left_alone_and_both_ids_are_named(
    store: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    scheduled(store, folder, Turns())
    before = sorted(path.name for path in folder.path.iterdir())
    with Datastore.open_embedded(tmp_path / "staging", "trips", SHARDS) as other:
        reports = scheduled(other, folder, Turns())
        assert other.engine.history.origin_id in reports[-1].error
    assert sorted(path.name for path in folder.path.iterdir()) == before
    assert store.engine.history.origin_id in reports[-1].error
    assert reports[-1].backup is None


def test_backups_older_than_the_declared_time_go_and_the_recovery_point_stays(
    store: Datastore, folder: BackupFolder
) -> None:
    scheduled(store, folder, Turns(nothing))
    old, _ = folder.look()
    keep_days = 2 * SECOND_US / DAY_US
    pause = threading.Event()
    policy = Policy(0, 0, keep_days)
    scheduled(store, folder, Turns(lambda: pause.wait(2.1)), policy)
    left, _ = folder.look()
    assert {each.name for each in old}.isdisjoint(each.name for each in left)
    assert onto(folder) == [None]


def test_a_folder_that_was_emptied_gets_a_full_backup(
    store: Datastore, folder: BackupFolder
) -> None:
    scheduled(store, folder, Turns(nothing, lambda: shutil.rmtree(folder.path)))
    assert onto(folder) == [None]


def test_the_age_of_the_recovery_point_is_a_metric(tmp_path: Path) -> None:
    directory = RunDir(tmp_path)
    directory.make()
    registry = CollectorRegistry()
    registry.register(RecoveryMetrics(directory, ["nightly", "often"]))
    directory.say_recovery("often", Report("b", 1_000, "the disk is full"))
    text = generate_latest(registry).decode()
    [age] = [line for line in text.splitlines() if line.startswith(f'{_AGE}{{name="often"}}')]
    assert float(age.split()[1]) > 1_700_000_000
    assert f'{_AGE}{{name="nightly"}} +Inf' in text
    assert 'cellfeed_backup_failing{name="often"} 1.0' in text
    assert 'cellfeed_backup_failing{name="nightly"} 0.0' in text
    assert Report("b", 5 * SECOND_US).age_s(7 * SECOND_US) == 2.0
    assert Report("b", 5 * SECOND_US).age_s(4 * SECOND_US) == 0.0


_AGE = "cellfeed_backup_recovery_point_age_seconds"


@pytest.mark.parametrize(
    ("backups", "says"),
    [
        ([BackupsConfig("b", every_s=1)], "86400 increments onto one full backup"),
        ([BackupsConfig("b", keep_days=1)], "lower full_every_s below keep_days"),
        ([BackupsConfig("b", "a"), BackupsConfig("b", "c")], "two processes take backups into b"),
        ([BackupsConfig("b", "worker")], "'worker' is given twice"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(
    backups: Sequence[BackupsConfig], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        check_config(Config(backups=list(backups)))
