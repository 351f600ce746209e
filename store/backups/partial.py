"""Puts the cells of one shard, or of one row, from a backup into a store that lacks them. The store
stays in use meanwhile.

Each cell goes through the ordinary guarded put: it gets a new added_id and a new ``created_at``,
and followers of the log see it as a new cell. A cell that the store has with the same body is
counted; one with another body is named. Nothing is overwritten. A backup holds the cells that a
whole restore of it brings back: those from the log start that it ended with.

**Rows that were erased are left out** (:class:`ErasedRows`,
:func:`~cellfeed.store.backups.erasures.erased_in_folder`). Six places record an erasure. In the
store they are its state table and the log's own cell; in the folder the register and the manifests;
in the backup its state and its cells. One of them is enough, even for a row put again since.

**The log's own cells are left out**: those that mark an erasure, and those that name ids that a
restore left out. They name places of another log.

Cells are read from the backup's files, compared and put in memory, a batch at a time. No file is
made, so a killed process leaves nothing for an erasure to remove. After a kill or an error, the
same call begins again: it finds the cells that it has put, with the same bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import check_whole, dictionaries_known, read_segment
from cellfeed.store.backups.erased_rows import ErasedRows, read_all
from cellfeed.store.backups.manifest import Segment
from cellfeed.store.backups.part_report import Report, count
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_codec import decode_body, is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, RESTORED_COLUMN, NewCell, StoredCell
from cellfeed.store.cells.put_result import Outcome, PutResult, conflict_error, refused_as_erased
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.errors import CellfeedError, DataDamaged, ProtectData, Unavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import BATCH_BYTES_MAX

declare("restore.part.compared", "restore.part.put")

PART_BATCH_CELLS: Final = 1_000
"""Cells that are compared and put together: as many as `cellfeed load` puts in a call."""


OnProgress = Callable[[int, int], None]
"""Is called with the cells of the backup's log that were read, and with all of them."""


class Part(NamedTuple):
    """The part of a backup: a shard, and of it one row alone where ``row_key`` is given."""

    shard: int
    row_key: bytes | None = None

    def has(self, cell: StoredCell) -> bool:
        return self.row_key in (None, cell.row_key)


class Store(Protocol):
    """A datastore in process."""

    @property
    def engine(self) -> Engine: ...

    def put_new_cells(self, cells: Sequence[NewCell]) -> list[PutResult]: ...


def restore_part(
    store: Store,
    chain: Sequence[Backup],
    part: Part,
    erased: set[bytes],
    dry_run: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> Report:
    """Does it. ``chain``: a full backup and its increments, whose files were checked. ``erased``:
    row keys that the folder knows to be erased. Raises ProtectData for a row that was erased,
    DataDamaged for a backup that is damaged or incomplete, Unavailable: call it again then."""
    check_whole(chain)
    report = Report()
    rows = ErasedRows(store.engine, part.shard, erased)
    if part.row_key is not None and rows.among({part.row_key}):
        raise ProtectData(
            f"nothing restored: row {UUID(bytes=part.row_key)} was erased. No restore puts it back"
        )
    segments = [
        (backup, segment)
        for backup in chain
        for segment in backup.manifest.segments
        if segment.shard == part.shard
    ]
    [log_start] = [log.log_start for log in chain[-1].manifest.logs if log.shard == part.shard]
    total = sum(segment.cells for _, segment in segments)
    on_progress(0, total)
    with dictionaries_known(chain):
        for done, cells in _batches(segments, part, log_start):
            if not _restore_batch(store, cells, rows, report, dry_run=dry_run):
                report.not_reached = total - done
                break
            on_progress(done, total)
    return report


def _batches(
    segments: Sequence[tuple[Backup, Segment]], part: Part, log_start: int
) -> Iterator[tuple[int, list[tuple[StoredCell, bytes]]]]:
    """Cells of the part with their bodies as JSON, some at a time; and how many cells of the log
    were read until then."""
    done = size = 0
    batch: list[tuple[StoredCell, bytes]] = []
    for backup, segment in segments:
        for cells in read_segment(backup, segment):
            for cell in cells:
                done += 1
                if cell.added_id < log_start or not part.has(cell):
                    continue
                body_json = decode_body(cell.body)
                if batch and size + len(body_json) > BATCH_BYTES_MAX:
                    yield done - 1, batch
                    batch, size = [], 0
                batch.append((cell, body_json))
                size += len(body_json)
                if len(batch) == PART_BATCH_CELLS:
                    yield done, batch
                    batch, size = [], 0
    yield done, batch


def _restore_batch(
    store: Store,
    cells: Sequence[tuple[StoredCell, bytes]],
    rows: ErasedRows,
    report: Report,
    *,
    dry_run: bool,
) -> bool:
    """Whether the store answered."""
    erased = rows.among({cell.row_key for cell, _ in cells})
    wanted = list[NewCell]()
    for cell, body_json in cells:
        if cell.column_name == ERASED_COLUMN or _reports_a_restore(cell, body_json):
            report.log_own += 1
        elif cell.row_key in erased or is_erased(cell.body):
            report.erased += 1
        else:
            wanted.append(NewCell(cell.row_key, cell.column_name, cell.ref_key, body_json))
    lacking = list[NewCell]()
    for new, found in zip(wanted, _compared(store.engine, wanted), strict=True):
        if found is None:
            lacking.append(new)
        else:
            count(report, new, found)
    failpoint("restore.part.compared")
    if dry_run:
        report.stored += len(lacking)
        return True
    results = _put(store, lacking)
    for new, result in zip(lacking, results, strict=True):
        count(report, new, result)
    failpoint("restore.part.put")
    return not any(isinstance(result.error, Unavailable) for result in results)


def _compared(engine: Engine, cells: Sequence[NewCell]) -> list[PutResult | None]:
    """The result that a put of each cell would have; None where the store lacks it."""
    try:
        found = read_all(engine, [cell.triple for cell in cells])
        return [_as_put(cell, each) for cell, each in zip(cells, found, strict=True)]
    except DataDamaged as error:
        if len(cells) == 1:
            return [PutResult(Outcome.FAILED, None, error=error)]
        # One of them is damaged in the store. The others are none the worse for it.
        return [each for cell in cells for each in _compared(engine, [cell])]


def _as_put(cell: NewCell, found: LocatedCell | None) -> PutResult | None:
    if found is None:
        return None
    added_id = found.cell.added_id
    if is_erased(found.cell.body):
        return refused_as_erased(cell, found.shard)
    if decode_body(found.cell.body) == cell.body_json:
        return PutResult(Outcome.EXISTS, found.shard, added_id)
    error = conflict_error(cell, added_id)
    return PutResult(Outcome.CONFLICT, found.shard, error=error)


def _put(store: Store, cells: Sequence[NewCell]) -> list[PutResult]:
    if not cells:
        return []
    try:
        return store.put_new_cells(cells)
    except CellfeedError as error:
        return [PutResult.of_error(error, None) for _ in cells]


def _reports_a_restore(cell: StoredCell, body_json: bytes) -> bool:
    """Whether a restore wrote the cell: anybody may put a column of that name."""
    if cell.column_name != RESTORED_COLUMN or is_erased(cell.body):
        return False
    body = canonical_json.parse(body_json)
    return body.get("leader_epoch") == cell.ref_key and {"lost_from", "lost_to"} <= set(body)
