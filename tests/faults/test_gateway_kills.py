"""kill -9 of a gateway while two members of a group read and commit and a writer writes: commits
survive, and nothing lies between two positions unread."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from cellfeed.store.datastore import Datastore
from tests.faults.gateway_system import StoreWriter
from tests.faults.group_members import GroupLedger, GroupMember, check_group
from tests.faults.invariants import check_gapless, check_log, check_reader, merge
from tests.faults.ledger import Ledger
from tests.faults.workload import KafkaReader, seen_cell
from tests.support.running_gateway import GatewayProcess
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

KILLS = 4
SHARDS = 16
GROUP = "billing"
STEP_S = 40.0
"""How long any step may take: a killed gateway's members join again within their session time-out
of six seconds."""


def committed(bootstrap: str) -> dict[int, int]:
    """The group's positions as the gateway tells them to anybody."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    try:
        found = consumer.committed(
            [TopicPartition("trips", shard) for shard in range(SHARDS)], timeout=STEP_S
        )
        return {each.partition: max(each.offset, 0) for each in found}
    finally:
        consumer.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_group_resumes_from_its_commits_after_many_gateway_kills(
    tmp_path: Path, seed: int
) -> None:
    """The kills come at any moment: between a commit's write and its answer (the position is then
    ahead of the acknowledged one, and the records before it were handled); in the middle of an
    answer to a fetch, while the group forms."""
    chance = random.Random(seed)
    puts, group = Ledger(), GroupLedger()
    with ExitStack() as stack:
        datastore = stack.enter_context(Datastore.open_embedded(tmp_path / "store"))
        gateway = stack.enter_context(GatewayProcess(tmp_path / "store", tmp_path / "gateway.log"))
        writer = StoreWriter(datastore, puts, 0.002)
        reader = KafkaReader(gateway.bootstrap, "trips", SHARDS)
        members = [
            GroupMember(gateway.bootstrap, "trips", GROUP, name, group)
            for name in ("first", "second")
        ]
        threads: list[StoreWriter | KafkaReader | GroupMember] = [writer, reader, *members]
        for thread in threads:
            thread.start()
            stack.callback(thread.stop)

        def has_committed(before: int) -> bool:
            return group.total_acknowledged() > before

        def has_resumed(before: int) -> bool:
            return len(group.resumed) > before

        wait_until(partial(has_committed, 0), "the group reads and commits")

        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.0))
            pid, before, resumed = (
                gateway.process.pid,
                group.total_acknowledged(),
                len(group.resumed),
            )
            killed_s = time.monotonic()
            gateway.kill()
            time.sleep(chance.uniform(0.0, 0.7))
            gateway.start()
            started_s = time.monotonic()
            assert gateway.process.pid != pid
            assert puts.acknowledged_between(killed_s, started_s) > 0, (
                "the writer went on without a gateway"
            )
            wait_until(partial(has_committed, before), "the group commits again")
            wait_until(partial(has_resumed, resumed), "the group formed again")

        writer.stop()
        ends = {shard: head.watermark for shard, head in datastore.heads().items()}
        wait_until(
            lambda: group.acknowledged == {shard: end for shard, end in ends.items() if end},
            "the group comes to the end of the logs",
        )
        assert reader.wait_for(ends, STEP_S)
        positions = committed(gateway.bootstrap)
        assert positions == ends, "every reported position was acknowledged"
        gateway.kill()
        gateway.start()
        assert committed(gateway.bootstrap) == positions, "commits are durable before their answer"

        log = {
            shard: [
                seen_cell(cell) for cell in datastore.get_cells_for_shard(shard, 0, 10_000).cells
            ]
            for shard in ends
        }
        assert {shard: len(cells) for shard, cells in log.items()} == ends
        found = merge(
            check_log(puts, log),
            check_gapless(log),
            check_reader(log, reader.read, "by assignment"),
            check_group(group, ends),
        )
        assert {name: violations for name, violations in found.items() if violations} == {}
        assert reader.errors == []
        assert group.errors == []
        assert {each.member for each in group.resumed} == {"first", "second"}
    assert "Traceback" not in (tmp_path / "gateway.log").read_text()
