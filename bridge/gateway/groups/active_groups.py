"""Which groups have members, kept where the next coordinator finds it.

A commit without a generation comes from an admin tool that sets offsets of an empty group, or from
a consumer without group management. While a group changes hands its members are in none: their new
coordinator does not know them yet. A client that put a commit off and has lost its membership sends
that without a generation, too. Without a note of the members the coordinator would take that for an
admin's, and a group's offset would fall (I20). So:

    gateways/groups/<slot>/<digest of the name>     {"group_id", "session_timeout_s"}: the longest
                                                    of its members; from before its first generation
                                                    until it is empty

A gateway that takes the slot over treats such a group as one with members until they have rejoined
or their sessions would have ended. A broker does the same, by the members that it keeps in the log.

Crash points: the note is written, under the fence of the claim, before a member is let in; it is
deleted when the last one has gone. A gateway that dies between leaves a note too many: the group
counts as one with members for one session time-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from hashlib import blake2b

import msgspec
from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.gateway.groups.active_notes import ACTIVE_PREFIX, ActiveGroup
from cellfeed.bridge.gateway.groups.cluster import GatewayCluster
from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.groups.slot_owners import GROUP
from cellfeed.bridge.gateway.groups.spread import slot_of
from cellfeed.store.errors import CellfeedError, StaleWriter

_log = logging.getLogger("cellfeed.gateway")


class ActiveGroups:
    """Used by the event loop."""

    def __init__(
        self,
        coordinator: Coordinator,
        cluster: GatewayCluster,
        groups: GroupTable,
        executor: Executor,
    ) -> None:
        self._coordinator = coordinator
        self._cluster = cluster
        self._groups = groups
        self._executor = executor
        self._noted: dict[str, tuple[int, float]] = {}
        """Group to the tenure in which it was noted, and the time-out that stands there."""
        self._tasks: set[asyncio.Task[None]] = set()
        groups.on_ended = self._ended

    async def expect_member(self, group_id: str, session_timeout_s: float) -> ErrorCode:
        """To be awaited before a member is let in: notes the group. ``none``, or why the member
        cannot be let in now."""
        if error := self._cluster.group_error(group_id):
            return error
        if self._is_noted(group_id, session_timeout_s):
            return ErrorCode.none
        async with self._groups.offsets_lock(group_id):
            if error := self._cluster.group_error(group_id):
                return error
            tenure = self._cluster.tenure(group_id)
            known = self._noted.get(group_id, (tenure, 0.0))
            longest_s = max(
                session_timeout_s,
                known[1] if known[0] == tenure else 0.0,
                self._groups.awaited_s(group_id),
            )
            try:
                await self._write(group_id, msgspec.json.encode(ActiveGroup(group_id, longest_s)))
            except StaleWriter:
                return ErrorCode.not_coordinator
            except CellfeedError:
                return ErrorCode.coordinator_not_available
            self._noted[group_id] = tenure, longest_s
        return self._cluster.group_error(group_id)

    async def close(self) -> None:
        """Waits for notes that are being deleted."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- inside -----------------------------------------------------------------------------------

    def _is_noted(self, group_id: str, session_timeout_s: float) -> bool:
        tenure, noted_s = self._noted.get(group_id, (-1, 0.0))
        return tenure == self._cluster.tenure(group_id) and noted_s >= session_timeout_s

    def _ended(self, group_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self._forget(group_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget(self, group_id: str) -> None:
        async with self._groups.offsets_lock(group_id):
            if self._groups.get(group_id) is not None or group_id not in self._noted:
                return
            del self._noted[group_id]
            if self._cluster.group_error(group_id):
                return
            try:
                await self._write(group_id, None)
            except CellfeedError as error:
                _log.info(
                    "group %r is empty, which could not be noted just now: %s", group_id, error
                )

    async def _write(self, group_id: str, value: bytes | None) -> None:
        claim = self._cluster.claim(group_id)
        entries: Mapping[str, bytes | None] = {active_key(group_id): value}
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(
            self._executor,
            lambda: self._coordinator.commit_offsets(GROUP, {}, claims=[claim], entries=entries),
        )


def active_key(group_id: str) -> str:
    """Of a group's note in the state table."""
    digest = blake2b(group_id.encode(), digest_size=16).hexdigest()
    return f"{ACTIVE_PREFIX}{slot_of(group_id)}/{digest}"
