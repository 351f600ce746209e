"""Takes a backup of a datastore, online: beside writers, readers and trims, from a minion where
there is one that has all the cells needed.

**One moment that is consistent enough.** In this order:

    1. offsets that are kept elsewhere (by the caller), then the state table in one look.
    2. the register of erasures gets all that the state and the folder's manifests know.
    3. the heads of all logs: one watermark for each shard, past all that was acknowledged before
       (:mod:`cellfeed.store.backups.ends`).
    4. leader epochs, columns, dictionaries and their turns.
    5. every log from its start (or from where the backup below it ended) up to its watermark.
    6. dictionaries and their turns once more: those from before and those from after are written.
    7. the register gets the erasures that the logs mark; then the manifest.

So every cell that an offset, a parked cell, a settled start or an erasure of 1 names lies below the
watermarks of 3. Every dictionary that a body below them names is among those of 4 or 6: a
dictionary is there before the first body that takes it. A cell above a watermark had been shown to
nobody when the watermark was read.

A log whose front is trimmed meanwhile continues at its new start: a restore leaves out cells that
were written before it.

**Checked while it is taken.** Each body is decoded and goes into the product's digest, and each id
is accounted for (:mod:`cellfeed.store.backups.log_writer`). So a backup of bodies that nobody could
read, or of a log that lacks cells, fails at once. The files and their names are on disk before the
manifest, which comes last (:mod:`cellfeed.store.backups.folder` has the crash points).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import msgspec

from cellfeed.store.backups.base import (
    check_history,
    check_lineage,
    check_name,
    check_same_store,
)
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.ends import acknowledged_heads
from cellfeed.store.backups.erasures import known_to_logs, known_to_manifests, known_to_state
from cellfeed.store.backups.folder import Backup, BackupFolder, next_sequence
from cellfeed.store.backups.folder_kind import refuse_other_kind
from cellfeed.store.backups.log_writer import BlockFile, LogWriter, OnProgress, Pace
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
from cellfeed.store.backups.marker import (
    DICTIONARIES,
    MANIFEST,
    STATE,
    Marker,
    remove_files,
    write_marker,
)
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.private_part import locked
from cellfeed.store.backups.prune import remove, unfinished
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.sealed import ENCRYPTED, PLAIN
from cellfeed.store.cells.cell import moment
from cellfeed.store.cells.dictionary import Dictionary, to_line
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head, StateEntry
from cellfeed.store.errors import CellfeedError, DictionaryLost, InvalidRequest, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare(
    "backup.after_marker",
    "backup.after_state",
    "backup.after_heads",
    "backup.after_log",
    "backup.before_manifest",
    "backup.after_manifest",
)

_log: Final = logging.getLogger("cellfeed.backup")


@dataclass(frozen=True)
class Source:
    """The datastore to back up. ``belongs``: which entries of the state table; ``readers``: offsets
    that are kept elsewhere; ``owners``: the shard map."""

    engine: Engine
    belongs: Callable[[StateEntry], bool]
    readers: Sequence[Reader] = ()
    owners: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


def create(
    folder: BackupFolder,
    source: Source,
    *,
    onto: Backup | None = None,
    recipients: Recipients | None = None,
    cells_per_s: float | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> Backup:
    """Makes a backup; with ``onto`` only of the cells since that one. ``recipients``: whom it is
    encrypted to. A backup that failed or was killed is no backup.

    Raises ProtectData for a datastore whose log is not the one of ``onto``, and for a folder of
    another store of that name. It does so, too, for other recipients than the folder and ``onto``
    have. Raises DataDamaged, DictionaryLost for cells and dictionaries that are unreadable or
    missing; Unavailable, also while cells that are acknowledged cannot be read."""
    if cells_per_s is not None and cells_per_s <= 0:
        raise InvalidRequest(f"{cells_per_s:g} cells a second is no pace: it must be above 0")
    engine = source.engine
    with folder.locked():
        found, unreadable = folder.look()
        refuse_other_kind(folder, found, unreadable, onto, recipients)
        rests = unfinished(folder, unreadable, engine.datastore)
        remove(folder, rests)
        for each in rests:
            _log.warning(
                "removed from %s the files of a backup that was killed: %s", folder.place, each
            )
        chain = folder.chain(onto) if onto is not None else []
        if onto is not None:
            check_name(engine, onto)
            check_history(engine, onto)
        check_lineage(folder, found, engine)
        begun_us = engine.state.now_us()
        name = f"{moment(begun_us):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        marker = Marker(
            PLAIN if recipients is None else ENCRYPTED,
            secrets.token_hex(16),
            name,
            engine.datastore,
            engine.shards,
            next_sequence(found, unreadable),
            begun_us,
        )
        place = folder.place.inside(name)
        try:
            place.make()
        except OSError as error:  # another entry of that name is not of this backup, and stays
            raise StorageUnavailable(f"no backup taken: {place}: {error.strerror}") from error
        try:
            write_marker(place, marker)
            folder.place.sync()
            failpoint("backup.after_marker")
            _create(
                folder,
                found,
                place,
                marker,
                source,
                chain,
                recipients,
                Pacing(cells_per_s, on_progress),
            )
        except (CellfeedError, OSError) as error:
            with suppress(OSError, CellfeedError):
                remove_files(folder.place, marker)
            if isinstance(error, OSError):
                raise StorageUnavailable(
                    f"no backup taken: {error.filename or place}: {error.strerror}"
                ) from error
            raise
        return folder.get(name)


@dataclass(frozen=True)
class Pacing:
    """How fast, and whom to report it to."""

    cells_per_s: float | None
    on_progress: OnProgress


def _create(
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
    _sync_register(folder, found, register, engine, entries)
    heads = acknowledged_heads(engine)
    failpoint("backup.after_heads")
    epochs = {shard: engine.leader_epochs(shard) for shard in sorted(heads)}
    if onto is not None:
        check_same_store(engine, chain, epochs, heads)
    files = [_write_state(place, [each for each in entries if source.belongs(each)], recipients)]
    dictionaries = _dictionaries(engine)
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
    dictionaries |= _dictionaries(engine)
    written_dictionaries, turns = _write_dictionaries(place, engine, dictionaries, recipients)
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


def _sync_register(
    folder: BackupFolder,
    found: Sequence[Backup],
    register: Register,
    engine: Engine,
    entries: Sequence[StateEntry],
) -> None:
    """Adds the erasures that the folder's manifests and the store know. Raises DataDamaged for
    a register that is not the newest manifest's. One that is missing is made: the backups from
    before that recorded another one are then refused by a restore."""
    if register.is_there():
        register.check((each.name, each.manifest.register) for each in found[-1:])
    elif any(each.manifest.register is not None for each in found):
        _log.warning(
            "%s has lost its register of erasures: a new one is made, and backups that were taken"
            " with the lost one are not restored",
            folder.place,
        )
    state = [(entry.key, entry.value) for entry in entries]
    register.add(
        [
            *known_to_manifests(found, engine.datastore, engine.shards),
            *known_to_state(engine.datastore, engine.shards, state),
        ]
    )


def _ids(head: Head, below: int) -> int:
    return max(0, head.watermark - max(head.log_start, below))


def _write_state(
    place: Place, entries: Sequence[StateEntry], recipients: Recipients | None
) -> BackedFile:
    file = BlockFile(place, STATE, recipients)
    for entry in entries:
        file.add(msgspec.msgpack.encode((entry.key, entry.value)))
    return file.finish()


def _dictionaries(engine: Engine) -> dict[int, Dictionary]:
    """By id all that are there. Raises DictionaryLost."""
    found = {}
    for kept in engine.dictionaries.kept():
        dictionary = engine.dictionaries.find(kept.dictionary_id)
        if dictionary is None and kept.turns:
            raise DictionaryLost(
                f"dictionary {kept.name} of column {kept.column_name!r} cannot be read: bring it"
                " back with `cellfeed dictionary recover`"
            )
        if dictionary is not None:
            found[kept.dictionary_id] = dictionary
    return found


def _write_dictionaries(
    place: Place, engine: Engine, found: Mapping[int, Dictionary], recipients: Recipients | None
) -> tuple[BackedFile, list[BackedTurn]]:
    turns = [
        BackedTurn(kept.column_name, turn, kept.sha256.hex())
        for kept in engine.dictionaries.kept()
        if kept.dictionary_id in found
        for turn in kept.turns
    ]
    content = b"".join(map(to_line, found.values()))
    if recipients is not None:
        content = recipients.encrypt(content)
    place.write(DICTIONARIES, content)
    return BackedFile(DICTIONARIES, len(content), sha256(content).hexdigest()), turns
