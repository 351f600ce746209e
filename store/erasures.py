"""Erasures that were asked for and are not done yet: on record in the state table, and completed by
every worker unasked.

An erasure is many commits (:meth:`cellfeed.store.datastore.Datastore.erase_row`), on several
clusters. Between the first and the last one the row takes no puts, but bodies of it may be there,
and may be read. So it is noted before the first commit, and the note is deleted behind the last
one. If anything dies or is away in between, the note is there. :class:`ErasureJob` begins the
erasure again, which takes the bodies that are left. Nobody has to remember that somebody's data was
to go.

Each process that works at an erasure writes the note. It deletes only the version that it wrote
last, so the note of an erasure that was asked for again stays. Two that work at the same erasure do
each other no harm: any number may run the steps. The note only keeps workers from doing the same
thing all at once.

The state after a kill:

    before the note              nothing: the row as it was, and the caller got no answer
    between note and last step   the note: the job ends the erasure
    before the note goes         the note of an erasure that is done: the job finds nothing left to
                                 do, and takes the note away

An erasure may be refused with nothing done (a master is away, the shard is being moved). It stays
on record as well, and is done when that is over.

A note has the row key, which is not erased (its places in the log have it). It also has the text of
the error that kept the erasure from its end; never a body.

**An erasure that is done stays on record for ever**, in an entry of its own (``DONE``): trims
remove the cell that marks it in the log. The commit that takes the note away writes that entry: at
every moment the state table has one of the two. Backups read both
(:mod:`cellfeed.store.backups.erasures`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import CellfeedError, DataDamaged
from cellfeed.store.failpoints import declare, failpoint

declare("erasures.after_claim")

PREFIX: Final = "erasures/"
"""Entries of erasures that are not done yet, by row key."""

DONE: Final = "erased/"
"""Entries of erasures that are done, by row key: of each row the last one."""

LOOK_EVERY_S: Final = 2.0
"""How often a worker looks for erasures that are due, in seconds: one read of the state table."""

AGAIN_AFTER_S: Final = 5.0
"""After how long without a sign an erasure is begun again, in seconds: its worker has died, or
failed. Most take less than one second. A slower one is then done by two, which harms nobody."""

_ERROR_CHARACTERS_MAX: Final = 1_000

_log = logging.getLogger("cellfeed.erasures")


class UnendedErasure(msgspec.Struct, frozen=True):
    """An erasure that is not done yet. Moments are the state table's, in microseconds; ``error``:
    the error that ended the last attempt, empty when there was none, or it is under way."""

    row_key: str
    asked_at_us: int
    begun_at_us: int
    error: str = ""


class DoneErasure(msgspec.Struct, frozen=True):
    """``added_id``: of the cell that marks it in the log."""

    added_id: int
    erased_at_us: int


def done_entry(row_key: UUID, added_id: int, at_us: int) -> tuple[str, bytes]:
    """The entry of an erasure that is done."""
    return f"{DONE}{row_key}", msgspec.json.encode(DoneErasure(added_id, at_us))


def done_of(key: str, value: bytes) -> tuple[UUID, DoneErasure]:
    """The erasure of an entry under ``DONE``. Raises DataDamaged."""
    try:
        return UUID(key.removeprefix(DONE)), msgspec.json.decode(value, type=DoneErasure)
    except (ValueError, msgspec.MsgspecError) as error:
        raise DataDamaged(f"state entry {key!r} is no record of an erasure: {error}") from error


def unended_of(value: bytes) -> UnendedErasure:
    """The erasure of an entry under ``PREFIX``."""
    return msgspec.json.decode(value, type=UnendedErasure)


class ErasureNotes:
    """The notes in a state table. All calls raise Unavailable."""

    def __init__(self, state: StateTable) -> None:
        self._state = state

    def begin(self, row_key: UUID) -> int:
        """Notes that an erasure is begun, now; the version of the note, for :meth:`end`."""
        now_us = self._state.now_us()
        return self._write(UnendedErasure(str(row_key), now_us, now_us)) or 0

    def end(self, row_key: UUID, version: int, added_id: int) -> None:
        """Takes the note away and records that the erasure is done, unless somebody has written the
        note since: that one is still to be done. ``added_id``: of the cell that marks it."""
        done, value = done_entry(row_key, added_id, self._state.now_us())
        self._state.commit({_key(row_key): None, done: value}, expect={_key(row_key): version})

    def failed(self, row_key: UUID, version: int, error: Exception) -> None:
        """Keeps the reason, unless somebody has written the note since."""
        entry = self._state.get(_key(row_key))
        if entry is not None and entry.version == version:
            self._write(
                msgspec.structs.replace(
                    unended_of(entry.value), error=str(error)[:_ERROR_CHARACTERS_MAX]
                ),
                version,
            )

    def all(self) -> list[UnendedErasure]:
        """By row key."""
        return [unended_of(entry.value) for entry in self._state.list(PREFIX)]

    def claim_due(self) -> list[tuple[UUID, int]]:
        """Those at which nobody has worked for ``AGAIN_AFTER_S``, each with the version of its
        note, which is the caller's from now on."""
        entries = self._state.list(PREFIX)
        if not entries:
            return []
        now_us = self._state.now_us()
        claimed = []
        for entry in entries:
            note = unended_of(entry.value)
            if now_us - note.begun_at_us < AGAIN_AFTER_S * 1_000_000:
                continue
            version = self._write(msgspec.structs.replace(note, begun_at_us=now_us), entry.version)
            if version is not None:
                claimed.append((UUID(note.row_key), version))
        return claimed

    def _write(self, note: UnendedErasure, expected: int | None = None) -> int | None:
        key = _key(UUID(note.row_key))
        return self._state.commit(
            {key: msgspec.json.encode(note)}, expect={} if expected is None else {key: expected}
        )


class ErasureJob:
    """Ends the erasures that are due; used by one thread. ``erase``: an erasure whose note is
    written, of that version (``Datastore.end_erasure``)."""

    def __init__(self, notes: ErasureNotes, erase: Callable[[UUID, int], object]) -> None:
        self._notes, self._erase = notes, erase
        self._reported: dict[UUID, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Looks until ``stop`` is set. Errors are logged and waited out."""
        while not stop.wait(LOOK_EVERY_S):
            with suppress(CellfeedError):  # the state table is away: others report that
                self.look()

    def look(self) -> int:
        """One look; how many erasures were ended. Raises Unavailable when the state table does not
        answer."""
        ended = 0
        for row_key, version in self._notes.claim_due():
            failpoint("erasures.after_claim")
            try:
                self._erase(row_key, version)
            except CellfeedError as error:
                if self._reported.get(row_key) != str(error):
                    self._reported[row_key] = str(error)
                    _log.error(
                        "the erasure of row %s is not done yet, and is tried again: %s",
                        row_key,
                        error,
                    )
                continue
            self._reported.pop(row_key, None)
            ended += 1
            _log.warning("the erasure of row %s, which had been broken off, is done", row_key)
        return ended


def _key(row_key: UUID) -> str:
    return f"{PREFIX}{row_key}"
