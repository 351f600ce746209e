"""Whether everything of an instance advances, and whether its processes answer."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.status.stuck import stuck
from cellfeed.status.stuck_part import Stuck

_ANSWER_S: Final = 3.0
"""How long a process of this host may take for an answer. Its own look at the storage takes two."""

_GROUPS: Final = ("trigger", "index", "export", "group", "topic")


def examine_progress(instance: Instance) -> Iterator[Finding]:
    """One finding for each part that stands still, and one for all those that do not."""
    found = instance.status
    if not found.processes and not found.missing:
        yield Finding(
            "progress", "instance", Level.ADVICE, "none of its processes runs", "cellfeed up"
        )
    standing = stuck(found, time.time_ns() // 1000)
    for each in standing:
        yield Finding("progress", each.where, Level.PROBLEM, each.reason + since(each), each.remedy)
    if found.storage_away or found.coordination_away:
        return
    if not any(each.kind in _GROUPS for each in standing):
        groups = {each.group for each in (*found.triggers, *found.exports)}
        groups |= {each.group for each in found.groups}
        yield Finding(
            "progress", "groups", Level.WELL, f"none of {len(groups)} groups stands still"
        )
    for lag in (*found.triggers, *found.exports):
        if lag.without_worker and not lag.waits_because:
            yield Finding(
                "progress",
                lag.group,
                Level.ADVICE,
                f"{lag.without_worker} of its shards have no worker: {lag.takes_nothing or 'idle'}",
                "start its workers before cells come",
            )


def examine_answers(instance: Instance) -> Iterator[Finding]:
    """Asks each running process on its own ports."""
    hosts: dict[str, str] = {each.name: each.host for each in instance.config.workers}
    hosts |= {each.name: each.host for each in instance.config.gateways}
    for process in instance.status.processes:
        if not process["up"]:
            continue
        host = hosts.get(process["name"], "127.0.0.1")
        for purpose, port in process["ports"].items():
            subject = f"{process['name']} {purpose} {host}:{port}"
            if purpose == "http":
                yield readiness(subject, host, port)
            else:
                yield connection(subject, host, port)


def readiness(subject: str, host: str, port: int) -> Finding:
    """The report of a worker on itself."""
    asked = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    try:
        asked.request("GET", "/health/ready")
        answer: dict[str, Any] = json.loads(asked.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _silent(subject, error)
    finally:
        asked.close()
    if answer.get("ready"):
        return Finding("answers", subject, Level.WELL, "ready")
    return Finding(
        "answers",
        subject,
        Level.PROBLEM,
        f"it is not ready: {answer.get('reason')}",
        "mend that; restart it where a loop is dead",
    )


def connection(subject: str, host: str, port: int) -> Finding:
    """Whether the port takes connections."""
    try:
        socket.create_connection((host, port), _ANSWER_S).close()
    except OSError as error:
        return _silent(subject, error)
    return Finding("answers", subject, Level.WELL, "takes connections")


def since(each: Stuck) -> str:
    """For how long it has stood still, as the end of a sentence."""
    if not each.since_us:
        return ""
    return f" (for {max(0.0, time.time() - each.since_us / 1e6):.0f} s)"


def _silent(subject: str, error: Exception) -> Finding:
    return Finding(
        "answers",
        subject,
        Level.PROBLEM,
        f"no answer: {error or type(error).__name__}",
        "it hangs, or another program has its port: see its log, and restart it",
    )
