"""Processes that back the datastore up on a schedule."""

from __future__ import annotations

from functools import partial

from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, process_kind


def names(config: Config) -> list[str]:
    return [each.name for each in config.backups]


@process_kind("backups", 70, names)
def run(process: Process) -> None:
    from cellfeed.assembly.background import beside
    from cellfeed.assembly.backup_source import backup_source
    from cellfeed.store.backups.folder import BackupFolder
    from cellfeed.store.backups.places.open import place_at
    from cellfeed.store.backups.schedule import BackupSchedule

    directory, config, name, stop = process
    backups = next(each for each in config.backups if each.name == name)
    with backup_source(config, directory.path) as source:
        schedule = BackupSchedule(
            BackupFolder(place_at(backups.directory, directory.inside)),
            source,
            backups.policy(),
            partial(directory.say_recovery, name),
        )
        with beside("backup-schedule", schedule.run, stop):
            process.say_ready()
            stop.wait()
