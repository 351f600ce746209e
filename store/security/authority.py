"""The one authority of a process: peers and their rights, as the state table last had them.

:meth:`Authority.look` reads the table; a server calls it every ``SECURITY_LOOK_S``. While the table
cannot be read, users and rights stay as they were. Before the first look nobody is let in.
"""

from __future__ import annotations

import logging
from typing import Final

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import CellfeedError
from cellfeed.store.repeated_warnings import RepeatedWarning
from cellfeed.store.security.access import Security
from cellfeed.store.security.users import read_security

_UNREAD: Final = Security({}, (), b"", is_closed=True)


class Authority:
    """See the module. ``security`` is replaced as a whole; any thread may read it."""

    def __init__(self, state: StateTable) -> None:
        self._state = state
        self._log = logging.getLogger("cellfeed.security")
        self._warning = RepeatedWarning(self._log)
        self.security = _UNREAD
        self.because = ""
        """Why the last look failed; empty where it did not."""

    def look(self) -> bool:
        """Takes changed users, tokens and ACLs; whether they could be read. Blocks for a read of
        the state table; raises nothing."""
        try:
            found = read_security(self._state)
        except CellfeedError as error:
            self.because = str(error)
            self._warning.warn(
                "users and ACLs cannot be read just now, and stay as they were: %s", error
            )
            return False
        self.because = ""
        if found == self.security:
            return True
        for key in found.unreadable - self.security.unreadable:
            self._log.error("%s cannot be read: it lets nobody in, and allows nothing", key)
        self.security = found
        return True
