"""Processes that back the datastore up on a schedule."""

from __future__ import annotations

from contextlib import ExitStack

from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, process_kind
from cellfeed.store.backups.due import Report
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.places.open import place_at


def names(config: Config) -> list[str]:
    return [each.name for each in config.backups]


@process_kind("backups", 70, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.background import beside
    from cellfeed.assembly.backup_source import backup_source
    from cellfeed.assembly.binlog_archivers import RecoveryReport, binlog_archivers
    from cellfeed.store.backups.schedule import BackupSchedule

    directory, config, name, stop = process[:4]
    backups = next(each for each in config.backups if each.name == name)
    with ExitStack() as opened:
        source = opened.enter_context(backup_source(config, directory.path))

        def say(now: Report) -> None:
            directory.say_recovery(name, now)
            process.health.stopped_work([now.error] if now.error else [])

        report = RecoveryReport(say)
        schedule = BackupSchedule(
            BackupFolder(place_at(backups.directory, directory.inside)),
            source,
            backups.policy(),
            report.backups,
        )
        history = source().engine.history
        for cluster, archiver in opened.enter_context(
            binlog_archivers(config, backups, directory, history, report)
        ):
            opened.enter_context(beside(f"binlogs-{cluster}", archiver.run, stop))
        with beside("backup-schedule", schedule.run, stop):
            process.say_ready()
            stop.wait()
