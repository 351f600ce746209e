"""Brings a backup back into empty storage, so that no id that anybody was shown is ever given to
another cell.

**What a restored log is** (E22, E23). The cells of the backup, byte for byte, under their own ids,
from its log start to its watermark. Where new ids begin:

    nobody is known to have read beyond the backup    at the watermark, as if nothing had happened.
    somebody has, or may have (``new_ids``)           far above all that anybody was shown. The ids
                                                      between are given to nobody.

In either case the log continues under a leader epoch that is drawn, at least ``EPOCHS_LEFT_OUT``
above every known one (:mod:`cellfeed.store.backups.epochs`). So no epoch is used a second time that
a promotion after the backup, or another restore of it, may have raised. The new epoch begins at the
watermark: OffsetForLeaderEpoch reports to a Kafka client that has read beyond it where its log was
cut off.

**How a log shows ids that are left out.** The first new id belongs to a cell of column
``RESTORED``: it says which ids were lost, when and why. It is written with the counters in one
transaction: so at every moment the watermark lies at the end of the backup or behind that cell,
never between. A scan or a fetch always finds a cell behind the ids left out, and so continues from
any location. Every reader of the whole log finds the report of the loss in the place of the loss.

**Rows that were erased since**, as later backups show (:mod:`cellfeed.store.backups.erasures`), get
a cell that marks the erasure. It lies at the end of the log, behind all others. The step that opens
the storage removes their bodies, as it does where the backup itself marks an erasure: nobody ever
reads them.

**Empty storage only.** Where a cell was ever written, nothing is done. Nobody opens the storage
before all of it is there and was read back: each piece of a log has the digest that it had when it
was backed up. A run may be killed after it has opened a part of the storage. That part is in use
since, and may have other digests: rows were erased in it, at the latest when it was opened, or its
front was trimmed. The next run does not read it back again, and opens the rest. A backup made since
may record the erasure of a row there: the next run names that row, and leaves it. The targets
differ in how they do this, and in what a kill leaves:

    SQLite   (store/backups/into_sqlite.py)   made beside its place, and renamed there at the end.
             Killed: it starts over.
    MariaDB  (store/backups/into_clusters.py)         a cluster without a role. Killed: it continues
                                                      where the counters say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from uuid import NAMESPACE_URL, UUID, uuid5

from cellfeed.store.backups.check import (
    chain_dictionaries,
    check_whole,
    dictionaries_known,
    read_segment,
)
from cellfeed.store.backups.epochs import epoch_of_next_history
from cellfeed.store.backups.folder import Backup
from cellfeed.store.backups.manifest import BackedLog, BackedTurn, Reader, Segment
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_codec import ERASED_BODY, decode_body, encode_body
from cellfeed.store.cells.cell import ERASED_COLUMN, RESTORED_COLUMN, StoredCell, moment
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.state_limits import revision_of_next_history
from cellfeed.store.erasures import done_entry
from cellfeed.store.errors import DataDamaged, ProtectData
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import NO_HISTORY, History
from cellfeed.store.limits import ADDED_ID_MAX, SCAN_CELLS_MAX

declare(
    "restore.after_begin", "restore.after_load", "restore.after_complete", "restore.before_open"
)

IDS_LEFT_OUT: Final = 100_000
"""Ids that are left out above the highest location that any reader has saved. A reader is ahead of
its saved location by the records that it handles until it saves again: with Kafka's clients 5 s, at
20,000 records a second of one partition. More would cost readers: a gateway sends empty batches for
unused ids, 15 ms of work for so many."""

_NAMED_MAX: Final = 10
_KEYS_AT_A_TIME: Final = 4_096
_SCAN_CELLS: Final = min(5_000, SCAN_CELLS_MAX)

OnProgress = Callable[[int, int], None]
"""Gets how many cells have been loaded and read back, and of how many (each counts twice)."""


class RestoredLog(NamedTuple):
    """A log as it is to be. ``epochs``: with the new one. ``note``: the cell behind the ids that
    are left out; None where none are. ``erased``: the cells that mark erasures which only later
    backups know, behind all others."""

    shard: int
    log_start: int
    end: int
    last_created_at_us: int
    epochs: list[tuple[int, int]]
    note: StoredCell | None
    erased: Sequence[StoredCell] = ()

    @property
    def added(self) -> list[StoredCell]:
        """The cells that the restore itself writes, by added_id."""
        return [*([] if self.note is None else [self.note]), *self.erased]

    @property
    def next_added_id(self) -> int:
        return self.added[-1].added_id + 1 if self.added else self.end


@dataclass(frozen=True)
class Plan:
    """What a restore does. ``chain``: the backups that have the cells; ``backup``: the one that it
    restores, the last of them but for a point in time. ``state``: the entries that come back, keys
    and values. ``parent``: the history that was backed up, empty where the backup does not say."""

    backup: Backup
    chain: Sequence[Backup]
    epoch: int
    logs: Mapping[int, RestoredLog]
    state: Sequence[tuple[str, bytes]]
    state_revision: int
    dictionaries: Sequence[Dictionary]
    turns: Sequence[BackedTurn]
    columns: Sequence[str]
    parent: History = NO_HISTORY

    @property
    def erased(self) -> list[bytes]:
        """Row keys of the rows that the restore erases."""
        return [cell.row_key for log in self.logs.values() for cell in log.erased]

    @property
    def lost(self) -> dict[int, tuple[int, int]]:
        """By shard the first and the last of the ids that are left out."""
        return {
            shard: (log.end, log.note.added_id - 1)
            for shard, log in self.logs.items()
            if log.note is not None
        }


class LogReader(Protocol):
    """What a restored log is read back with."""

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]: ...


class Target(Protocol):
    """Storage that is restored into, by one process at a time."""

    def begun_epoch(self, backup: Backup) -> int | None:
        """The leader epoch of an unfinished restore of this backup, which must keep it; None where
        a restore begins. Raises Unavailable."""
        ...

    def begun_history(self, backup: Backup) -> str:
        """The id of the history that an unfinished restore of this backup has begun; empty where
        none was. Raises Unavailable."""
        ...

    def begin(self, plan: Plan) -> None:
        """Makes sure that it is empty, or half-restored from the same backup, and that nobody opens
        it; then writes the dictionaries. Raises ProtectData."""
        ...

    def loaded(self, shard: int) -> int:
        """The id that is to be loaded next; 0 when none was."""
        ...

    def load(self, shard: int, cells: Sequence[StoredCell]) -> None:
        """The next cells of a log, in order."""
        ...

    def complete(self, plan: Plan) -> None:
        """Counters, epochs, columns, notes, and the state."""
        ...

    def reader(self) -> AbstractContextManager[LogReader]:
        """Reads what is there now."""
        ...

    def open(self) -> None:
        """From now on it is a datastore like any other."""
        ...

    def is_open(self, shard: int) -> bool:
        """Whether the shard was opened by an earlier run, which was killed before it had opened
        all. It was whole and read back then, and has been used since: puts, trims and erasures are
        as they should be."""
        ...

    def not_erased(self, plan: Plan) -> list[bytes]:
        """Row keys that the plan erases, and that the storage still has, for their shard was opened
        before a backup told of it."""
        ...


def readers_ahead(chain: Sequence[Backup], readers: Sequence[Reader]) -> list[Reader]:
    """Those who have read what the backup does not have, the furthest ahead first."""
    ends = {log.shard: log.watermark for log in chain[-1].manifest.logs}
    ahead = [reader for reader in readers if reader.location > ends.get(reader.shard, ADDED_ID_MAX)]
    return sorted(ahead, key=lambda reader: (ends[reader.shard] - reader.location, reader.name))


def backup_readers(later: Sequence[Backup]) -> list[Reader]:
    """Later backups of the same datastore as readers: each id that one of them has was shown."""
    return [
        Reader(
            each.name,
            each.manifest.datastore,
            log.shard,
            log.watermark,
            max((epoch for epoch, _ in log.epochs), default=-1),
            "backup",
        )
        for each in later
        for log in each.manifest.logs
    ]


def refuse_readers_ahead(chain: Sequence[Backup], ahead: Sequence[Reader]) -> None:
    """Raises ProtectData when there are any."""
    if not ahead:
        return
    named = "; ".join(map(str, ahead[:_NAMED_MAX])) + (
        f"; and {len(ahead) - _NAMED_MAX} more" if len(ahead) > _NAMED_MAX else ""
    )
    ends = ", ".join(
        f"{log.shard}:{log.watermark}"
        for log in chain[-1].manifest.logs
        if log.shard in {reader.shard for reader in ahead[:_NAMED_MAX]}
    )
    raise ProtectData(
        f"nothing restored: backup {chain[-1].name} ends at {ends}, and readers have come further:"
        f" {named}. Restore a newer backup; or, if what lies between is lost for good, let the ids"
        " continue above what they have read: --readers-ahead raise-epoch"
    )


def plan(
    chain: Sequence[Backup],
    state: Sequence[tuple[str, bytes]],
    readers: Sequence[Reader],
    new_ids: Mapping[int, int],
    now_us: int,
    why: str,
    erased: Mapping[int, Sequence[bytes]] | None = None,
    begun_epoch: int | None = None,
    point: Backup | None = None,
) -> Plan:
    """``new_ids``: by shard an id that is higher than all that anybody was shown, where the log
    must not continue at its end. ``why``: the reason that the log's note gives. ``erased``: by
    shard the rows that were erased since (:mod:`cellfeed.store.backups.erasures`). ``begun_epoch``:
    that of an unfinished restore, as the target reports it. ``point``: a point in time as a backup
    (:mod:`cellfeed.store.backups.point`). Raises ProtectData where no leader epoch of Kafka is
    left."""
    backup = chain[-1] if point is None else point
    told = backup.manifest
    check_whole(chain, told.logs)
    known = [epoch for log in told.logs for epoch, _ in log.epochs] + [
        reader.leader_epoch for reader in readers
    ]
    epoch = epoch_of_next_history(max(known, default=0)) if begun_epoch is None else begun_epoch
    wanted = [log.shard for log in told.logs if new_ids.get(log.shard, 0) > log.watermark]
    keys = _row_keys(told.datastore, epoch, told.shards, wanted)
    logs = {}
    for log in told.logs:
        note = (
            _note(log, keys[log.shard], epoch, new_ids[log.shard], now_us, backup.name, why)
            if log.shard in keys
            else None
        )
        first = log.watermark if note is None else note.added_id + 1
        at_us = max(now_us, log.last_created_at_us)
        entries = [
            StoredCell(first + n, row_key, ERASED_COLUMN, 0, at_us, ERASED_BODY)
            for n, row_key in enumerate((erased or {}).get(log.shard, ()))
        ]
        logs[log.shard] = RestoredLog(
            log.shard,
            log.log_start,
            log.watermark,
            at_us if note is not None or entries else log.last_created_at_us,
            [*log.epochs, (epoch, log.watermark)],
            note,
            entries,
        )
    added = [*([RESTORED_COLUMN] if keys else []), *([ERASED_COLUMN] if erased else [])]
    columns = [*told.columns, *(name for name in added if name not in told.columns)]
    revision = revision_of_next_history(told.state_revision)
    done = dict(
        done_entry(UUID(bytes=cell.row_key), cell.added_id, cell.created_at_us)
        for log in logs.values()
        for cell in log.erased
    )
    kept = [*((key, value) for key, value in state if key not in done), *done.items()]
    return Plan(
        backup,
        chain,
        epoch,
        logs,
        kept,
        revision,
        chain_dictionaries(chain),
        told.turns,
        columns,
        told.history,
    )


def restore(
    plan: Plan,
    target: Target,
    on_progress: OnProgress = lambda *_: None,
    before_open: Callable[[], None] = lambda: None,
) -> list[bytes]:
    """Does it. ``before_open`` is called when all is there and was read back: for what has to be
    done elsewhere before anybody uses it. Returns the row keys that are to be erased by hand: what
    a run that was killed has opened is left as it is. Raises ProtectData for storage that is not
    empty, DataDamaged for a backup or a target that does not hold what it should, Unavailable: run
    it again then."""
    pieces = list(_pieces(plan))
    steps = _Steps(on_progress, 2 * sum(piece.segment.cells for piece in pieces))
    target.begin(plan)
    failpoint("restore.after_begin")
    with dictionaries_known(plan.chain):
        for piece in pieces:
            shard = piece.segment.shard
            if target.is_open(shard):
                steps.advance(2 * piece.segment.cells)
                continue
            ids = range(max(piece.from_id, target.loaded(shard)), piece.below_id)
            for cells in read_segment(piece.backup, piece.segment):
                if new := [cell for cell in cells if cell.added_id in ids]:
                    target.load(shard, new)
                steps.advance(len(cells))
            failpoint("restore.after_load")
        target.complete(plan)
        failpoint("restore.after_complete")
        with target.reader() as reader:
            for piece in pieces:
                if not target.is_open(piece.segment.shard):
                    _compare(reader, piece)
                    steps.advance(piece.segment.cells)
    before_open()
    failpoint("restore.before_open")
    target.open()
    return target.not_erased(plan)


class _Steps:
    """How far it is."""

    def __init__(self, on_progress: OnProgress, total: int) -> None:
        self._on_progress = on_progress
        self._total = total
        self._done = 0
        on_progress(0, total)

    def advance(self, cells: int) -> None:
        self._done += cells
        self._on_progress(self._done, self._total)


class _Piece(NamedTuple):
    """What is restored of a piece of a log: its cells from ``from_id`` up to, not including,
    ``below_id``."""

    backup: Backup
    segment: Segment
    from_id: int
    below_id: int

    @property
    def is_whole(self) -> bool:
        return (self.from_id, self.below_id) == (self.segment.from_id, self.segment.below_id)


def _pieces(plan: Plan) -> Iterator[_Piece]:
    """Every piece of every log; those of one log in the order of their ids. Of a piece are left out
    what was trimmed before the last backup, what an earlier piece has, and what lies behind the
    log's end."""
    reached: dict[int, int] = {}
    for backup in plan.chain:
        for segment in backup.manifest.segments:
            log = plan.logs[segment.shard]
            begin = max(segment.from_id, log.log_start, reached.get(segment.shard, 0))
            below = min(segment.below_id, log.end)
            reached[segment.shard] = max(begin, below)
            yield _Piece(backup, segment, begin, max(begin, below))


def _compare(reader: LogReader, piece: _Piece) -> None:
    """Raises DataDamaged when the storage does not hold the cells of this piece."""
    if piece.from_id == piece.below_id:
        return
    segment, location = piece.segment, piece.from_id
    found = ShardDigest()
    while location < piece.below_id:
        cells = [
            cell
            for cell in reader.scan(segment.shard, location, _SCAN_CELLS)
            if cell.added_id < piece.below_id
        ]
        if not cells:
            break
        _feed(found, cells)
        location = cells[-1].added_id + 1
    expected, count = segment.digest, segment.cells
    if not piece.is_whole:
        part, ids = ShardDigest(), range(piece.from_id, piece.below_id)
        for cells in read_segment(piece.backup, segment):
            _feed(part, [cell for cell in cells if cell.added_id in ids])
        expected, count = part.hexdigest(), part.cells
    if (found.hexdigest(), found.cells) != (expected, count):
        raise DataDamaged(
            f"shard {segment.shard}: the storage holds {found.cells} cells from {piece.from_id} to"
            f" {piece.below_id - 1}, not the backup's {count}, by their digest. It was not"
            " opened: restore into other storage"
        )


def _feed(digest: ShardDigest, cells: Sequence[StoredCell]) -> None:
    for cell in cells:
        digest.add(
            cell.added_id, cell.row_key, cell.column_name, cell.ref_key, decode_body(cell.body)
        )


def _note(
    log: BackedLog, row_key: bytes, epoch: int, added_id: int, now_us: int, backup: str, why: str
) -> StoredCell:
    body = {
        "backup": backup,
        "leader_epoch": epoch,
        "lost_from": log.watermark,
        "lost_to": added_id - 1,
        "reason": why,
        "restored_at": moment(now_us).isoformat(),
        "shard": log.shard,
    }
    at_us = max(now_us, log.last_created_at_us)
    return StoredCell(
        added_id,
        row_key,
        RESTORED_COLUMN,
        epoch,
        at_us,
        encode_body(canonical_json.canonical(body)),
    )


def _row_keys(datastore: str, epoch: int, shards: int, wanted: Sequence[int]) -> dict[int, bytes]:
    """A row key of each of these shards, that nobody else makes."""
    found: dict[int, bytes] = {}
    left, number = set(wanted), 0
    while left:
        keys = [
            uuid5(NAMESPACE_URL, f"cellfeed restore {datastore} {epoch} {number + each}").bytes
            for each in range(_KEYS_AT_A_TIME)
        ]
        number += _KEYS_AT_A_TIME
        for key, shard in zip(keys, shards_of(keys, shards), strict=True):
            if shard in left:
                left.discard(shard)
                found[shard] = key
    return found
