"""Parts that stand still, each with its reason, its age and its remedy."""

from __future__ import annotations

from typing import Any

import pytest

from cellfeed.bridge.triggers.operate.lag import GroupLag as TriggerLag
from cellfeed.bridge.triggers.operate.lag import ShardLag
from cellfeed.status.causes import Cause
from cellfeed.status.certificates import CertificateEnd
from cellfeed.status.disks import Room
from cellfeed.status.instance_groups import GroupLag
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.stuck import stuck
from cellfeed.status.stuck_part import Stuck

NOW_US = 1_800_000_000_000_000
WORKER: dict[str, Any] = {"name": "worker", "up": True, "troubles": [], "log": "logs/worker.log"}


def at(seconds_ago: float) -> int:
    return NOW_US - int(seconds_ago * 1e6)


def shard(
    number: int, cells: int, *, waits_s: float = 60, progress_us: int = 0, because: str = "busy"
) -> ShardLag:
    return ShardLag(number, 0, cells, cells, waits_s if cells else 0.0, "w", progress_us, because)


def group(*shards: ShardLag, name: str = "billing", waits: str = "", parked: int = 0) -> TriggerLag:
    cells = sum(each.cells for each in shards)
    return TriggerLag(name, "trips", cells, 60.0, parked, ["w"], waits, list(shards))


def of(**found: Any) -> list[Stuck]:
    return stuck(InstanceStatus([WORKER], [], **found), NOW_US)


def test_an_instance_whose_parts_advance_has_nothing_that_stands_still() -> None:
    idle = group(shard(0, 0), shard(1, 0))
    behind = group(shard(0, 9, waits_s=7.4), shard(1, 9, progress_us=at(7.4)))
    readers = GroupLag("readers", "trips", 5, 0, None, committed_at_us=at(7.4))
    backup = {"name": "b", "age_s": 180.0, "every_s": 60.0, "error": None, "damaged": {}}
    check = {"damaged": 0, "unread": 0, "age_s": 180.0, "every_s": 60.0}
    assert of(triggers=[idle, behind], groups=[readers], backups=[backup], check=check) == []


@pytest.mark.parametrize(
    ("name", "kind", "shown", "remedy"),
    [
        ("billing", "trigger", "billing", "cellfeed triggers lag billing"),
        ("export/eu", "export", "eu", "cellfeed export lag eu"),
        ("index.by.v2.v7", "index", "by.v2", "cellfeed index status by.v2"),
    ],
)
def test_shards_that_did_not_advance_for_long_are_named_by_their_reason(
    name: str, kind: str, shown: str, remedy: str
) -> None:
    lag = group(
        shard(0, 3, waits_s=11, because="cell 4 failed"),
        shard(1, 3, waits_s=500, progress_us=at(40), because="cell 4 failed"),
        shard(2, 3, waits_s=12, because="no worker has it"),
        shard(3, 0),
        name=name,
    )
    failed, without = of(triggers=[lag])
    assert (failed.kind, failed.name, failed.shards) == (kind, shown, (0, 1))
    assert (failed.reason, failed.since_us, failed.remedy) == ("cell 4 failed", at(40), remedy)
    assert (without.shards, without.reason) == ((2,), "no worker has it")
    assert failed.where == f"{kind} {shown} shard 0, 1"


def test_a_group_that_waits_as_a_whole_is_one_line_with_the_command_that_resumes_it() -> None:
    paused = group(shard(0, 3), shard(1, 4), waits="paused by anna since noon", parked=2)
    waits, parked = of(triggers=[paused])
    assert (waits.shards, waits.reason) == ((), "paused by anna since noon")
    assert waits.remedy == "cellfeed triggers resume billing"
    assert (parked.reason[:15], parked.remedy) == ("parked cells: 2", "cellfeed parked list")
    [exported] = of(exports=[group(shard(0, 0), name="export/eu", parked=1)])
    assert exported.remedy == "cellfeed export parked eu"


@pytest.mark.parametrize(
    ("name", "because", "remedy"),
    [
        ("billing", "stopped: 100 cells are parked", "cellfeed parked resume billing"),
        ("billing", "stands still: its offsets were lost", "cellfeed triggers lag billing"),
        ("billing", "reset is under way by anna", "cellfeed triggers lag billing"),
        ("export/eu", "paused by anna", "cellfeed export resume eu"),
        ("index.by.v2", "paused by anna", "cellfeed index status by"),
    ],
)
def test_the_remedy_of_a_group_that_waits_fits_its_reason(
    name: str, because: str, remedy: str
) -> None:
    [found] = of(triggers=[group(shard(0, 3), name=name, waits=because)])
    assert found.remedy == remedy


def test_a_consumer_group_stands_still_when_nobody_saves_its_offsets() -> None:
    silent = GroupLag("readers", "trips", 5, 0, None, at_most=True, committed_at_us=at(11))
    [found] = of(groups=[silent])
    assert (found.kind, found.since_us) == ("group", at(11))
    assert "at most 5 records of topic trips" in found.reason
    assert of(groups=[GroupLag("readers", "trips", 0, 0, None)]) == []
    [stopped] = of(groups=[GroupLag("readers", "trips", 0, 0, "its offsets were lost")])
    assert stopped.reason == "its offsets were lost"
    # A trigger's own offsets are those of its group: it is not counted twice.
    assert of(groups=[GroupLag("billing", "trips", 5, 0, None)], triggers=[group()]) == []


def test_processes_that_do_not_run_or_report_troubles_are_named_with_their_logs() -> None:
    found = InstanceStatus(
        [
            {**WORKER, "troubles": ["the loop drain is dead"]},
            {**WORKER, "name": "gateway", "up": False, "log": "logs/gateway.log"},
        ],
        [{"name": "db", "kind": "mariadb", "reason": "its port is taken"}],
    )
    loop, dead, missing = stuck(found, NOW_US)
    assert loop.reason == "the loop drain is dead"
    assert (dead.name, "logs/gateway.log" in dead.remedy) == ("gateway", True)
    assert "its port is taken" in missing.reason


def test_storage_coordination_and_nodes_that_are_away_are_named() -> None:
    node = {"name": "a", "up": False, "error": None}
    cluster = {"name": "eu", "error": "its master is fenced", "nodes": [node]}
    found = of(storage_away="no master", coordination_away="no ZooKeeper", clusters=[cluster])
    assert [each.kind for each in found] == ["storage", "coordination", "cluster", "cluster"]
    assert [each.reason for each in found] == [
        "no master",
        "no ZooKeeper",
        "its master is fenced",
        "it does not answer",
    ]
    [alone] = of(coordination_away="no ZooKeeper")
    assert alone.cause is Cause.COORDINATION_AWAY
    well = {"name": "eu", "error": None, "nodes": [{"name": "a", "up": True, "error": None}]}
    assert of(clusters=[well]) == []


@pytest.mark.parametrize(
    ("backup", "reason"),
    [
        ({"age_s": None}, "no whole backup"),
        ({"age_s": 181.0}, "181 s old"),
        ({"error": "the bucket is away"}, "the bucket is away"),
        ({"damaged": {"b-1": "too short"}}, "damaged: b-1"),
    ],
)
def test_backups_are_late_failing_or_damaged(backup: dict[str, Any], reason: str) -> None:
    whole = {"name": "b", "age_s": 1.0, "every_s": 60.0, "error": None, "damaged": {}}
    [found] = of(backups=[{**whole, **backup}])
    assert (found.kind, reason in found.reason) == ("backup", True)


@pytest.mark.parametrize(
    "check", [{"damaged": 1}, {"unread": 1}, {"age_s": 181.0}], ids=["damaged", "unread", "late"]
)
def test_a_check_with_findings_or_without_an_end_is_named(check: dict[str, Any]) -> None:
    well = {"damaged": 0, "unread": 0, "age_s": None, "every_s": 60.0}
    assert of(check=well) == []
    [found] = of(check={**well, **check})
    assert found.kind == "check"


# --- causes ---------------------------------------------------------------------------------------


def test_a_full_disk_and_an_ended_certificate_are_named() -> None:
    gib = 1 << 30
    disks = [
        Room("store", "/srv", free=gib // 2, total=100 * gib),
        Room("run directory", "/run", free=2 * gib, total=1_000 * gib),
        Room("blocks", "/small", free=3 << 20, total=200 << 20),
    ]
    ends = [
        CertificateEnd("gateway", "/c.pem", at(5)),
        CertificateEnd("worker", "/w.pem", at(-5)),
        CertificateEnd("node", "/n.pem", 0, "no such file"),
    ]
    disk, ended, unreadable = of(disks=disks, certificates=ends)
    assert (disk.kind, disk.name, disk.cause) == ("disk", "store", Cause.DISK_FULL)
    assert "0.5 of 100.0 GiB" in disk.reason
    assert (ended.cause, ended.since_us) == (Cause.CERTIFICATE_EXPIRED, at(5))
    assert (unreadable.name, "no such file" in unreadable.reason) == ("node", True)


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        ({"name": "a", "up": False}, Cause.MASTER_AWAY),
        ({"name": "b", "up": False}, Cause.NODE_AWAY),
        ({"name": "b", "role": "apart"}, Cause.NODE_FENCED),
    ],
)
def test_a_node_is_named_by_its_role(node: dict[str, Any], cause: Cause) -> None:
    whole = {"up": True, "error": None, "role": "minion", **node}
    [found] = of(clusters=[{"name": "eu", "master": "a", "error": None, "nodes": [whole]}])
    assert (found.cause, found.name) == (cause, f"eu node {node['name']}")
    # Nobody is fenced by a master that nobody knows.
    unknown = {"name": "eu", "master": "", "error": None, "nodes": [{**whole, "up": True}]}
    assert of(clusters=[unknown]) == []


def test_a_shard_that_waits_for_a_cluster_is_named_sooner_and_by_that_cause() -> None:
    kafka = "waiting: the Kafka cluster has not yet acknowledged the records"
    export = group(shard(0, 3, waits_s=5, because=kafka), name="export/eu")
    [found] = of(exports=[export])
    assert found.cause is Cause.KAFKA_AWAY
    assert of(exports=[group(shard(0, 3, waits_s=3.9, because=kafka), name="export/eu")]) == []


def test_a_build_stands_when_no_shard_of_it_advances_or_nobody_has_begun() -> None:
    name = "index.by.v2"
    waiting = group(shard(0, 3, progress_us=at(9)), shard(1, 3, progress_us=at(90)), name=name)
    [found] = of(triggers=[waiting], builds={name: at(100)})
    assert (found.cause, found.shards) == (Cause.INDEX_BUILD_STANDS, (0, 1))
    turns = group(shard(0, 3, progress_us=at(1)), shard(1, 3, progress_us=at(90)), name=name)
    assert of(triggers=[turns], builds={name: at(100)}) == []
    [named] = of(triggers=[turns])
    assert named.cause is Cause.SHARDS_STAND
    [nobody] = of(builds={name: at(8)})
    assert (nobody.kind, nobody.name, nobody.cause) == ("index", "by", Cause.INDEX_BUILD_STANDS)
    assert of(builds={name: at(7)}) == []


@pytest.mark.parametrize(
    ("because", "cause"),
    [
        ("paused by anna", Cause.PAUSED),
        ("reset is under way by anna", Cause.PAUSED),
        ("stands still: its offsets were lost", Cause.OFFSETS_LOST),
        ("stopped: 100 cells are parked", Cause.FUNCTIONS_FAIL),
        ("w pauses: cells of 5 rows failed alike", Cause.FUNCTIONS_FAIL),
    ],
)
def test_a_group_that_waits_has_the_cause_of_its_reason(because: str, cause: Cause) -> None:
    [found] = of(triggers=[group(shard(0, 0), waits=because)])
    assert found.cause is cause
