"""Archived cells beyond the newest increment, as one more increment: so a restore, a point in time,
erasures and readers need to know nothing of binlogs.

It is written into a folder of this machine, in the clear. Its state is the increment's.

**Which cells.** A log's ids have no holes, so its tail goes from the increment's watermark up
to the first id that no archive has. It begins at the log's start where that lies beyond. A shard
may have moved, so all clusters' archives are asked. Of several cells of one id the one counts whose
leader epoch the id belongs to: a master that was replaced may have sent a transaction that was
acknowledged to nobody. Two cells of one id in one epoch are of two lives of a server: its files
were put back from a copy. Nothing is restored of them.

**Up to when.** To the earliest moment that the archives of all clusters have reached. An archive
that has a gap behind the increment's beginning says nothing of moments: its cells count while ids
follow each other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from cellfeed.store.backups.binlogs.archive import BinlogArchive
from cellfeed.store.backups.binlogs.transactions import AddedCell, Transaction
from cellfeed.store.backups.check import dictionaries_known, read_dictionaries, read_state
from cellfeed.store.backups.encryption import Identities
from cellfeed.store.backups.folder import Backup
from cellfeed.store.backups.log_writer import BlockFile, LogWriter, Pace
from cellfeed.store.backups.manifest import (
    BackedFile,
    BackedLog,
    Manifest,
    Reader,
    Segment,
    digest_of_manifest,
    encode_manifest,
)
from cellfeed.store.backups.marker import DICTIONARIES, STATE
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.places.local import LocalPlace
from cellfeed.store.backups.sealed import PLAIN
from cellfeed.store.cells.cell import StoredCell, Triple, moment
from cellfeed.store.cells.dictionary import from_line, to_line
from cellfeed.store.engines.contract.values import Head, LocatedCell, Replica
from cellfeed.store.errors import DataDamaged, ProtectData
from cellfeed.store.limits import SCAN_BYTES_MAX

_SCHEMA: Final = """
CREATE TABLE cell (shard INT, added_id INT, leader_epoch INT, row_key BLOB, column_name TEXT,
    ref_key INT, created_at_us INT, body BLOB, PRIMARY KEY (shard, added_id, leader_epoch));
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
"""

_ADD: Final = (
    "INSERT INTO cell VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET body ="
    " excluded.body WHERE row_key = ? AND column_name = ? AND ref_key = ? AND created_at_us = ?"
)

_REPLACE_BODY: Final = (
    "UPDATE cell SET body = ? WHERE shard = ? AND added_id = ? AND row_key = ? AND column_name = ?"
    " AND ref_key = ? AND created_at_us = ?"
)


@dataclass(frozen=True)
class Tail:
    """``backup``: the tail as an increment on the newest one. ``beyond``: for each log whose
    archive has ids behind a gap, how far they go: they were shown, and are not restored."""

    backup: Backup
    beyond: Sequence[Reader] = ()


def tail_of(
    chain: Sequence[Backup],
    archives: Sequence[BinlogArchive],
    identities: Identities | None,
    directory: Path,
) -> Tail | None:
    """``chain``: the newest increment with those that it stands on, decrypted; ``archives``: of its
    history; ``directory``: an empty folder that the tail lies in. None where the archives have
    nothing beyond. Raises DataDamaged, ProtectData, and InvalidRequest where an identity is
    missing."""
    base = chain[-1].manifest
    with closing(sqlite3.connect(directory / "cells")) as database:
        database.executescript(_SCHEMA)
        collected = _Collected(database, base)
        for archive in archives:
            for piece in archive.pieces():
                what = f"{archive}, piece {piece.head.number}"
                for transaction in piece.transactions(identities, what):
                    collected.add(transaction, what)
        ends = {log.shard: collected.end_of(log) for log in base.logs}
        beyond = [
            Reader(
                f"the archive behind a gap from {shard}:{end}",
                base.datastore,
                shard,
                last + 1,
                collected.epoch_of(shard, last),
                "archived binlogs:",
            )
            for shard, end in ends.items()
            if (last := collected.last_behind(shard, end)) is not None
        ]
        reached_us = _reached_us(base, archives)
        grown = any(ends[log.shard] > log.watermark for log in base.logs)
        if not grown and not beyond and reached_us <= base.created_at_us:
            return None
        created_us = max(reached_us, base.created_at_us + 1)
        name = f"{moment(created_us):%Y%m%dT%H%M%SZ}-{chain[-1].sha256[:4]}"
        (directory / name).mkdir()
        place = LocalPlace(directory / name)
        return Tail(_write(chain, place, collected, ends, created_us), beyond)


class _Collected:
    """The cells of archives, on disk; the other facts about logs, in memory."""

    def __init__(self, database: sqlite3.Connection, base: Manifest) -> None:
        self._database = database
        self._watermarks = {log.shard: log.watermark for log in base.logs}
        self.epochs = {log.shard: dict(log.epochs) for log in base.logs}
        self.log_starts = {log.shard: log.log_start for log in base.logs}
        self.dictionaries = list[bytes]()

    def add(self, transaction: Transaction, what: str) -> None:
        for begin in transaction.epochs:
            known = self.epochs[begin.shard].setdefault(begin.leader_epoch, begin.first_added_id)
            if known != begin.first_added_id:
                raise _two_lives(what, begin.shard, f"leader epoch {begin.leader_epoch} begins")
        for shard, log_start in transaction.log_starts:
            self.log_starts[shard] = max(self.log_starts[shard], log_start)
        self.dictionaries += transaction.dictionaries
        for each in transaction.cells:
            if each.cell.added_id >= self._watermarks[each.shard]:
                if each.leader_epoch < 0:
                    self._replace_body(each)  # put back by a repair
                else:
                    self._add(each, what)
        for each in transaction.bodies:
            self._replace_body(each)

    def _add(self, added: AddedCell, what: str) -> None:
        added_id, row_key, column, ref_key, at_us, body = added.cell
        place = added.shard, added_id, added.leader_epoch
        done = self._database.execute(
            _ADD,
            (*place, row_key, column, ref_key, at_us, body, row_key, column, ref_key, at_us),
        )
        if done.rowcount != 1:
            raise _two_lives(what, added.shard, f"id {added_id} is another cell")

    def _replace_body(self, changed: AddedCell) -> None:
        added_id, row_key, column, ref_key, at_us, body = changed.cell
        self._database.execute(
            _REPLACE_BODY,
            (body, changed.shard, added_id, row_key, column, ref_key, at_us),
        )

    def start_of(self, log: BackedLog) -> int:
        """Where the tail begins."""
        return max(log.watermark, self.log_starts[log.shard])

    def end_of(self, log: BackedLog) -> int:
        """Behind the last id up to which every id is there."""
        end = self.start_of(log)
        for added_id, leader_epoch in self._ids(log.shard, end):
            if leader_epoch == self.epoch_of(log.shard, added_id):
                if added_id != end:
                    break
                end += 1
        return end

    def last_behind(self, shard: int, end: int) -> int | None:
        """The last id behind a missing one; None where nothing is missing."""
        ids = [
            added_id
            for added_id, leader_epoch in self._ids(shard, end)
            if leader_epoch == self.epoch_of(shard, added_id)
        ]
        return max(ids, default=None)

    def columns(self, shard: int, first: int, end: int) -> list[str]:
        """Of the cells from an id up to another one."""
        rows = self._database.execute(
            "SELECT DISTINCT column_name FROM cell WHERE shard = ? AND added_id >= ? AND added_id <"
            " ?",
            (shard, first, end),
        )
        return sorted(name for (name,) in rows)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        """As of an engine."""
        rows = self._database.execute(
            "SELECT leader_epoch, added_id, row_key, column_name, ref_key, created_at_us, body FROM"
            " cell WHERE shard = ? AND added_id >= ? AND added_id < ? ORDER BY added_id",
            (shard, location, location + limit),
        )
        found, found_bytes = list[StoredCell](), 0
        for leader_epoch, *row in rows:
            if leader_epoch == self.epoch_of(shard, row[0]):
                cell = StoredCell(*row)
                found.append(cell)
                found_bytes += len(cell.body)
                if found_bytes >= SCAN_BYTES_MAX:
                    break
        return found

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        """Nothing trims an archive."""
        return {}

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        """There is no better copy of a cell."""
        return [None] * len(triples)

    def _ids(self, shard: int, first: int) -> Iterator[tuple[int, int]]:
        yield from self._database.execute(
            "SELECT added_id, leader_epoch FROM cell WHERE shard = ? AND added_id >= ? ORDER BY"
            " added_id",
            (shard, first),
        )

    def epoch_of(self, shard: int, added_id: int) -> int:
        """The leader epoch that an id belongs to."""
        return max(epoch for epoch, first in self.epochs[shard].items() if first <= added_id)


def _reached_us(base: Manifest, archives: Sequence[BinlogArchive]) -> int:
    """The moment up to which all clusters' archives follow the increment without a gap; its
    beginning where they do not."""
    reached = {archive.marker.cluster: archive.reached() for archive in archives}
    if not set(base.owners) <= set(reached) or any(
        each.since_us > base.created_at_us for each in reached.values()
    ):
        return base.created_at_us
    return min(each.at_us for each in reached.values())


def _write(
    chain: Sequence[Backup],
    place: Place,
    collected: _Collected,
    ends: Mapping[int, int],
    created_us: int,
) -> Backup:
    below, base = chain[-1], chain[-1].manifest
    state = BlockFile(place, STATE)
    for entry in read_state(below):
        state.add(msgspec.msgpack.encode(entry))
    files = [state.finish()]
    known = {each.dictionary_id: each for each in read_dictionaries(below)}
    known |= {each.dictionary_id: each for each in map(from_line, collected.dictionaries)}
    content = b"".join(map(to_line, known.values()))
    place.write(DICTIONARIES, content)
    files.append(BackedFile(DICTIONARIES, len(content), sha256(content).hexdigest()))
    manifest = msgspec.structs.replace(
        base,
        format_version=PLAIN,
        name=place.name,
        created_at_us=created_us,
        onto=below.name,
        onto_sha256=below.sha256,
        recipients=[],
        private="",
    )
    writer = LogWriter(place, Pace(None, lambda *_: None, 0))
    logs, segments, columns = list[BackedLog](), list[Segment](), dict.fromkeys(base.columns)
    with dictionaries_known([*chain, Backup(place, manifest, "")]):
        for log in base.logs:
            start, end = collected.start_of(log), ends[log.shard]
            head = Head(collected.log_starts[log.shard], end, end, 0, log.last_created_at_us, 0)
            try:
                written = writer.write(collected, log.shard, head, log.watermark)
            except DataDamaged as error:
                raise DataDamaged(f"nothing restored: the archived binlogs: {error}") from error
            segments += [written.segment] if written.segment is not None else []
            columns |= dict.fromkeys(collected.columns(log.shard, start, end))
            logs.append(
                BackedLog(
                    log.shard,
                    head.log_start,
                    end,
                    written.last_created_at_us,
                    sorted(each for each in collected.epochs[log.shard].items() if each[1] <= end),
                    written.witness or log.witness,
                )
            )
        writer.finish()
    manifest = msgspec.structs.replace(
        manifest,
        files=[*files, *writer.files],
        segments=segments,
        logs=logs,
        columns=list(columns),
        erasures=writer.erasures,
    )
    return Backup(place, manifest, digest_of_manifest(encode_manifest(manifest)))


def _two_lives(what: str, shard: int, how: str) -> ProtectData:
    return ProtectData(
        f"nothing restored: {what}: shard {shard}: {how} elsewhere than in an earlier piece, in the"
        " same leader epoch: the binlogs are of two lives of a server, whose files were put back"
        " from a copy between them. Move the folder of that archive out of the folder of backups,"
        " and restore the newest backup"
    )
