"""Coordination of 4,096 shards, in ZooKeeper beside the store: saves of offsets per second, and
moving shards to new members.

``commits`` are those of shard runs: one offset under its claim in a transaction of its own, from 8
threads of one process, as a trigger worker has by default. ``rebalance`` is the time from the join
of 7 members to the first one until all 8 have claimed 512 shards each: dividing, giving back,
claiming, reading the offsets, one member after the other as they come. One ZooKeeper server on
loopback, with its log on this machine's disk; SQLite beside it. Without ZooKeeper on the machine
there are the store's figures only.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from benchmarks import Figure, at_most
from cellfeed.bridge.coordination.assignment import balance
from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Coordinator, Session
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.store.datastore import Datastore
from tests.support import local_zookeeper
from tests.support.local_zookeeper import ZooKeeper

SHARDS = 4_096
MEMBERS = 8
THREADS = 8
COMMITS = 8_192
RUNS = 3
TTL_S = 30.0
REBALANCE_LIMIT_S = 12.0
"""A lease of 10 s and the 2 s that a take-over may take beyond it."""


def figures(runs: int = RUNS, shards: int = SHARDS, commits: int = COMMITS) -> Iterator[Figure]:
    """Measures; see the module."""
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-coordination-"))
    server = ZooKeeper(directory / "zookeeper") if local_zookeeper.why_not() is None else None
    try:
        with Datastore.open_embedded(directory / "store", shards=1) as datastore:
            urls = {"store": "store"}
            if server is not None:
                server.start()
                urls["ZooKeeper"] = server.url
            measured: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}
            for run in range(runs):
                for name, url in urls.items():
                    group = f"{name}-{run}"
                    with closing(open_coordinator(url, datastore.state)) as coordinator:
                        measured[name].append(
                            (
                                _rebalance(coordinator, group, shards),
                                _commits(coordinator, group, shards, commits),
                            )
                        )
        medians = {
            name: [statistics.median(each) for each in zip(*found, strict=True)]
            for name, found in measured.items()
        }
        beside = "the store (SQLite)"
        for name in [name for name in urls if name != "store"] or ["store"]:
            other = medians["store"] if name != "store" else [None, None]
            yield Figure(
                f"coordination commits {name}", medians[name][1], "commits/s", beside, other[1]
            )
            yield Figure(
                f"coordination rebalance {name}",
                medians[name][0],
                "s",
                beside,
                other[0],
                at_most(REBALANCE_LIMIT_S),
            )
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(directory)


def _rebalance(coordinator: Coordinator, group: str, shards: int) -> float:
    """Seconds; leaves member 0's claims in place for :func:`_commits` to claim again."""
    first = coordinator.join(group, "m0", TTL_S)
    assert coordinator.lead(first)
    coordinator.assign(first, balance(shards, ["m0"], {}))
    held: dict[str, dict[int, Claim]] = {"m0": coordinator.claim(first, "trips", range(shards))}
    assert len(held["m0"]) == shards
    coordinator.commit_offsets(
        group,
        {("trips", shard): CommittedOffset(1) for shard in range(shards)},
        claims=list(held["m0"].values())[:1],
    )
    begun_s = time.perf_counter()
    sessions: list[Session] = [
        first,
        *(coordinator.join(group, f"m{number}", TTL_S) for number in range(1, MEMBERS)),
    ]
    coordinator.assign(
        first, balance(shards, coordinator.members(group), coordinator.assignment(group))
    )
    assignment = coordinator.assignment(group)
    coordinator.release([claim for shard, claim in held["m0"].items() if assignment[shard] != "m0"])
    for session in sessions[1:]:
        mine = [
            shard
            for shard, member in coordinator.assignment(group).items()
            if member == session.member
        ]
        claims = coordinator.claim(session, "trips", mine)
        assert len(claims) == len(mine)
        coordinator.fetch_offsets(group, [("trips", shard) for shard in claims])
    return time.perf_counter() - begun_s


def _commits(coordinator: Coordinator, group: str, shards: int, commits: int) -> float:
    """Commits per second."""
    group = f"{group}-commits"
    claims = coordinator.claim(coordinator.join(group, "m0", TTL_S), "trips", range(shards))

    def save(number: int) -> None:
        for each in range(number, commits, THREADS):
            shard = each % shards
            coordinator.commit_offsets(
                group, {("trips", shard): CommittedOffset(2 + each)}, claims=[claims[shard]]
            )

    coordinator.commit_offsets(
        group, {("trips", shard): CommittedOffset(1) for shard in range(shards)}, claims=[claims[0]]
    )
    with ThreadPoolExecutor(THREADS) as pool:
        begun_s = time.perf_counter()
        list(pool.map(save, range(THREADS)))
        return commits / (time.perf_counter() - begun_s)
