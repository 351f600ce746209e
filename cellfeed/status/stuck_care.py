"""Erasures, backups and checks that are late or fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from cellfeed.status.causes import Cause
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.stuck_part import Stuck

LATE_TIMES: Final = 3
"""A backup or a check is late when the last one is older than so many times its interval."""


def stuck_care(found: InstanceStatus) -> Iterator[Stuck]:
    """See the module."""
    for erasure in found.erasures:
        yield Stuck(
            "erasure",
            str(erasure.row_key),
            Cause.ERASURE_OPEN,
            erasure.error or "it is not done yet",
            "a worker finishes it by itself: start one where none runs",
            erasure.asked_at_us,
        )
    for each in found.backups:
        if reason := _backup(each):
            yield Stuck(
                "backup",
                each["name"],
                Cause.BACKUP_LATE,
                reason,
                f"see its log; cellfeed start {each['name']}",
            )
    check = found.check
    if check is None:
        return
    if check["damaged"] or check["unread"]:
        yield Stuck(
            "check",
            "damage",
            Cause.DAMAGE,
            f"{check['damaged']} findings, {check['unread']} places were not looked at",
            "cellfeed check",
        )
    elif (check["age_s"] or 0) > LATE_TIMES * check["every_s"]:
        yield Stuck(
            "check",
            "damage",
            Cause.DAMAGE,
            f"the last whole one began {check['age_s']:.0f} s ago",
            "see the logs of the workers, or raise checks.cells_per_s",
        )


def _backup(each: dict[str, Any]) -> str:
    """Why a schedule of backups is late; empty where it is not."""
    age_s, damaged = each["age_s"], each["damaged"]
    if each["error"]:
        return f"the last attempt failed: {each['error']}"
    if age_s is None:
        return "there is no whole backup yet"
    if age_s > LATE_TIMES * each["every_s"]:
        return f"the recovery point is {age_s:.0f} s old, one is due every {each['every_s']:g}"
    return f"damaged: {', '.join(damaged)}" if damaged else ""
