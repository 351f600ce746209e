"""One addition to a table, with a catalog whose answers may be lost.

Each attempt looks at the table first. There are three cases:

- Its positions are those that the rows start from: try to commit, on that very state.
- They are those that the rows lead to, after an attempt with an unknown outcome: it had happened.
  So an answer that was lost costs a look, and no row is there twice.
- They are others: another loader was faster. Nothing is written.

A commit that arrives late, after its sender has given up, names a state that has passed. It is
refused. So a second attempt never meets the first one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import Final

from cellfeed.consumers.lake.contract import Addition, LakeTable, NotCommitted, State
from cellfeed.consumers.lake.positions import stand_at
from cellfeed.store.errors import CellfeedError, ProtectData, Unavailable
from cellfeed.store.failpoints import declare, failpoint

_log = logging.getLogger("cellfeed.consumers.lake")

ATTEMPTS: Final = 5
"""Commits tried in a row before the loader reads on, and tries the addition again later."""

PAUSE_FIRST_S: Final = 0.1
"""Pause after the first attempt that failed, seconds; it doubles with each further one."""

declare("lake.append.looked", "lake.append.committed", "lake.append.unknown")


class Outcome(Enum):
    """``LANDED``: the rows are in the table. ``OVERTAKEN``: another loader moved its positions, and
    none of these rows was added."""

    LANDED = "landed"
    OVERTAKEN = "overtaken"


Remake = Callable[[State], Addition | None]


class Appending:
    """One addition until its outcome is known."""

    def __init__(self, table: LakeTable, addition: Addition, remake: Remake | None = None) -> None:
        """``remake``: makes the files for the state that is committed on, where they depend on its
        rows; None when that state has them already."""
        self.addition = addition
        self._remake = remake
        self._table = table
        self._may_have_happened = False

    def run(self) -> Outcome:
        """Adds the files, or finds that another loader was faster.

        Raises Unavailable when the outcome is still unknown: call again. Raises ProtectData for a
        table of another source.
        """
        pause, trouble = PAUSE_FIRST_S, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(pause)
                pause *= 2
            try:
                return self._attempt()
            except (NotCommitted, Unavailable) as error:
                trouble = str(error)
            except CellfeedError:
                raise
            except Exception as error:
                # Of any kind: HTTP 500 after the catalog had committed, a connection that ended.
                trouble = f"{type(error).__name__}: {error}"
                self._may_have_happened = True
                _log.warning(
                    "%s: unknown whether a commit happened (%s)", self._table.name, trouble
                )
                failpoint("lake.append.unknown")
        raise Unavailable(f"{self._table.name} takes no commit just now: {trouble}")

    def _attempt(self) -> Outcome:
        state, addition = self._table.look(), self.addition
        refuse_other_source(self._table.name, state.source, addition.source)
        positions = state.positions
        if not stand_at(positions, addition.starts):
            landed = self._may_have_happened and stand_at(positions, addition.ends)
            return Outcome.LANDED if landed else Outcome.OVERTAKEN
        failpoint("lake.append.looked")
        if self._remake is not None:
            made = self._remake(state)
            if made is None:
                return Outcome.LANDED
            self.addition = addition = made
        state.add(addition)
        failpoint("lake.append.committed")
        return Outcome.LANDED


def append(table: LakeTable, addition: Addition, remake: Remake | None = None) -> Outcome:
    """:meth:`Appending.run` of a new addition."""
    return Appending(table, addition, remake).run()


def refuse_other_source(table: str, known: str, found: str) -> None:
    """Raises ProtectData, with both ids, unless the table belongs to the log that is read."""
    if known != found:
        raise ProtectData(
            f"{table} belongs to the log {known}; the one that is read now is {found}. It is of"
            " another datastore, or of one that was restored, or the topic was made again. Load it"
            " into a table of its own"
        )
