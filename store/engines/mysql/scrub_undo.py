"""Rewrites the undo logs and the doublewrite buffer of a server, through a scratch table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cellfeed.store.engines.mysql.scrub_session import ScrubSession
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.scrub.after_undo")

_SCRATCH_ROWS: Final = 512
_SCRATCH_BYTES: Final = 7_000
"""Two rows a page: 256 pages, twice as many as the doublewrite buffer holds."""

_SEGMENTS: Final = 128
_UNDO_ROUNDS: Final = 8
"""Transactions take the rollback segments by turns; each fills one log that was kept of a segment,
so this is how many a segment may have kept."""

_FLUSHES: Final = 3
_PURGE_S: Final = 120.0
_PURGED: Final = re.compile(r"Trx id counter (\d+)\s+Purge done for trx's n:o < (\d+)")


def rewrite_undo(session: ScrubSession, scratch: str) -> str | None:
    """Why undo logs may still have bytes, or None. ``scratch``: the name of a database that nobody
    else has."""
    with _scratch_table(session, scratch) as table:
        for number in range(0, _UNDO_ROUNDS * _SEGMENTS, _SEGMENTS // 2):
            letters = "ab" if number // (_SEGMENTS // 2) % 2 else "ba"
            # A value that is there already would not be written.
            updates = [
                f"UPDATE {table} SET filler = REPEAT('{letters[n % 2]}', {_SCRATCH_BYTES} +"
                f" {n % 7}) WHERE id <= 2"
                for n in range(_SEGMENTS // 2)
            ]
            session.all(updates)
        why_not = _wait_for_purge(session)
        failpoint("mysql.scrub.after_undo")
        for n in range(_FLUSHES):
            session.rows(f"UPDATE {table} SET filler = REPEAT('{'cd'[n % 2]}', {_SCRATCH_BYTES})")
            session.rows(f"FLUSH LOCAL TABLES {table} FOR EXPORT")
            session.rows("UNLOCK TABLES")
    return why_not


@contextmanager
def _scratch_table(session: ScrubSession, scratch: str) -> Iterator[str]:
    table = f"{scratch}.page"
    session.rows(f"DROP DATABASE IF EXISTS {scratch}")
    session.rows(f"CREATE DATABASE {scratch}")
    session.rows(
        f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, filler VARBINARY(8000) NOT NULL)"
        " ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
    )
    for first in range(1, _SCRATCH_ROWS + 1, _SEGMENTS):
        values = ",".join(
            f"({number}, REPEAT('z', {_SCRATCH_BYTES}))"
            for number in range(first, first + _SEGMENTS)
        )
        session.rows(f"INSERT INTO {table} VALUES {values}")
    yield table
    session.rows(f"DROP DATABASE {scratch}")


def _wait_for_purge(session: ScrubSession) -> str | None:
    """Until no transaction from before now has an undo log."""
    until, _ = _purged(session)
    try:
        session.wait(
            lambda: _purged(session)[1] >= until, "old versions of rows to be purged", _PURGE_S
        )
    except StorageUnavailable as error:
        return (
            f"undo logs: {error}; a transaction that was begun long ago keeps them (a backup, a"
            " copy to a node): scrub again when it is over"
        )
    return None


def _purged(session: ScrubSession) -> tuple[int, int]:
    """The number of the next transaction, and below which one all are purged."""
    [(_, _, text)] = session.rows("SHOW ENGINE INNODB STATUS")
    found = _PURGED.search(str(text))
    if found is None:
        raise StorageUnavailable(
            f"{session.server}: SHOW ENGINE INNODB STATUS does not show how far the purge is"
        )
    return int(found[1]), int(found[2])
