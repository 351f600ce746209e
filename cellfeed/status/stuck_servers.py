"""Processes, storage and parts of the host that stand still."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cellfeed.status.causes import Cause
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.stuck_part import Stuck
from cellfeed.store.clusters.serving.status import NodeRole


def stuck_servers(found: InstanceStatus, now_us: int) -> Iterator[Stuck]:
    """Processes, storage, coordination, disks and certificates."""
    yield from _processes(found)
    if found.storage_away:
        yield Stuck(
            "storage", "datastore", Cause.STORAGE_AWAY, found.storage_away, "bring the storage back"
        )
    if found.coordination_away:
        yield Stuck(
            "coordination",
            "groups",
            Cause.COORDINATION_AWAY,
            found.coordination_away,
            "bring the coordination back: until then no shard changes hands",
        )
    for cluster in found.clusters:
        yield from _cluster(cluster)
    yield from _host(found, now_us)


def _processes(found: InstanceStatus) -> Iterator[Stuck]:
    for each in found.processes:
        if not each["up"]:
            yield Stuck(
                "process",
                each["name"],
                Cause.PROCESS_DOWN,
                "it does not run",
                f"cellfeed start {each['name']}; its log is {each['log']}",
            )
        for trouble in each["troubles"]:
            yield Stuck(
                "process",
                each["name"],
                Cause.WORK_STOPPED,
                trouble,
                f"see its log, {each['log']}; restart it where a loop is dead",
            )
    for each in found.missing:
        yield Stuck(
            "process",
            each["name"],
            Cause.PROCESS_DOWN,
            f"it could not be started: {each['reason']}",
            "mend that: the start is tried again by itself",
        )


def _cluster(cluster: dict[str, Any]) -> Iterator[Stuck]:
    name, master = cluster["name"], cluster.get("master")
    if cluster["error"]:
        yield Stuck(
            "cluster",
            name,
            Cause.MASTER_AWAY,
            cluster["error"],
            f"cellfeed cluster status; when its master is gone: cellfeed cluster promote {name}",
        )
    for node in cluster["nodes"]:
        subject = f"{name} node {node['name']}"
        if (not node["up"] or node["error"]) and node["name"] == master:
            yield Stuck(
                "cluster",
                subject,
                Cause.MASTER_AWAY,
                f"it is the master: {node['error'] or 'it does not answer'}",
                f"start its server; when it is gone: cellfeed cluster promote {name}",
            )
        elif not node["up"] or node["error"]:
            yield Stuck(
                "cluster",
                subject,
                Cause.NODE_AWAY,
                node["error"] or "it does not answer",
                f"start its server; rejoin it when it was replaced: cellfeed cluster rejoin {name}"
                f" {node['name']}",
            )
        elif master and node["role"] == NodeRole.APART:
            yield Stuck(
                "cluster",
                subject,
                Cause.NODE_FENCED,
                f"it answers and is fenced: it does not follow the present master, {master}",
                f"cellfeed cluster rejoin {name} {node['name']}",
            )


def _host(found: InstanceStatus, now_us: int) -> Iterator[Stuck]:
    for disk in found.disks:
        if disk.is_full:
            yield Stuck(
                "disk",
                disk.subject,
                Cause.DISK_FULL,
                f"{disk.folder}: {disk.words()}",
                "grow the file system, trim logs, or move folders to another one",
            )
    for each in found.certificates:
        if each.error or each.ends_us <= now_us:
            yield Stuck(
                "certificate",
                each.subject,
                Cause.CERTIFICATE_EXPIRED,
                f"{each.path}: {each.error or 'expired, so that peers refuse to connect'}",
                "replace the file: listeners take it within seconds, or at SIGHUP",
                0 if each.error else each.ends_us,
            )
