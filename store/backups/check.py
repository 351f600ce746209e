"""Reads a backup and checks all of it on the way: lengths, SHA-256, CRC of each block, order and
number of cells, ids that are missing, the product's digest of each piece of a log.

``verify`` reads everything and names every file that is damaged; a restore reads through the same
functions, so it takes nothing that was not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.block_file import (
    ENCRYPTED_MAGIC,
    MAGIC,
    cells_of,
    read_blocks,
    read_encrypted_blocks,
)
from cellfeed.store.backups.manifest import BackedLog, Segment
from cellfeed.store.backups.marker import DICTIONARIES, STATE
from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.dictionary import Dictionary, from_line
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.store.cells.log_gaps import GapCheck
from cellfeed.store.errors import CellfeedError, DataDamaged


def read_segment(backup: Backup, segment: Segment) -> Iterator[list[StoredCell]]:
    """The cells of a piece of a log, in pieces. Raises DataDamaged, at the latest behind the last
    cell: cells before the end are not checked as a whole."""
    name = f"{backup.name}/{segment.file}"
    log_start = next(log.log_start for log in backup.manifest.logs if log.shard == segment.shard)
    # Cells below the log's start may have been trimmed while the backup was taken.
    digest, gaps = ShardDigest(), GapCheck(segment.shard, max(segment.from_id, log_start))
    with _opened(backup, segment.file) as file:
        for payload in _payloads(backup, file, name, segment.offset, segment.bytes):
            shard, cells = cells_of(payload, name)
            if (
                shard != segment.shard
                or not segment.from_id <= cells[0].added_id <= cells[-1].added_id < segment.below_id
            ):
                raise DataDamaged(
                    f"{name}: cells of shard {shard} where those of shard {segment.shard} from"
                    f" {segment.from_id} to {segment.below_id - 1} should be"
                )
            bodies_json = []
            for cell in cells:
                try:
                    body_json = decode_body(cell.body)
                    digest.add(
                        cell.added_id, cell.row_key, cell.column_name, cell.ref_key, body_json
                    )
                except (ValueError, DataDamaged) as error:
                    raise DataDamaged(
                        f"{name}: shard {shard}, added_id {cell.added_id}: {error}"
                    ) from None
                bodies_json.append(body_json)
            kept = (
                sum(cell.added_id >= log_start for cell in cells)
                if cells[0].added_id < log_start
                else len(cells)
            )
            gaps.add_piece(cells[len(cells) - kept :], bodies_json[len(cells) - kept :])
            yield cells
    gaps.end(segment.below_id)
    if gaps.missing:
        raise DataDamaged(
            f"{name}: {gaps}, and no restore left them out: the store had lost them when the backup"
            " was taken"
        )
    if (digest.cells, digest.hexdigest()) != (segment.cells, segment.digest):
        raise DataDamaged(
            f"{name}: the cells of shard {segment.shard} are not those that were backed up: their"
            " digest is another one"
        )


def check_whole(chain: Sequence[Backup], logs: Sequence[BackedLog] | None = None) -> None:
    """Raises DataDamaged unless the pieces of each log follow each other, or overlap, from its
    start to its watermark. ``logs``: those of the last backup when left out."""
    reached: dict[int, int] = {}
    for backup in chain:
        starts = {log.shard: log.log_start for log in backup.manifest.logs}
        for segment in backup.manifest.segments:
            if segment.from_id > max(reached.get(segment.shard, 0), starts[segment.shard]):
                raise DataDamaged(
                    f"backup {backup.name}: shard {segment.shard} lacks cells"
                    f" {reached.get(segment.shard, 0)} to {segment.from_id - 1}"
                )
            reached[segment.shard] = max(reached.get(segment.shard, 0), segment.below_id)
    for log in chain[-1].manifest.logs if logs is None else logs:
        if log.watermark > max(reached.get(log.shard, 0), log.log_start):
            raise DataDamaged(
                f"backup {chain[-1].name}: shard {log.shard} lacks cells"
                f" {reached.get(log.shard, 0)} to {log.watermark - 1}"
            )


def read_state(backup: Backup) -> list[tuple[str, bytes]]:
    """Keys and values of the state entries. Raises DataDamaged."""
    [file] = [each for each in backup.manifest.files if each.name == STATE]
    name = f"{backup.name}/{STATE}"
    with _opened(backup, STATE) as opened:
        payloads = list(_payloads(backup, opened, name, len(MAGIC), file.bytes - len(MAGIC)))
    try:
        return [msgspec.msgpack.decode(payload, type=tuple[str, bytes]) for payload in payloads]
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"{name}: a block holds no state entry: {error}") from error


def read_dictionaries(backup: Backup) -> list[Dictionary]:
    """Raises DataDamaged when one is damaged, or one that a turn names is missing."""
    name = f"{backup.name}/{DICTIONARIES}"
    try:
        stored = backup.place.read(DICTIONARIES)
    except OSError as error:
        raise DataDamaged(f"{name}: {error.strerror}") from error
    content = backup.decrypt(stored, name)
    try:
        found = [from_line(line) for line in content.splitlines()]
    except CellfeedError as error:
        raise DataDamaged(f"{name}: {error}") from error
    missing = {turn.sha256 for turn in backup.manifest.turns} - {
        each.sha256.hex() for each in found
    }
    if missing:
        raise DataDamaged(f"{name}: {len(missing)} dictionaries that bodies need are not in it")
    return found


def chain_dictionaries(chain: Sequence[Backup]) -> list[Dictionary]:
    """Those of all pieces, each once: bodies of an earlier one may name a dictionary that was
    retired since. Raises DataDamaged."""
    return list(
        {
            each.dictionary_id: each for backup in chain for each in read_dictionaries(backup)
        }.values()
    )


@contextmanager
def dictionaries_known(chain: Sequence[Backup]) -> Iterator[None]:
    """Bodies of these backups can be decoded: a dictionary may have been retired since one of
    them."""
    found = {dictionary.dictionary_id: dictionary for dictionary in chain_dictionaries(chain)}
    known_dictionaries.add_source(found.get)
    try:
        yield
    finally:
        known_dictionaries.remove_source(found.get)


def _payloads(backup: Backup, file: BinaryIO, name: str, offset: int, size: int) -> Iterator[bytes]:
    if backup.manifest.is_encrypted:
        return read_encrypted_blocks(file, name, offset, size, backup.decrypt)
    return read_blocks(file, name, offset, size)


@contextmanager
def _opened(backup: Backup, name: str) -> Iterator[BinaryIO]:
    try:
        with backup.place.open(name) as file:
            magic = ENCRYPTED_MAGIC if backup.manifest.is_encrypted else MAGIC
            if file.read(len(MAGIC)) != magic:
                raise DataDamaged(
                    f"{backup.name}/{name}: it is no file of a backup: it begins otherwise"
                )
            yield file
    except OSError as error:
        raise DataDamaged(f"{backup.name}/{name}: {error.strerror}") from error
