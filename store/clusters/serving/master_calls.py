"""Calls of a cluster's master, and their outcomes when a promotion is in their way.

The outcome of a put that was under way during a promotion:

    refused by the master (read-only, another epoch, no connection)   nothing written: tried once
                                                                      more on the new master, then
                                                                      reported as unavailable.
    committed there, the promotion seen only afterwards               reported as unknown: the cell
                                                                      may be on no other node;
                                                                      putting it again shows which.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from cellfeed.store.clusters.model.roles import TAKEOVER_S, Role
from cellfeed.store.clusters.serving.known_role import KnownRole
from cellfeed.store.clusters.serving.node_engine import READ_TIMEOUT_S, WRITE_TIMEOUT_S, NodeEngine
from cellfeed.store.clusters.serving.succession import (
    ask_silent,
    is_majority_heard,
)
from cellfeed.store.errors import (
    OutcomeUnknown,
    StaleWriter,
    StorageUnavailable,
)

ROLE_FRESH_S: Final = 1.0
"""A commit that took longer than this, in seconds, is acknowledged only after the cluster's nodes
were asked again for the master."""

T = TypeVar("T")


class MasterCalls(KnownRole):
    """See the module."""

    def write(self, what: Callable[[NodeEngine, Role], T], timeout_s: float = WRITE_TIMEOUT_S) -> T:
        """Calls the function given with the master's engine and the role that it is under; see the
        module for a promotion meanwhile. Raises as the engine's ``put``, but for StaleWriter: the
        caller has no epoch of its own, so a promotion in its way is a storage that is away for a
        moment."""
        role = self.role()
        try:
            try:
                return self._write_under(role, what, timeout_s)
            except (StorageUnavailable, StaleWriter):
                # Nothing was written. If another node is master by now it is asked, once.
                self.look()
                now = self.role()
                if now == role:
                    raise
                return self._write_under(now, what, timeout_s)
        except StaleWriter as error:
            raise StorageUnavailable(
                f"cluster {self.name}: a promotion is under way: {error}"
            ) from error

    def ask_master(self, what: Callable[[NodeEngine], T], timeout_s: float = READ_TIMEOUT_S) -> T:
        """The master's answer about entries that are written there, as leases and offsets are. An
        old master that nobody could fence answers, too: where another node reports a new one by
        now, the new one is asked. Where few nodes answer, the master's word is all there is: a
        commit compares versions. Raises as :meth:`write`."""
        since_s, nodes = time.monotonic() - TAKEOVER_S, self.nodes.values()
        asked = ask_silent(nodes, self.role().master, since_s)
        value, role = self.write(lambda engine, role: (what(engine), role), timeout_s)
        is_majority_heard(nodes, role.master, since_s, asked)
        if self.role().epoch > role.epoch:
            return self.ask_master(what, timeout_s)
        return value

    def _write_under(
        self, role: Role, what: Callable[[NodeEngine, Role], T], timeout_s: float
    ) -> T:
        began_s = time.monotonic()
        result = self.node(role.master).call(lambda engine: what(engine, role), timeout_s)
        if time.monotonic() - began_s > ROLE_FRESH_S:
            self.look()
            now = self.role()
            if now.epoch != role.epoch:
                raise OutcomeUnknown(
                    f"cluster {self.name}: {role.master} committed, but {now.master} has become"
                    " master meanwhile; put the same cells again to learn their fate"
                )
        return result
