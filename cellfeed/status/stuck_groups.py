"""Triggers, indexes, exports and consumer groups that stand still."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cellfeed.bridge.triggers.operate.lag import GroupLag as TriggerLag
from cellfeed.bridge.triggers.operate.lag import ShardLag
from cellfeed.status.causes import Cause
from cellfeed.status.group_words import is_paused, named, remedy_of_wait
from cellfeed.status.instance_groups import GroupLag
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.stuck_part import Stuck

STUCK_S: Final = 7.5
"""A shard with cells to do that did not advance for so long is stuck. With a look every two seconds
it is named within ten."""

WAITS_STUCK_S: Final = 4.0
"""The same of a shard whose worker reports that it waits for something outside."""

_WAITS: Final = "waiting: "
_KAFKA: Final = "the Kafka cluster"


def stuck_groups(found: InstanceStatus, now_us: int) -> Iterator[Stuck]:
    """``now_us``: as in :func:`cellfeed.status.stuck.stuck`."""
    known = set()
    for lag in (*found.triggers, *found.exports):
        known.add(lag.group)
        yield from _of_group(lag, now_us, is_built=lag.group in found.builds)
    for group in found.groups:
        if group.group not in known:
            yield from _of_consumers(group, now_us)
    for build, begun_us in found.builds.items():
        if build not in known and now_us - begun_us > STUCK_S * 1e6:
            _, name, _ = named(build)
            yield Stuck(
                "index",
                name,
                Cause.INDEX_BUILD_STANDS,
                "it is to be built, and no worker has ever begun",
                f"start index workers (`indexes:` of the file): cellfeed index build {name}",
                begun_us,
            )
    if found.consumers_wait:
        yield Stuck(
            "group", "all", Cause.OFFSETS_LOST, found.consumers_wait, "cellfeed offsets accept"
        )
    for left in found.left_out:
        yield Stuck(
            "topic",
            left.column,
            Cause.CELLS_LEFT_OUT,
            f"{left.cells}{' or more' if left.or_more else ''} cells fit no version of its schema:"
            f" {left.first.reason}",
            f"cellfeed schemas unfit --column {left.column}",
        )


def _of_group(lag: TriggerLag, now_us: int, *, is_built: bool) -> Iterator[Stuck]:
    kind, name, verb = named(lag.group)
    if lag.waits_because:
        yield Stuck(
            kind,
            name,
            _cause_of_wait(lag.waits_because),
            lag.waits_because,
            remedy_of_wait(lag),
            _first_us(lag, now_us),
        )
    elif not (is_built and _advances(lag, now_us)):
        by_reason: dict[str, list[ShardLag]] = {}
        for shard in lag.shards:
            if shard.cells and now_us - _since_us(shard, now_us) > _patience_s(shard) * 1e6:
                by_reason.setdefault(shard.because, []).append(shard)
        for reason, shards in by_reason.items():
            cause = _cause_of_shards(reason, is_built=is_built)
            look = f"cellfeed {verb} lag {name}" if verb else f"cellfeed index status {name}"
            yield Stuck(
                kind,
                name,
                cause,
                reason,
                f"start the brokers; {look}" if cause is Cause.KAFKA_AWAY else look,
                min(_since_us(each, now_us) for each in shards),
                tuple(each.shard for each in shards),
            )
    if lag.parked:
        yield Stuck(
            kind,
            name,
            Cause.CELLS_PARKED,
            f"parked cells: {lag.parked}, for which its function failed",
            f"cellfeed export parked {name}" if verb == "export" else "cellfeed parked list",
        )


def _cause_of_wait(because: str) -> Cause:
    if is_paused(because):
        return Cause.PAUSED
    return Cause.OFFSETS_LOST if because.startswith("stands still:") else Cause.FUNCTIONS_FAIL


def _cause_of_shards(reason: str, *, is_built: bool) -> Cause:
    if reason.startswith(_WAITS + _KAFKA):
        return Cause.KAFKA_AWAY
    return Cause.INDEX_BUILD_STANDS if is_built else Cause.SHARDS_STAND


def _of_consumers(group: GroupLag, now_us: int) -> Iterator[Stuck]:
    if group.stopped_because:
        yield Stuck(
            "group",
            group.group,
            Cause.OFFSETS_LOST,
            group.stopped_because,
            "cellfeed offsets show",
        )
    elif group.behind and now_us - group.committed_at_us > STUCK_S * 1e6:
        most = "at most " if group.at_most else ""
        yield Stuck(
            "group",
            group.group,
            Cause.CONSUMERS_STAND,
            f"{most}{group.behind} records of topic {group.topic} behind, and none saves offsets",
            "start its consumers, or look at their logs",
            group.committed_at_us,
        )


def _advances(lag: TriggerLag, now_us: int) -> bool:
    """Whether any shard of it does. A build gives its shards turns, so most of them wait."""
    return any(now_us - each.progress_us <= STUCK_S * 1e6 for each in lag.shards)


def _patience_s(shard: ShardLag) -> float:
    return WAITS_STUCK_S if shard.because.startswith(_WAITS) else STUCK_S


def _since_us(shard: ShardLag, now_us: int) -> int:
    """From when on a shard had something to do and did not advance."""
    waits_us = now_us - int((shard.seconds or 0.0) * 1e6)
    return max(shard.progress_us, waits_us)


def _first_us(lag: TriggerLag, now_us: int) -> int:
    return min((_since_us(each, now_us) for each in lag.shards if each.cells), default=0)
