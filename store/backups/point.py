"""A datastore as it was at a point in time, out of two backups of one history.

**A point in time.** A shard's cells have times that never go back (E4): the later of its master's
clock and the time of the cell before. The restored log of a shard ends before the first cell that
is later than the point. So it is a prefix of the log, also where a clock went back, and every cell
at or before the point is in it. Each shard goes by the clock of its own master.

    before    the last backup that began at or before the point and has no cell later than it. The
              state is its state: offsets, parked cells, definitions of indexes, users. So nothing
              in the state is later than the point, and no offset lies beyond the end of a log.
    behind    the first backup that began at or after the point, by a clock that was not ahead. It
              has the cells between the other's ends and the point.

Both need not be of one chain. Where ``behind`` does not stand on ``before``, each shard's log in it
must have the very cell that ``before`` ends with; a trimmed one proves nothing, and others must.

**Trims.** A log begins where it does in ``behind``, for trimmed cells may have been put again
before the point. Where the history of trims has one behind the point that explains this, the log
begins where ``before`` and the earlier trims say. Where such a trim took cells that ``before`` has
not yet, the log ends with ``before``; where ``before`` has none at all, it begins behind them.
:attr:`Point.trimmed` has the ids that are missing.

**Erasures** know no point in time: rows in the register are erased, however late the erasure came.
**Leader epochs** that begin at or below the end of the restored log come back; the new one is drawn
above all that any backup has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import msgspec

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.base import witness_of
from cellfeed.store.backups.check import dictionaries_known, read_segment
from cellfeed.store.backups.covering import Covered
from cellfeed.store.backups.manifest import BackedLog
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import ProtectData


class Trim(NamedTuple):
    """That a shard's log was to begin at ``below``, by an order given at ``at_us``."""

    shard: int
    below: int
    at_us: int


@dataclass(frozen=True)
class Point:
    """``chain``: the backups that have the cells. ``backup``: the point as if it were a backup: its
    manifest has the ends of the logs. ``trimmed``: by shard the first and the last id that a trim
    took after the point and before a backup had them."""

    chain: Sequence[Backup]
    state_of: Backup
    backup: Backup
    trimmed: Mapping[int, tuple[int, int]]


def point_in_time(covered: Covered, trims: Iterable[Trim]) -> Point:
    """``trims``: the history of trims as the state of ``behind`` has it. The files of all backups
    must have been checked. Raises ProtectData for backups that are not of one log, DataDamaged."""
    before, behind = covered.before.manifest, covered.behind.manifest
    ends = {log.shard: log for log in behind.logs}
    logs, trimmed, columns = list[BackedLog](), dict[int, tuple[int, int]](), set[str]()
    ordered, proofs = list(trims), list[bool]()
    with dictionaries_known(covered.chain):
        for log in before.logs:
            end = ends[log.shard]
            began = _log_start(
                log, end, [each for each in ordered if each.shard == log.shard], covered.at_us
            )
            missing = range(max(began, log.watermark), end.log_start)
            if missing:
                trimmed[log.shard] = missing[0], missing[-1]
                if began < log.watermark:
                    logs.append(msgspec.structs.replace(log, log_start=began))
                    continue
            begin = end.log_start if missing else began
            cells = _Behind(covered, log, max(begin, log.watermark))
            columns |= cells.columns
            if begin < log.watermark:
                proofs.append(cells.proof(end))
            logs.append(
                BackedLog(
                    log.shard,
                    begin,
                    cells.next_id,
                    cells.last_created_at_us,
                    [epoch for epoch in end.epochs if epoch[1] <= cells.next_id],
                )
            )
    if proofs and not any(proofs):
        raise ProtectData(
            f"nothing restored: no cell that ends backup {before.name} is left in"
            f" {behind.name}, so nothing shows whether they are of one store. Restore one of them"
            " as a whole, with --backup"
        )
    manifest = msgspec.structs.replace(
        behind,
        logs=logs,
        columns=[*before.columns, *sorted(columns - set(before.columns))],
        readers=before.readers,
        owners=before.owners,
        state_revision=max(before.state_revision, behind.state_revision),
    )
    digest = sha256(
        f"{covered.before.sha256} {covered.behind.sha256} {covered.at_us}".encode()
    ).hexdigest()
    backup = replace(covered.behind, manifest=manifest, sha256=digest)
    return Point(covered.chain, covered.before, backup, trimmed)


class _Behind:
    """The cells of one log that come behind ``before``, up to the point. ``next_id``: behind the
    last of them."""

    def __init__(self, covered: Covered, log: BackedLog, begin: int) -> None:
        self._covered, self._log = covered, log
        self._proof = ""
        self.next_id = begin
        self.last_created_at_us = log.last_created_at_us
        self.columns = set[str]()
        for backup in covered.fresh:
            for segment in backup.manifest.segments:
                if segment.shard != log.shard or segment.below_id < log.watermark:
                    continue
                for cells in read_segment(backup, segment):
                    if not self._take(cells):
                        return

    def _take(self, cells: Sequence[StoredCell]) -> bool:
        """Whether the point lies behind all of them."""
        for cell in cells:
            if cell.added_id == self._log.watermark - 1:
                encrypted = self._covered.before.manifest.is_encrypted
                self._proof = witness_of(cell, encrypted=encrypted)
            if cell.added_id < self.next_id:
                continue
            if cell.created_at_us > self._covered.at_us:
                return False
            self.next_id = cell.added_id + 1
            self.last_created_at_us = cell.created_at_us
            self.columns.add(cell.column_name)
        return True

    def proof(self, end: BackedLog) -> bool:
        """Whether the cells are proven to continue those of ``before``; where the cell that it ends
        with was trimmed, nothing is. Raises ProtectData where another one is in its place."""
        before, behind = self._covered.before, self._covered.behind
        if not self._covered.fresh or self._covered.fresh[0].manifest.onto == before.name:
            return True  # proven when the increment was taken
        is_there = end.log_start < self._log.watermark
        if end.watermark < self._log.watermark or (is_there and self._proof != self._log.witness):
            raise ProtectData(
                f"nothing restored: in shard {self._log.shard} backup {behind.name} does not have"
                f" the cell {self._log.watermark - 1} that backup {before.name} ends with: the"
                " store was put back from a copy between them. Restore one of them as a whole,"
                " with --backup"
            )
        return is_there or (
            (end.watermark, end.last_created_at_us)
            == (self._log.watermark, self._log.last_created_at_us)
        )


def _log_start(log: BackedLog, end: BackedLog, trims: Sequence[Trim], at_us: int) -> int:
    """Where the log began at the point: see the module."""
    if not any(each.at_us > at_us and each.below >= end.log_start for each in trims):
        return end.log_start
    earlier = [each.below for each in trims if each.at_us <= at_us]
    return min(max([log.log_start, *earlier]), end.log_start)
