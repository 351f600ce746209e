"""Writes logs into files of cells, each body decoded and digested on the way, and each id accounted
for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from cellfeed.store.backups.base import witness_of
from cellfeed.store.backups.block_file import (
    BLOCK_BYTES,
    ENCRYPTED_MAGIC,
    MAGIC,
    block_of,
    cells_payload,
)
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.erasures import erasures_of
from cellfeed.store.backups.manifest import BackedErasure, BackedFile, Segment
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import StoredCell, Triple
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.cells.log_gaps import GapCheck
from cellfeed.store.engines.contract.values import Head, LocatedCell, Replica
from cellfeed.store.errors import CellfeedError, DataDamaged, Trimmed
from cellfeed.store.limits import SCAN_CELLS_MAX

CELLS_FILE_BYTES: Final = 256 << 20
"""After so many bytes the next log begins a new file of cells: files that are copied, and checked,
in minutes each."""

_SCAN_CELLS: Final = min(5_000, SCAN_CELLS_MAX)
_BLOCK_CELLS: Final = 2_000

OnProgress = Callable[[int, int], None]
"""Is called with the number of ids that are done, and of all, after each piece."""


class Pace:
    """Reports the progress, and holds the reading back to so many cells a second."""

    def __init__(self, cells_per_s: float | None, on_progress: OnProgress, total: int) -> None:
        self._cells_per_s = cells_per_s
        self._on_progress = on_progress
        self._total = total
        self._done = 0
        self._begun_s = time.monotonic()
        self._cells = 0
        on_progress(0, total)

    def advance(self, ids: int, cells: int) -> None:
        self._done += ids
        self._cells += cells
        self._on_progress(self._done, self._total)
        if self._cells_per_s is not None:
            time.sleep(max(0.0, self._begun_s + self._cells / self._cells_per_s - time.monotonic()))


class BlockFile:
    """One file that is being written. ``recipients``: whom its blocks are encrypted to. ``bytes``:
    as far as it was written; blocks behind the last :meth:`end_piece` may wait."""

    def __init__(self, place: Place, name: str, recipients: Recipients | None = None) -> None:
        self._name = name
        self._recipients = recipients
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._file = place.create(name)
        self._sha256 = sha256()
        self.bytes = 0
        self._write(MAGIC if recipients is None else ENCRYPTED_MAGIC)

    def add(self, payload: bytes) -> None:
        """Adds a block."""
        block = block_of(payload)
        if self._recipients is None:
            self._write(block)
            return
        self._waiting.append(block)
        self._waiting_bytes += len(block)
        if self._waiting_bytes >= BLOCK_BYTES:
            self.end_piece()

    def end_piece(self) -> None:
        """Writes the added cells: another piece begins with a block of its own."""
        if self._recipients is not None and self._waiting:
            self._write(block_of(self._recipients.encrypt(b"".join(self._waiting))))
            self._waiting, self._waiting_bytes = [], 0

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._sha256.update(content)
        self.bytes += len(content)

    def finish(self) -> BackedFile:
        """Puts it on disk."""
        self.end_piece()
        self._file.finish()
        return BackedFile(self._name, self.bytes, self._sha256.hexdigest())


class LogSource(Protocol):
    """The source of a log: an :class:`~cellfeed.store.engines.contract.engine.Engine`, or cells of
    archived binlogs. ``heads`` is asked where the log was trimmed meanwhile, ``get`` for a better
    copy of a cell that is damaged."""

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]: ...

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]: ...

    def get(
        self, triples: Sequence[Triple], read_from: Replica = ...
    ) -> list[LocatedCell | None]: ...


class WrittenLog(NamedTuple):
    """The written part of a log. ``log_start``: where it begins by now; ``witness``: of the last
    cell, None where there was none to write."""

    log_start: int
    segment: Segment | None
    witness: str | None
    last_created_at_us: int


class LogWriter:
    """Writes logs, one after the other. ``recipients``: whom they are encrypted to."""

    def __init__(self, place: Place, pace: Pace, recipients: Recipients | None = None) -> None:
        self._place = place
        self._pace = pace
        self._recipients = recipients
        self._open: BlockFile | None = None
        self.files: list[BackedFile] = []
        self.erasures: list[BackedErasure] = []

    def write(self, engine: LogSource, shard: int, head: Head, below: int) -> WrittenLog:
        """A log from ``below``, or from its start, up to its watermark. Raises DataDamaged for a
        cell that is missing, and for a body that no node has whole."""
        log_start, location = head.log_start, max(head.log_start, below)
        if location >= head.watermark:
            return WrittenLog(log_start, None, None, head.last_created_at_us)
        file = self._file()
        begin, offset, digest, gaps = location, file.bytes, ShardDigest(), GapCheck(shard, location)
        last: StoredCell | None = None
        while location < head.watermark:
            try:
                found = engine.scan(shard, location, min(_SCAN_CELLS, head.watermark - location))
            except Trimmed:
                log_start = location = engine.heads([shard])[shard].log_start
                gaps.skip_to(location)
                continue
            cells, bodies_json = _whole(
                engine, shard, [cell for cell in found if cell.added_id < head.watermark]
            )
            for cell, body_json in zip(cells, bodies_json, strict=True):
                digest.add(cell.added_id, cell.row_key, cell.column_name, cell.ref_key, body_json)
            gaps.add_piece(cells, bodies_json)
            if not cells:
                gaps.end(head.watermark)
            if gaps.missing:
                raise DataDamaged(
                    f"no backup taken: {gaps}, though its log goes from {log_start} to"
                    f" {head.watermark - 1}. Look for them on the other nodes and in earlier"
                    " backups; `cellfeed verify` lists all that are missing"
                )
            last = cells[-1]
            self.erasures += erasures_of(shard, cells)
            for payload in _payloads(shard, cells):
                file.add(payload)
            self._pace.advance(last.added_id + 1 - location, len(cells))
            location = last.added_id + 1
        file.end_piece()
        segment = Segment(
            shard,
            begin,
            head.watermark,
            digest.cells,
            digest.hexdigest(),
            f"cells-{len(self.files):04d}",
            offset,
            file.bytes - offset,
        )
        if file.bytes >= CELLS_FILE_BYTES:
            self.finish()
        if last is None:  # all of it was trimmed meanwhile
            return WrittenLog(log_start, segment, None, head.last_created_at_us)
        witness = witness_of(last, encrypted=self._recipients is not None)
        return WrittenLog(log_start, segment, witness, last.created_at_us)

    def finish(self) -> None:
        """Puts the open file on disk."""
        if self._open is not None:
            self.files.append(self._open.finish())
            self._open = None

    def _file(self) -> BlockFile:
        if self._open is None:
            self._open = BlockFile(self._place, f"cells-{len(self.files):04d}", self._recipients)
        return self._open


def _whole(
    engine: LogSource, shard: int, cells: Sequence[StoredCell]
) -> tuple[Sequence[StoredCell], list[bytes]]:
    """Cells with bodies that decode, and these bodies. Raises DataDamaged."""
    try:
        return cells, [decode_body(cell.body) for cell in cells]
    except DataDamaged:
        whole = [_whole_cell(engine, shard, cell) for cell in cells]
        return [cell for cell, _ in whole], [body_json for _, body_json in whole]


def _whole_cell(engine: LogSource, shard: int, cell: StoredCell) -> tuple[StoredCell, bytes]:
    """A cell with a body that decodes, and that body. Where the one that was read does not, the
    master and then a minion are asked for theirs."""
    try:
        return cell, decode_body(cell.body)
    except DataDamaged as error:
        damaged = error
    for replica in (Replica.MASTER, Replica.MINION):
        try:
            [found] = engine.get([Triple(cell.row_key, cell.column_name, cell.ref_key)], replica)
            if found is not None and found.cell._replace(body=b"") == cell._replace(body=b""):
                return found.cell, decode_body(found.cell.body)
        except CellfeedError:
            continue
    raise DataDamaged(
        f"no backup taken: shard {shard}, added_id {cell.added_id} (row {cell.row_key.hex()},"
        f" column {cell.column_name!r}, ref key {cell.ref_key}): {damaged}. No node that was asked"
        " has a good copy: bring the cell back from an earlier backup"
    ) from damaged


def _payloads(shard: int, cells: Sequence[StoredCell]) -> list[bytes]:
    """The cells in payloads of at most about ``BLOCK_BYTES``."""
    payloads, piece, piece_bytes = list[bytes](), list[StoredCell](), 0
    for cell in cells:
        if piece and (len(piece) >= _BLOCK_CELLS or piece_bytes + len(cell.body) > BLOCK_BYTES):
            payloads.append(cells_payload(shard, piece))
            piece, piece_bytes = [], 0
        piece.append(cell)
        piece_bytes += len(cell.body)
    return [*payloads, cells_payload(shard, piece)]
