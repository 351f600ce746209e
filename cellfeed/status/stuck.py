"""The parts of an instance that do not advance, with reason, time and remedy.

Made from its status alone: of offsets, heads and the reasons that workers report. A healthy shard
advances within a second, so that nothing here is a matter of load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cellfeed.bridge.triggers.operate.lag import GroupLag as TriggerLag
from cellfeed.bridge.triggers.operate.lag import ShardLag
from cellfeed.status.group_words import named, remedy_of_wait
from cellfeed.status.instance_groups import GroupLag
from cellfeed.status.instance_status import InstanceStatus

STUCK_S: Final = 10.0
"""A shard with cells to do that did not advance for so long is stuck: a lease that ran out, the
longest wait of a healthy group, is over within that."""

LATE_TIMES: Final = 3
"""A backup or a check is late when the last one is older than so many times its interval."""

_SHARDS_NAMED_MAX: Final = 8


class Stuck(msgspec.Struct, frozen=True):
    """``kind``: ``process``, ``storage``, ``cluster``, ``coordination``, ``trigger``, ``index``,
    ``export``, ``group``, ``topic``, ``erasure``, ``backup`` or ``check``. ``shards``: those of it
    that stand still; none where all of it does. ``since_us``: microseconds since 1970 UTC; 0 where
    nobody knows."""

    kind: str
    name: str
    reason: str
    remedy: str
    since_us: int = 0
    shards: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) or None for name in self.__struct_fields__}

    @property
    def where(self) -> str:
        """The kind, the name and the shards, for people."""
        shown = ", ".join(map(str, self.shards[:_SHARDS_NAMED_MAX]))
        more = len(self.shards) - _SHARDS_NAMED_MAX
        place = f" shard {shown}" if shown else ""
        return f"{self.kind} {self.name}{place}" + (f" and {more} more" if more > 0 else "")


def stuck(found: InstanceStatus, now_us: int) -> list[Stuck]:
    """Everything that stands still. ``now_us``: by the clock that stamps cells, microseconds since
    1970 UTC."""
    return [
        *_processes(found),
        *_storage(found),
        *_groups(found, now_us),
        *_care(found),
    ]


def _processes(found: InstanceStatus) -> Iterator[Stuck]:
    for each in found.processes:
        if not each["up"]:
            yield Stuck(
                "process",
                each["name"],
                "it does not run",
                f"cellfeed start {each['name']}; its log is {each['log']}",
            )
        for trouble in each["troubles"]:
            yield Stuck(
                "process",
                each["name"],
                trouble,
                f"see its log, {each['log']}; restart it where a loop is dead",
            )
    for each in found.missing:
        yield Stuck(
            "process",
            each["name"],
            f"it could not be started: {each['reason']}",
            "mend that: the start is tried again by itself",
        )


def _storage(found: InstanceStatus) -> Iterator[Stuck]:
    if found.storage_away:
        yield Stuck("storage", "datastore", found.storage_away, "bring the storage back")
    if found.coordination_away:
        yield Stuck(
            "coordination",
            "groups",
            found.coordination_away,
            "bring the coordination back: until then no shard changes hands",
        )
    for cluster in found.clusters:
        if cluster["error"]:
            yield Stuck(
                "cluster",
                cluster["name"],
                cluster["error"],
                f"cellfeed cluster status; when its master is gone: cellfeed cluster promote"
                f" {cluster['name']}",
            )
        for node in cluster["nodes"]:
            if not node["up"] or node["error"]:
                yield Stuck(
                    "cluster",
                    f"{cluster['name']} node {node['name']}",
                    node["error"] or "it does not answer",
                    f"start its server; rejoin it when it was replaced: cellfeed cluster rejoin"
                    f" {cluster['name']} {node['name']}",
                )


def _groups(found: InstanceStatus, now_us: int) -> Iterator[Stuck]:
    known = set()
    for lag in (*found.triggers, *found.exports):
        known.add(lag.group)
        yield from _of_group(lag, now_us)
    for group in found.groups:
        if group.group not in known:
            yield from _of_consumers(group, now_us)
    if found.consumers_wait:
        yield Stuck("group", "all", found.consumers_wait, "cellfeed offsets accept")
    for left in found.left_out:
        yield Stuck(
            "topic",
            left.column,
            f"{left.cells}{' or more' if left.or_more else ''} cells fit no version of its schema:"
            f" {left.first.reason}",
            f"cellfeed schemas unfit --column {left.column}",
        )


def _of_group(lag: TriggerLag, now_us: int) -> Iterator[Stuck]:
    kind, name, verb = named(lag.group)
    if lag.waits_because:
        yield Stuck(
            kind,
            name,
            lag.waits_because,
            remedy_of_wait(lag),
            _first_us(lag, now_us),
        )
    else:
        by_reason: dict[str, list[ShardLag]] = {}
        for shard in lag.shards:
            if shard.cells and now_us - _since_us(shard, now_us) > STUCK_S * 1e6:
                by_reason.setdefault(shard.because, []).append(shard)
        for reason, shards in by_reason.items():
            yield Stuck(
                kind,
                name,
                reason,
                f"cellfeed {verb} lag {name}" if verb else f"cellfeed index status {name}",
                min(_since_us(each, now_us) for each in shards),
                tuple(each.shard for each in shards),
            )
    if lag.parked:
        yield Stuck(
            kind,
            name,
            f"parked cells: {lag.parked}, for which its function failed",
            f"cellfeed export parked {name}" if verb == "export" else "cellfeed parked list",
        )


def _of_consumers(group: GroupLag, now_us: int) -> Iterator[Stuck]:
    if group.stopped_because:
        yield Stuck("group", group.group, group.stopped_because, "cellfeed offsets show")
    elif group.behind and now_us - group.committed_at_us > STUCK_S * 1e6:
        most = "at most " if group.at_most else ""
        yield Stuck(
            "group",
            group.group,
            f"{most}{group.behind} records of topic {group.topic} behind, and none saves offsets",
            "start its consumers, or look at their logs",
            group.committed_at_us,
        )


def _care(found: InstanceStatus) -> Iterator[Stuck]:
    for erasure in found.erasures:
        yield Stuck(
            "erasure",
            str(erasure.row_key),
            erasure.error or "it is not done yet",
            "a worker finishes it by itself: start one where none runs",
            erasure.asked_at_us,
        )
    for each in found.backups:
        age_s, damaged = each["age_s"], each["damaged"]
        if each["error"]:
            reason = f"the last attempt failed: {each['error']}"
        elif age_s is None:
            reason = "there is no whole backup yet"
        elif age_s > LATE_TIMES * each["every_s"]:
            reason = (
                f"the recovery point is {age_s:.0f} s old, one is due every {each['every_s']:g}"
            )
        elif damaged:
            reason = f"damaged: {', '.join(damaged)}"
        else:
            continue
        yield Stuck("backup", each["name"], reason, f"see its log; cellfeed start {each['name']}")
    check = found.check
    if check is not None:
        if check["damaged"] or check["unread"]:
            yield Stuck(
                "check",
                "damage",
                f"{check['damaged']} findings, {check['unread']} places were not looked at",
                "cellfeed check",
            )
        elif (check["age_s"] or 0) > LATE_TIMES * check["every_s"]:
            yield Stuck(
                "check",
                "damage",
                f"the last whole one began {check['age_s']:.0f} s ago",
                "see the logs of the workers, or raise checks.cells_per_s",
            )


def _since_us(shard: ShardLag, now_us: int) -> int:
    """From when on a shard had something to do and did not advance."""
    waits_us = now_us - int((shard.seconds or 0.0) * 1e6)
    return max(shard.progress_us, waits_us)


def _first_us(lag: TriggerLag, now_us: int) -> int:
    return min((_since_us(each, now_us) for each in lag.shards if each.cells), default=0)
