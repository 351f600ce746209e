"""This gateway among the others: which gateways there are, which leads which partition, which
coordinates which group. Seen from the event loop; the work is done in a thread of its own
(:mod:`cellfeed.bridge.gateway.groups.slot_claims`).

Any gateway can serve any partition, so the leader of a partition is only where clients are sent: it
spreads the load. Any other gateway still answers a fetch. The coordinator of a group is one gateway
at a time, and the others refuse.

**While the coordination is away** gateways and leaders stay as they were last seen and fetches
continue. So do the heartbeats of members, as long as the state table shows that no other gateway
has coordinated their slot. A request that would change a group (a join, a commit) is answered
COORDINATOR_NOT_AVAILABLE once another gateway could have it, and clients try again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.groups.living_gateways import LivingGateways
from cellfeed.bridge.gateway.groups.slot_claims import ClaimedSlot, Look, SlotClaims
from cellfeed.bridge.gateway.groups.spread import slot_of
from cellfeed.bridge.gateway.limits import COORDINATION_LOOK_S
from cellfeed.bridge.gateway.nodes import Node
from cellfeed.bridge.groups.definition import belongs_to_cellfeed
from cellfeed.store.background import keep_running
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import CellfeedError, StaleWriter
from cellfeed.store.repeated_warnings import RepeatedWarning

_log = logging.getLogger("cellfeed.gateway")


class GatewayCluster:
    """``await start()``, then it follows the others until ``await stop()``. ``on_superseded`` is
    called when another process has this gateway's name."""

    def __init__(
        self,
        coordinator: Coordinator,
        state: StateTable,
        groups: GroupTable,
        *,
        name: str,
        node: Node,
        shards: int,
        session_timeout_s: float,
        on_superseded: Callable[[StaleWriter], None],
    ) -> None:
        self.node_id = node.node_id
        self.gateways = LivingGateways(name, node, shards)
        """Which gateways there are, as of the last look."""
        self._groups = groups
        self._claims = SlotClaims(coordinator, state, name, node, session_timeout_s)
        self._on_superseded = on_superseded
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="gateway-coordination")
        self._task: asyncio.Task[None] | None = None
        self._slots: dict[int, ClaimedSlot] = {}
        self._triggers: frozenset[str] = frozenset()
        self._is_member = False
        self._is_away = False
        self._refused = RepeatedWarning(_log)

    async def start(self) -> None:
        """Joins and claims before the first client connects; with the coordination away it keeps
        trying."""
        await self._step()
        self._task = asyncio.create_task(keep_running("gateway-cluster", self._run))

    async def stop(self) -> None:
        """Gives the slots back, so that the others coordinate the groups at once."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._take_over({})
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._claims.leave)
        except CellfeedError as error:
            _log.warning(
                "the slots could not be given back, they are free once this gateway's session has"
                " ended: %s",
                error,
            )
        self._executor.shutdown(wait=True)

    # --- answers to clients -----------------------------------------------------------------------

    def coordinator(self, group_id: str) -> int | None:
        """The node that coordinates a group; None while it changes hands, or is not known."""
        slot = slot_of(group_id)
        if slot in self._slots:
            return self.node_id
        owner = self.gateways.coordinator(slot) if self._is_member else None
        # Ours by right and not claimed yet: its holder has not given it back, or the holder's
        # session has not ended.
        return owner if owner != self.node_id else None

    # --- what this gateway may do -----------------------------------------------------------------

    def group_error(self, group_id: str) -> ErrorCode:
        """``none`` when this gateway may change the group or report its state; otherwise the error
        that the client gets, after which it tries again."""
        claimed = self._slots.get(slot_of(group_id))
        if claimed is None:
            return (
                ErrorCode.coordinator_not_available
                if self.coordinator(group_id) is None
                else ErrorCode.not_coordinator
            )
        if time.monotonic() >= self._claims.confirmed_until_s:
            return ErrorCode.coordinator_not_available
        # The last of the reserved generations stays unused: more are reserved as soon as the
        # coordination answers.
        return (
            ErrorCode.none
            if self._groups.generation(group_id) < claimed.end - 1
            else ErrorCode.coordinator_not_available
        )

    def heartbeat_error(self, group_id: str) -> ErrorCode:
        """As :meth:`group_error` for a request that grants nothing: a member keeps its partitions
        as long as nobody else has coordinated the group."""
        return ErrorCode.none if slot_of(group_id) in self._slots else self.group_error(group_id)

    def refuses(self, group_id: str) -> bool:
        """Whether the name is no consumer group's: it is a trigger, an export or an index, whose
        offsets consumers may read, and never write."""
        if group_id not in self._triggers and not belongs_to_cellfeed(group_id):
            return False
        self._refused.warn(
            "consumer group %r is refused (INVALID_GROUP_ID): a trigger, export or index has that"
            " name, and its offsets; give the consumers another group.id",
            group_id,
        )
        return True

    def claim(self, group_id: str) -> Claim:
        """The fence of everything that is saved for the group. Only when :meth:`group_error` is
        ``none``."""
        return self._slots[slot_of(group_id)].claim

    def tenure(self, group_id: str) -> int:
        """Tells one stretch of time in which this gateway coordinates the group from every other;
        -1 while it does not."""
        claimed = self._slots.get(slot_of(group_id))
        return claimed.first if claimed is not None else -1

    def coordinates(self, group_id: str) -> bool:
        return slot_of(group_id) in self._slots

    # --- inside -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(COORDINATION_LOOK_S)
            await self._step()

    async def _step(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            look = await loop.run_in_executor(
                self._executor, self._claims.step, self._groups.generations()
            )
        except StaleWriter as superseded:
            self._take_over({})
            self._on_superseded(superseded)
        except CellfeedError as error:
            await self._coordination_is_away(error)
        except Exception:
            # An exception from below is a defect of ours; the groups are another gateway's when
            # this one does not get on.
            _log.exception("the coordination of groups failed, and is tried again")
        else:
            self._found(look)

    async def _coordination_is_away(self, error: CellfeedError) -> None:
        if not self._is_away:
            _log.warning(
                "the coordination is away; fetches continue, groups stay as they are: %s", error
            )
        self._is_away = True
        # With the store away as well nothing can be asked; nobody can have begun to coordinate
        # without writing there.
        with suppress(CellfeedError):
            self._take_over(
                await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._claims.step_without_coordination
                )
            )

    def _found(self, look: Look) -> None:
        if self._is_away:
            _log.info("the coordination is back")
        self._is_away, self._is_member = False, True
        self._triggers = look.triggers
        if self.gateways.replace(look.nodes):
            _log.info("gateways: %s", self.gateways)
        self._take_over(look.slots)

    def _take_over(self, slots: Mapping[int, ClaimedSlot]) -> None:
        before, self._slots = self._slots, dict(slots)
        for slot in before:
            if slot not in slots:
                self._groups.drop_slot(slot)
        for slot, claimed in slots.items():
            if slot not in before or before[slot].first != claimed.first:
                self._groups.take_slot(slot, claimed.first, claimed.active)
