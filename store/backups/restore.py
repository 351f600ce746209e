"""Brings a backup back into empty storage, so that no id that anybody was shown is ever given to
another cell.

**A restored log** (E22, E23). The cells of the backup, byte for byte, under their own ids, from its
log start to its watermark. Where new ids begin:

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
differ in how they do this, and in their state after a kill:

    SQLite   (store/backups/into_sqlite.py)   made beside its place, and renamed there at the end.
             Killed: it starts over.
    MariaDB  (store/backups/into_clusters.py)         a cluster without a role. Killed: it continues
                                                      where the counters say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import (
    dictionaries_known,
    read_segment,
)
from cellfeed.store.backups.manifest import Segment
from cellfeed.store.backups.restore_plan import Plan
from cellfeed.store.backups.restore_target import LogReader, Target
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.errors import DataDamaged
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import SCAN_CELLS_MAX

declare(
    "restore.after_begin", "restore.after_load", "restore.after_complete", "restore.before_open"
)


_SCAN_CELLS: Final = min(5_000, SCAN_CELLS_MAX)

OnProgress = Callable[[int, int], None]
"""Gets how many cells have been loaded and read back, and of how many (each counts twice)."""


def restore(
    plan: Plan,
    target: Target,
    on_progress: OnProgress = lambda *_: None,
    before_open: Callable[[], None] = lambda: None,
) -> list[bytes]:
    """Does it. ``before_open`` is called when all is there and was read back: for steps that must
    be done elsewhere before anybody uses it. Returns the row keys that are to be erased by hand:
    storage that a killed run has opened is left as it is. Raises ProtectData for storage that is
    not empty, DataDamaged for a backup or a target that is damaged or incomplete, Unavailable: run
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
    """The restored part of a piece of a log: its cells from ``from_id`` up to, not including,
    ``below_id``."""

    backup: Backup
    segment: Segment
    from_id: int
    below_id: int

    @property
    def is_whole(self) -> bool:
        return (self.from_id, self.below_id) == (self.segment.from_id, self.segment.below_id)


def _pieces(plan: Plan) -> Iterator[_Piece]:
    """Every piece of every log; those of one log in the order of their ids. Left out of a piece are
    cells trimmed before the last backup, cells of an earlier piece, and cells behind the log's
    end."""
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
