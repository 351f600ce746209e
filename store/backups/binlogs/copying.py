"""Copies one stream of transactions into an archive, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from cellfeed.store.backups.binlogs.archive import BinlogArchive, Reached
from cellfeed.store.backups.binlogs.piece import PieceHead
from cellfeed.store.backups.binlogs.position import Position, has_passed, text_of
from cellfeed.store.backups.binlogs.stream import Passed, clock_and_position
from cellfeed.store.backups.binlogs.transactions import Transaction
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.sealed import PLAIN
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.failpoints import declare, failpoint

declare("binlogs.after_piece", "binlogs.after_reached")

PIECE_BYTES: Final = 8 << 20
"""Of transactions, after which a piece ends before its time: so many are held in memory, several
times over where they are encrypted."""

IDLE_S: Final = 10.0
"""How often an archive says how far it is while nothing is committed, in seconds: each time is a
write to the place."""

ROLE_S: Final = 5.0
"""How often the role is read, in seconds: a master that was cut off from its minions keeps
sending."""


class Copying:
    """The transactions read from one stream, and the end of the written ones. ``recipients``: whom
    pieces are encrypted to; ``said`` is called after each look at the clock."""

    def __init__(
        self,
        archive: BinlogArchive,
        reached: Reached,
        master: MySqlServer,
        begin: Position,
        recipients: Recipients | None,
        said: Callable[[Reached], None],
    ) -> None:
        self._recipients = recipients
        self._said = said
        self._archive = archive
        self._reached = reached
        self._master = master
        self._begin = self._position = begin
        self._waiting = list[Transaction]()
        self._bytes = 0
        self._wrote = False
        self._flushed_s = self._said_s = self._role_s = self._looked_s = time.monotonic()
        self._begun_us, self._target = clock_and_position(master)

    def take(self, passed: Passed) -> None:
        if passed.transaction is not None and not passed.transaction.is_empty:
            self._waiting.append(passed.transaction)
            self._bytes += passed.transaction.size_bytes
        self._position = passed.position

    def is_due(self, flush_s: float) -> bool:
        return self._bytes >= PIECE_BYTES or time.monotonic() - self._flushed_s >= flush_s

    def is_role_due(self) -> bool:
        if time.monotonic() - self._role_s < ROLE_S:
            return False
        self._role_s = time.monotonic()
        return True

    def look(self) -> None:
        """Writes the waiting transactions, and the end of the archive after them. The look after a
        piece says so once more: only a moment that was read behind the piece covers the cells in
        it."""
        wrote = self.flush()
        if has_passed(self._position, self._target):
            self._reached = msgspec.structs.replace(
                self._reached,
                position=text_of(self._position),
                at_us=max(self._begun_us, self._reached.at_us),
            )
            self._looked_s = time.monotonic()
            self._begun_us, self._target = clock_and_position(self._master)
            if wrote or self._wrote or time.monotonic() - self._said_s >= IDLE_S:
                self._archive.say(self._reached)
                self._said_s = time.monotonic()
                failpoint("binlogs.after_reached")
            self._said(self._reached)
            self._wrote = wrote
        elif wrote:
            self._archive.say(self._reached)
            self._wrote = True
        self._flushed_s = time.monotonic()

    def flush(self) -> bool:
        """Writes the waiting transactions. Returns whether there was anything."""
        if not self._waiting:
            return False
        elapsed_us = int((time.monotonic() - self._looked_s) * 1e6)
        head = PieceHead(
            PLAIN,
            "",
            0,
            "",
            str(self._master),
            text_of(self._begin),
            text_of(self._position),
            self._begun_us + elapsed_us,
            self._reached.since_us,
            0,
            {},
            0,
            "",
            [],
            self._reached.gap,
        )
        self._reached = self._archive.append(self._reached, head, self._waiting, self._recipients)
        failpoint("binlogs.after_piece")
        self._begin, self._waiting, self._bytes = self._position, [], 0
        return True
