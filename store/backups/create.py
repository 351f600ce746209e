"""Takes a backup of a datastore, online: beside writers, readers and trims, from a minion where there is one that has what is needed.

**One moment that is consistent enough.** In this order:

    1. offsets that are kept elsewhere (by the caller), then the state table in one look
    2. the heads of all logs: one watermark for each shard
    3. leader epochs, columns, dictionaries and their turns
    4. every log from its start (or from where the backup below it ended) up to its watermark

So whatever an offset, a parked cell or a settled start of 1 speaks of lies below the watermarks of 2, and every dictionary that a body below them names is
among those of 3: a dictionary is there before the first body that takes it. What is above a watermark was shown to nobody when it was looked at.

A log whose front is trimmed meanwhile goes on at its new start: cells that were written before it are left out by a restore.

**Checked while it is taken.** Each body is decoded and goes into the product's digest, so a backup of bodies that nobody could read fails at once. The files
are on disk before the manifest, which comes last (:mod:`store.backups.folder` has the crash points).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from store.backups.block_file import BLOCK_BYTES, MAGIC, block_of, cells_payload
from store.backups.erasures import erasures_of
from store.backups.folder import DICTIONARIES, MANIFEST, STATE, Backup, BackupFolder, sync_folder, write_synced
from store.backups.manifest import FORMAT_VERSION, BackedErasure, BackedFile, BackedLog, BackedTurn, Manifest, Reader, Segment, encode_manifest
from store.body_codec import decode_body
from store.cells import StoredCell, moment
from store.dictionaries.dictionary import to_line
from store.digest import ShardDigest
from store.engines.contract import Engine, Head, StateEntry
from store.errors import DataDamaged, DictionaryLost, InvalidRequest, ProtectData, Trimmed
from store.failpoints import declare, failpoint
from store.limits import SCAN_CELLS_MAX

declare("backup.after_state", "backup.after_heads", "backup.after_log", "backup.before_manifest", "backup.after_manifest")

CELLS_FILE_BYTES: Final = 256 << 20
"""After so many bytes the next log begins a new file of cells: files that are copied, and checked, in minutes each."""

_SCAN_CELLS: Final = min(5_000, SCAN_CELLS_MAX)
_BLOCK_CELLS: Final = 2_000

OnProgress = Callable[[int, int], None]
"""Is told how many ids have been done, and of how many, after each piece."""


@dataclass(frozen=True)
class Source:
    """What is backed up. ``belongs``: which entries of the state table; ``readers``: offsets that are kept elsewhere; ``owners``: the shard map."""

    engine: Engine
    belongs: Callable[[StateEntry], bool]
    readers: Sequence[Reader] = ()
    owners: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


def create(
    folder: BackupFolder, source: Source, *, onto: Backup | None = None, cells_per_s: float | None = None, on_progress: OnProgress = lambda *_: None
) -> Backup:
    """Makes a backup; with ``onto`` of what has come since that one. Raises ProtectData for a datastore whose log is not the one of ``onto``; DataDamaged,
    DictionaryLost for what cannot be read; Unavailable. A backup that failed or was killed is no backup."""
    if cells_per_s is not None and cells_per_s <= 0:
        raise InvalidRequest(f"{cells_per_s:g} cells a second is no pace: it must be above 0")
    with folder.locked():
        folder.remove_unfinished()
        return _create(folder, source, onto, cells_per_s, on_progress)


def _create(folder: BackupFolder, source: Source, onto: Backup | None, cells_per_s: float | None, on_progress: OnProgress) -> Backup:
    engine = source.engine
    below = _checked(engine, folder.chain(onto)[-1]) if onto is not None else {}
    begun_us = engine.state.now_us()
    name = f"{moment(begun_us):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    place = folder.path / name
    place.mkdir()
    entries = engine.state.list("")
    failpoint("backup.after_state")
    heads = engine.heads()
    failpoint("backup.after_heads")
    epochs = {shard: engine.leader_epochs(shard) for shard in sorted(heads)}
    if onto is not None:
        _same_log(onto, epochs, heads)
    files = [_write_state(place, [each for each in entries if source.belongs(each)])]
    dictionaries, turns = _write_dictionaries(place, engine)
    files.append(dictionaries)
    writer = _CellsWriter(place, _Pace(cells_per_s, on_progress, sum(_ids(head, below.get(shard, 0)) for shard, head in heads.items())))
    logs, segments = list[BackedLog](), list[Segment]()
    try:
        for shard, head in sorted(heads.items()):
            log_start, segment = writer.write_log(engine, shard, head, below.get(shard, 0))
            logs.append(BackedLog(shard, log_start, max(head.watermark, log_start), head.last_created_at_us, epochs[shard]))
            segments += [segment] if segment is not None else []
            failpoint("backup.after_log")
    finally:
        writer.close()
    sync_folder(place)
    sync_folder(folder.path)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        datastore=engine.datastore,
        shards=engine.shards,
        created_at_us=begun_us,
        onto=onto.name if onto else None,
        onto_sha256=onto.sha256 if onto else None,
        files=[*files, *writer.files],
        segments=segments,
        logs=logs,
        columns=engine.columns(),
        turns=turns,
        readers=list(source.readers),
        state_revision=max((entry.version for entry in entries), default=0),
        owners={cluster: list(ranges) for cluster, ranges in source.owners.items()},
        erasures=writer.erasures,
    )
    failpoint("backup.before_manifest")
    write_synced(place / MANIFEST, encode_manifest(manifest))
    failpoint("backup.after_manifest")
    return folder.get(name)


def _ids(head: Head, below: int) -> int:
    return max(0, head.watermark - max(head.log_start, below))


def _checked(engine: Engine, onto: Backup) -> dict[int, int]:
    """By shard, where the backup below ended."""
    told = onto.manifest
    if (told.datastore, told.shards) != (engine.datastore, engine.shards):
        raise ProtectData(
            f"backup {onto.name} is of datastore {told.datastore!r} with {told.shards} shards, this one is {engine.datastore!r} with {engine.shards}: "
            "take a full backup into a folder of its own"
        )
    return {log.shard: log.watermark for log in told.logs}


def _same_log(onto: Backup, epochs: Mapping[int, Sequence[tuple[int, int]]], heads: Mapping[int, Head]) -> None:
    """Raises ProtectData when the log is not the one that the backup below was taken of: ids that it holds have other cells here, or none."""
    for log in onto.manifest.logs:
        since = [epoch for epoch in epochs[log.shard] if epoch not in log.epochs]
        missing = [epoch for epoch in log.epochs if epoch not in epochs[log.shard]]
        if heads[log.shard].watermark < log.watermark or missing or any(first < log.watermark for _, first in since):
            raise ProtectData(
                f"shard {log.shard} is not the log that backup {onto.name} was taken of up to {log.watermark} (it was restored from an older one since, or "
                "is another datastore's): take a full backup, without --onto"
            )


class _Pace:
    """Tells of the progress, and holds the reading back to so many cells a second."""

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


class _BlockFile:
    """One file that is being written."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._file: BinaryIO = path.open("xb")
        self._sha256 = sha256()
        self.bytes = 0
        self.write(MAGIC)

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._sha256.update(content)
        self.bytes += len(content)

    def finish(self) -> BackedFile:
        """Puts it on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return BackedFile(self._name, self.bytes, self._sha256.hexdigest())


class _CellsWriter:
    """Writes logs, one after the other, into files of cells."""

    def __init__(self, place: Path, pace: _Pace) -> None:
        self._place = place
        self._pace = pace
        self._open: _BlockFile | None = None
        self.files: list[BackedFile] = []
        self.erasures: list[BackedErasure] = []

    def write_log(self, engine: Engine, shard: int, head: Head, below: int) -> tuple[int, Segment | None]:
        """Where the log starts, and what was written of it."""
        log_start, location = head.log_start, max(head.log_start, below)
        if location >= head.watermark:
            return log_start, None
        file = self._file()
        begin, offset, digest = location, file.bytes, ShardDigest()
        while location < head.watermark:
            try:
                found = engine.scan(shard, location, min(_SCAN_CELLS, head.watermark - location))
            except Trimmed:
                log_start = location = engine.heads([shard])[shard].log_start
                continue
            cells = [cell for cell in found if cell.added_id < head.watermark]
            if not cells:
                raise DataDamaged(f"shard {shard} has no cell from {location} on, though its log goes to {head.watermark}")
            for cell in cells:
                digest.add(cell.added_id, cell.row_key, cell.column_name, cell.ref_key, decode_body(cell.body))
            self.erasures += erasures_of(shard, cells)
            for block in _blocks(shard, cells):
                file.write(block)
            self._pace.advance(cells[-1].added_id + 1 - location, len(cells))
            location = cells[-1].added_id + 1
        segment = Segment(shard, begin, head.watermark, digest.cells, digest.hexdigest(), f"cells-{len(self.files):04d}", offset, file.bytes - offset)
        if file.bytes >= CELLS_FILE_BYTES:
            self._finish()
        return log_start, segment

    def close(self) -> None:
        """Puts the last file on disk."""
        self._finish()

    def _file(self) -> _BlockFile:
        if self._open is None:
            self._open = _BlockFile(self._place / f"cells-{len(self.files):04d}")
        return self._open

    def _finish(self) -> None:
        if self._open is not None:
            self.files.append(self._open.finish())
            self._open = None


def _blocks(shard: int, cells: Sequence[StoredCell]) -> list[bytes]:
    """The cells in blocks of at most about ``BLOCK_BYTES``."""
    blocks, piece, piece_bytes = list[bytes](), list[StoredCell](), 0
    for cell in cells:
        if piece and (len(piece) >= _BLOCK_CELLS or piece_bytes + len(cell.body) > BLOCK_BYTES):
            blocks.append(block_of(cells_payload(shard, piece)))
            piece, piece_bytes = [], 0
        piece.append(cell)
        piece_bytes += len(cell.body)
    return [*blocks, block_of(cells_payload(shard, piece))]


def _write_state(place: Path, entries: Sequence[StateEntry]) -> BackedFile:
    file = _BlockFile(place / STATE)
    for entry in entries:
        file.write(block_of(msgspec.msgpack.encode((entry.key, entry.value))))
    return file.finish()


def _write_dictionaries(place: Path, engine: Engine) -> tuple[BackedFile, list[BackedTurn]]:
    lines, turns = list[bytes](), list[BackedTurn]()
    for kept in engine.dictionaries.kept():
        dictionary = engine.dictionaries.find(kept.dictionary_id)
        if dictionary is None and kept.turns:
            raise DictionaryLost(f"dictionary {kept.name} of column {kept.column_name!r} cannot be read: bring it back with `cellfeed dictionary recover`")
        if dictionary is not None:
            lines.append(to_line(dictionary))
        turns += [BackedTurn(kept.column_name, turn, kept.sha256.hex()) for turn in kept.turns]
    content = b"".join(lines)
    write_synced(place / DICTIONARIES, content)
    return BackedFile(DICTIONARIES, len(content), sha256(content).hexdigest()), turns
