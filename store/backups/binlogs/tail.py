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
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.binlogs.archive import BinlogArchive
from cellfeed.store.backups.binlogs.collected import SCHEMA, Collected
from cellfeed.store.backups.check import dictionaries_known, read_dictionaries, read_state
from cellfeed.store.backups.encryption import Identities
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
from cellfeed.store.cells.cell import moment
from cellfeed.store.cells.dictionary import from_line, to_line
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import DataDamaged


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
        database.executescript(SCHEMA)
        collected = Collected(database, base)
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
    collected: Collected,
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
