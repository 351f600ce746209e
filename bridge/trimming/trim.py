"""Trimming a datastore: the logs of its shards begin later, and the cells before are gone. A trim
is planned first, refused as a whole, done step by step.

**The meaning of a trim** (E15). A trimmed cell is gone: no scan, no ``get``, no index finds it; the
latest cell of a row that was not written since is gone with it. So its triple may be put again, and
is a new cell then, with a new id, which every reader sees. Puts are idempotent for as long as their
cell is there: **trim nothing that somebody may still put again** (by a retry, a file loaded again,
a replay). ``trim_limits`` covers cells that wait in the buffers of other clusters.

**Nobody is overtaken unnoticed.** The plan names every group that has not reached the end of the
cells to trim (``needed.py``). It is refused while it names a group that the operator has not named
(``although``). A reader that later reads below the start of the log gets an error:
OFFSET_OUT_OF_RANGE from a gateway, Trimmed from the store. Triggers, indexes and exports stand
still with the reason.

Crash points: between two steps the log begins where its start says, and a trim that is run again
resumes there; its plan is made again. Inside a step: E15, and ``store/indexes/trimmed.py`` where
there are indexes. The entry in the history is written before the first step. It names the cells to
trim; the start of the log says how far the trim got.

A group, or an index, that is made while a trim runs may begin at a cell that the next step takes.
Then it stands still, and is begun again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.trimming.needed import Need, needs
from cellfeed.bridge.trimming.trim_history import HISTORY, TrimDeed
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidLocation, InvalidRequest, NotFound, ProtectData
from cellfeed.store.indexes.trimmed import IndexedTrim

_log: Final = logging.getLogger("cellfeed.trim")

_NAMED_MAX: Final = 5
"""Groups that a refusal names."""


OnProgress = Callable[[int], None]
"""Gets how many ids the log start has moved up by, after each step."""


@dataclass(frozen=True)
class ShardPlan:
    """The result of a trim in one shard: the log begins at ``below`` then, not at ``log_start``.
    ``needed``: groups that need trimmed cells."""

    shard: int
    log_start: int
    below: int
    needed: list[Need] = field(default_factory=list)

    @property
    def cells(self) -> int:
        return self.below - self.log_start


class Trimming:
    """See the module. Used by one thread at a time."""

    def __init__(self, datastore: Datastore, coordinator: Coordinator) -> None:
        self._datastore = datastore
        self._coordinator = coordinator
        self._indexes = IndexedTrim(datastore.engine, datastore.indexes, datastore.trim)

    def plan(
        self,
        shards: Sequence[int],
        *,
        below: int | None = None,
        older_than_s: float | None = None,
        on_shard: Callable[[], None] = lambda: None,
    ) -> list[ShardPlan]:
        """The plan of a trim of these shards: below an added_id, or of cells that were written more
        than so many seconds ago by the storage's clock. Those of a given age go as far as they may
        now. Raises InvalidRequest, InvalidLocation for an id beyond that, UnknownShard,
        Unavailable."""
        if (below is None) == (older_than_s is None):
            raise InvalidRequest(
                "a trim is below an added_id, or of cells older than an age: one of both"
            )
        if below is not None and below < 0:
            raise InvalidRequest(f"added_id {below} is below 0")
        engine = self._datastore.engine
        limits, heads, found = (
            engine.trim_limits(shards),
            engine.heads(shards),
            needs(self._datastore, self._coordinator),
        )
        written_before_us = engine.state.now_us() - round((older_than_s or 0) * 1e6)
        plans = []
        for shard in shards:
            if below is not None and below > limits[shard]:
                raise InvalidLocation(
                    f"shard {shard} cannot be trimmed below {below}: only cells below"
                    f" {limits[shard]} may go now (cells that are not on every minion yet,"
                    " and cells that"
                    " other clusters still buffer, may not)"
                )
            end = (
                below
                if below is not None
                else min(engine.locate(shard, written_before_us), limits[shard])
            )
            end = max(end, heads[shard].log_start)
            plans.append(
                ShardPlan(
                    shard,
                    heads[shard].log_start,
                    end,
                    found.below(shard, end) if end > heads[shard].log_start else [],
                )
            )
            on_shard()
        return plans

    def run(
        self,
        plans: Sequence[ShardPlan],
        by: Operator,
        although: Collection[str] = (),
        on_progress: OnProgress = lambda _: None,
    ) -> int:
        """Trims as planned; how many ids the logs start later. Raises ProtectData, before anything
        is done, while a group that is not named in ``although`` needs cells to trim; NotFound for
        one that is not known; Unavailable: steps until then are done, and it may be run again."""
        self._refuse(plans, although)
        for plan in plans:
            self._indexes.settle(plan.shard)  # the rest of an earlier one that was killed
        plans = [plan for plan in plans if plan.cells]
        if plans:
            self._remember(plans, by, although)
        trimmed = 0
        for plan in plans:
            start = plan.log_start
            while start < plan.below:
                before, start = start, self._indexes.step(plan.shard, start, plan.below)
                trimmed += start - before
                on_progress(start - before)
            _log.info(
                "shard %d of %s begins at %d now, it began at %d",
                plan.shard,
                self._datastore.name,
                plan.below,
                plan.log_start,
            )
        return trimmed

    def _refuse(self, plans: Sequence[ShardPlan], although: Collection[str]) -> None:
        found = needs(self._datastore, self._coordinator)  # once more: a plan may be old
        if unknown := sorted(set(although) - set(found.groups)):
            raise NotFound(
                f"no group {unknown[0]!r} is known here; those that are:"
                f" {', '.join(found.groups) or 'none'}"
            )
        in_the_way = [
            need
            for plan in plans
            if plan.cells
            for need in found.below(plan.shard, plan.below)
            if need.group not in although
        ]
        if in_the_way:
            named = "; ".join(map(str, in_the_way[:_NAMED_MAX])) + (
                "; …" if len(in_the_way) > _NAMED_MAX else ""
            )
            groups = " ".join(
                f"--although {group}"
                for group in sorted({need.group for need in in_the_way})[:_NAMED_MAX]
            )
            raise ProtectData(
                f"nothing trimmed: cells would go that are still needed: {named}. If they may miss"
                f" them: {groups}"
            )

    def _remember(
        self, plans: Sequence[ShardPlan], by: Operator, although: Collection[str]
    ) -> None:
        state = self._datastore.state
        deed = TrimDeed(
            by.name,
            by.because,
            state.now_us(),
            {plan.shard: (plan.log_start, plan.below) for plan in plans},
            sorted(although),
        )
        state.commit(
            {f"{HISTORY}{deed.at_us:020d}-{secrets.token_hex(4)}": msgspec.msgpack.encode(deed)}
        )
        said = ", ".join(f"{plan.shard}:{plan.below}" for plan in plans[:20])
        _log.info(
            "%s trims %s below %s%s because %s",
            by.name,
            self._datastore.name,
            said,
            " …" if len(plans) > 20 else "",
            by.because,
        )
