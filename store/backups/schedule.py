"""Takes backups on a schedule, for as long as a process runs: increments, and a full one every so
often. Prunes the folder by the declared time.

Everything is decided from the folder (:mod:`cellfeed.store.backups.due`), so a process that was
killed has nothing to remember: the next run removes the rest of its backup. Each look is reported
(:class:`~cellfeed.store.backups.due.Report`).

**A failure ends nothing.** It is logged with its reason, and tried again after a pause that doubles
up to ``RETRY_MAX_S``. The store does not notice: a backup only reads. Where a store refuses an
increment on the recovery point, a full backup is taken. A store refuses one when its files are an
earlier copy, or when all cells that prove its history were trimmed.

A stop ends the backup under way within a piece of some thousand cells. The rest of it is removed at
once; of one that was killed, with the next backup.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.binlogs.covered import remove_superfluous, superfluous
from cellfeed.store.backups.create import create
from cellfeed.store.backups.due import (
    Policy,
    RecoveryState,
    Report,
    due_in_s,
    is_full_due,
    recovery_state_of,
)
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.prune import decide, remove
from cellfeed.store.backups.taking import Source
from cellfeed.store.errors import CellfeedError, ProtectData, Unavailable

RETRY_FIRST_S: Final = 2.0
RETRY_MAX_S: Final = 300.0
"""Between a failure and the next attempt, in seconds: soon after a cluster that was away for a
moment, seldom where each attempt reads a whole store."""

PRUNE_EVERY_S: Final = 3_600.0
"""Between two prunes, in seconds, where no full backup was taken between them: a prune that removes
something first reads the newest backup."""

_log: Final = logging.getLogger("cellfeed.backups")


class BackupSchedule:
    """``source`` is asked for each backup: offsets and the shard map are those of its beginning.
    ``report`` is called after each look at the folder and each failure."""

    def __init__(
        self,
        folder: BackupFolder,
        source: Callable[[], Source],
        policy: Policy,
        report: Callable[[Report], object],
    ) -> None:
        self._folder = folder
        self._source = source
        self._policy = policy
        self._report = report
        self._report_was = Report()
        self._reported: set[str] = set()
        self._pruned_at_s = float("-inf")

    def run(self, stop: threading.Event) -> None:
        """Takes backups until ``stop`` is set. Raises neither CellfeedError nor OSError."""
        retry_s = RETRY_FIRST_S
        while not stop.is_set():
            try:
                wait_s = self._turn(stop)
                retry_s = RETRY_FIRST_S
            except (CellfeedError, OSError) as error:
                if stop.is_set():
                    return
                wait_s, retry_s = retry_s, min(2 * retry_s, RETRY_MAX_S)
                _log.error(
                    "the backup into %s failed, and is tried again in %g s: %s",
                    self._folder.place,
                    wait_s,
                    error,
                )
                self._say(msgspec.structs.replace(self._report_was, error=str(error)))
            stop.wait(wait_s)

    def _turn(self, stop: threading.Event) -> float:
        """Takes a backup where one is due. Returns after how many seconds the next one is."""
        source = self._source()
        recovery = recovery_state_of(self._folder, source.engine)
        wait_s = due_in_s(recovery, self._policy, source.engine.state.now_us())
        self._report_state(recovery, "" if wait_s > 0 else self._report_was.error)
        if wait_s > 0:
            return wait_s
        made = self._take(source, recovery, stop)
        recovery = recovery_state_of(self._folder, source.engine)
        self._report_state(recovery, "")
        self._drop_binlogs(source)
        self._prune(source, made)
        return due_in_s(recovery, self._policy, source.engine.state.now_us())

    def _report_state(self, recovery: RecoveryState, error: str) -> None:
        for name, reason in recovery.passed_over.items():
            if name not in self._reported:
                _log.error("backup %s is damaged, and none is taken onto it: %s", name, reason)
        self._reported = set(recovery.passed_over)
        point = recovery.recovery_point
        self._say(
            Report(
                point.name if point is not None else None,
                point.manifest.created_at_us if point is not None else None,
                error,
                dict(recovery.passed_over),
            )
        )

    def _take(self, source: Source, recovery: RecoveryState, stop: threading.Event) -> Backup:
        onto = (
            None
            if is_full_due(recovery, self._policy, source.engine.state.now_us())
            else recovery.recovery_point
        )
        if onto is not None:
            try:
                return self._create(source, onto, stop)
            except ProtectData as error:
                _log.warning("a full backup is taken instead of an increment: %s", error)
        return self._create(source, None, stop)

    def _create(self, source: Source, onto: Backup | None, stop: threading.Event) -> Backup:
        def go_on(_done: int, _total: int) -> None:
            if stop.is_set():
                raise Unavailable("no backup taken: the process was asked to stop")

        began_s = time.monotonic()
        made = create(
            self._folder,
            source,
            onto=onto,
            recipients=self._policy.recipients,
            cells_per_s=self._policy.cells_per_s,
            on_progress=go_on,
        )
        _log.info(
            "backup %s %s: %d cells in %d bytes, %.1f s",
            made.place,
            f"onto {onto.name}" if onto is not None else "(full)",
            made.manifest.cells,
            made.manifest.bytes,
            time.monotonic() - began_s,
        )
        return made

    def _prune(self, source: Source, made: Backup) -> None:
        """Removes backups that are older than the declared time. A failure is logged: the backup is
        taken."""
        keep_days, now_s = self._policy.keep_days, time.monotonic()
        is_full = made.manifest.onto is None
        if keep_days is None or not (is_full or now_s - self._pruned_at_s >= PRUNE_EVERY_S):
            return
        self._pruned_at_s = now_s
        engine = source.engine
        try:
            with self._folder.locked():
                decision = decide(self._folder, keep_days, engine.state.now_us(), engine.datastore)
                remove(self._folder, decision.goes)
        except CellfeedError as error:
            _log.error("%s is not pruned: %s", self._folder.place, error)
            return
        if decision.goes:
            _log.info("removed from %s: %s", self._folder.place, ", ".join(map(str, decision.goes)))

    def _drop_binlogs(self, source: Source) -> None:
        """Removes archived binlogs that backups have made superfluous. A failure is logged."""
        try:
            with self._folder.locked():
                decided = superfluous(self._folder, source.engine.datastore)
                remove_superfluous(decided)
        except CellfeedError as error:
            _log.error("archived binlogs stay in %s: %s", self._folder.place, error)

    def _say(self, report: Report) -> None:
        self._report_was = report
        try:
            self._report(report)
        except OSError as error:  # the disk of reports is not the one of backups
            _log.error("where the backups stand cannot be reported: %s", error)
