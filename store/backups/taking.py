"""Takes all of a backup, once its folder and its marker are there: in the order that
:mod:`cellfeed.store.backups.create` explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.base import check_same_store
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.ends import acknowledged_heads
from cellfeed.store.backups.erasures import known_to_logs
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.log_writer import LogWriter, OnProgress, Pace
from cellfeed.store.backups.manifest import (
    BackedFile,
    BackedLog,
    BackedRegister,
    BackedTurn,
    Manifest,
    Reader,
    Segment,
    encode_manifest,
)
from cellfeed.store.backups.marker import MANIFEST, Marker
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.private_part import locked
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.register_update import update_register
from cellfeed.store.backups.written_parts import (
    readable_dictionaries,
    write_dictionaries,
    write_state,
)
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head, StateEntry
from cellfeed.store.failpoints import declare, failpoint

declare(
    "backup.after_state",
    "backup.after_heads",
    "backup.after_log",
    "backup.before_manifest",
    "backup.after_manifest",
)


@dataclass(frozen=True)
class Source:
    """The datastore to back up. ``belongs``: which entries of the state table; ``readers``: offsets
    that are kept elsewhere; ``owners``: the shard map."""

    engine: Engine
    belongs: Callable[[StateEntry], bool]
    readers: Sequence[Reader] = ()
    owners: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pacing:
    """How fast, and whom to report it to."""

    cells_per_s: float | None
    on_progress: OnProgress


def take(
    folder: BackupFolder,
    found: Sequence[Backup],
    place: Place,
    marker: Marker,
    source: Source,
    chain: Sequence[Backup],
    recipients: Recipients | None,
    pacing: Pacing,
) -> None:
    engine = source.engine
    onto = chain[-1] if chain else None
    entries = engine.state.list("")
    failpoint("backup.after_state")
    register = Register(folder.place, recipients)
    update_register(folder, found, register, engine, entries)
    heads = acknowledged_heads(engine)
    failpoint("backup.after_heads")
    epochs = {shard: engine.leader_epochs(shard) for shard in sorted(heads)}
    if onto is not None:
        check_same_store(engine, chain, epochs, heads)
    files = [write_state(place, [each for each in entries if source.belongs(each)], recipients)]
    dictionaries = readable_dictionaries(engine)
    below = {log.shard: log for log in onto.manifest.logs} if onto is not None else {}
    begins = {shard: below[shard].watermark if shard in below else 0 for shard in heads}
    writer = LogWriter(
        place,
        Pace(
            pacing.cells_per_s,
            pacing.on_progress,
            sum(_ids(head, begins[shard]) for shard, head in heads.items()),
        ),
        recipients,
    )
    logs, segments = list[BackedLog](), list[Segment]()
    try:
        for shard, head in sorted(heads.items()):
            written = writer.write(engine, shard, head, begins[shard])
            watermark = max(head.watermark, written.log_start)
            witness = written.witness or (
                below[shard].witness
                if shard in below and below[shard].watermark == watermark
                else ""
            )
            shown = [epoch for epoch in epochs[shard] if epoch[1] <= watermark]
            logs.append(
                BackedLog(
                    shard, written.log_start, watermark, written.last_created_at_us, shown, witness
                )
            )
            segments += [written.segment] if written.segment is not None else []
            failpoint("backup.after_log")
    finally:
        writer.finish()
    # Bodies may have been rewritten since with a dictionary that is newer, and the one that others
    # name may be gone (store/dictionaries/retiring.py).
    dictionaries |= readable_dictionaries(engine)
    written_dictionaries, turns = write_dictionaries(place, engine, dictionaries, recipients)
    files.append(written_dictionaries)
    recorded = register.add(
        known_to_logs(engine.datastore, engine.shards, writer.erasures, marker.created_at_us)
    )
    manifest = _manifest(
        marker,
        source,
        onto,
        [*files, *writer.files],
        segments,
        logs,
        turns,
        entries,
        writer,
        recorded,
    )
    place.sync()
    failpoint("backup.before_manifest")
    place.write(
        MANIFEST,
        encode_manifest(manifest if recipients is None else locked(manifest, recipients)),
    )
    failpoint("backup.after_manifest")


def _manifest(
    marker: Marker,
    source: Source,
    onto: Backup | None,
    files: list[BackedFile],
    segments: list[Segment],
    logs: list[BackedLog],
    turns: list[BackedTurn],
    entries: Sequence[StateEntry],
    writer: LogWriter,
    register: BackedRegister,
) -> Manifest:
    return Manifest(
        format_version=marker.format_version,
        name=marker.name,
        datastore=marker.datastore,
        shards=marker.shards,
        created_at_us=marker.created_at_us,
        onto=onto.name if onto else None,
        onto_sha256=onto.sha256 if onto else None,
        files=files,
        segments=segments,
        logs=logs,
        columns=source.engine.columns(),
        turns=turns,
        readers=list(source.readers),
        state_revision=max((entry.version for entry in entries), default=0),
        owners={cluster: list(ranges) for cluster, ranges in source.owners.items()},
        erasures=writer.erasures,
        identity=marker.identity,
        sequence=marker.sequence,
        register=register,
        history=source.engine.history,
    )


def _ids(head: Head, below: int) -> int:
    return max(0, head.watermark - max(head.log_start, below))
