"""Up to which id a backup takes each log: every cell that was acknowledged when the backup began is
below it.

Acknowledged cells lie below the next ids that a master reports from then on. Its earlier reports do
not count: another process may have put cells since, and minions may be as far behind. But a backup
reads only cells below the watermark, which minions raise. So it waits until the watermark has
passed the first next ids that the masters report after the call. A promotion meanwhile may discard
ids that were never acknowledged: then the new master's word counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import StorageUnavailable, Unavailable

WAIT_S: Final = 30.0
"""Longest time for the watermark to pass the acknowledged cells, in seconds: longer than a
promotion, and than a minion that lags under load."""

_LOOK_EVERY_S: Final = 0.05
_NAMED_MAX: Final = 10


def acknowledged_heads(engine: Engine) -> dict[int, Head]:
    """Heads whose watermarks have passed all that was acknowledged before the call. Raises
    StorageUnavailable, with the shards and ids, when that takes longer than ``WAIT_S``."""
    wanted: dict[int, tuple[int, int]] = {}
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            for shard, (epoch, next_added_id) in engine.acknowledged_ends().items():
                if shard not in wanted or wanted[shard][0] != epoch:
                    wanted[shard] = epoch, next_added_id
            heads = engine.heads()
        except Unavailable:  # as while a promotion is under way
            if time.monotonic() >= until_s:
                raise
            time.sleep(_LOOK_EVERY_S)
            continue
        behind = {
            shard: head
            for shard, head in heads.items()
            if shard not in wanted or head.watermark < wanted[shard][1]
        }
        if not behind:
            return heads
        if time.monotonic() >= until_s:
            raise StorageUnavailable(_why(behind, wanted))
        time.sleep(_LOOK_EVERY_S)


def _why(behind: Mapping[int, Head], wanted: Mapping[int, tuple[int, int]]) -> str:
    lines = [
        (
            f"shard {shard} from {head.watermark} to {wanted[shard][1] - 1}"
            if shard in wanted
            else f"shard {shard} from {head.watermark} on (no master answers)"
        )
        for shard, head in sorted(behind.items())
    ]
    more = f", and {len(lines) - _NAMED_MAX} more shards" if len(lines) > _NAMED_MAX else ""
    return (
        f"no backup taken: cells that are acknowledged were not on a minion within {WAIT_S:g} s:"
        f" {'; '.join(lines[:_NAMED_MAX])}{more}. See with `cellfeed cluster status` which node is"
        " away or behind, start it or bring it back with `cellfeed cluster rejoin`, and take the"
        " backup again"
    )
