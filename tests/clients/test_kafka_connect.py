"""Kafka Connect's file sink, with nothing but a gateway as its cluster: every record, at least
once, over a kill."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.coordination.open import IN_STORE, open_coordinator
from cellfeed.store.datastore import Datastore
from tests.support.kafka_connect import ConnectUnavailable, FileSink, connect_class_path
from tests.support.running_gateway import GatewayProcess
from tests.support.waiting import wait_until

CUT = '{"added_id":38,"body":{"number":605},"shard":8}'
pytestmark = [pytest.mark.integration, pytest.mark.slow]


def records(lines: list[str]) -> list[Any]:
    """The whole records in a sink's file. A line that a kill cut off has no end: the first record
    of the next process follows it on the same line."""
    starts = [(line, line.rfind('{"added_id"')) for line in lines]
    return [json.loads(line[start:]) for line, start in starts if start >= 0 and line[-1] == "}"]


@pytest.mark.parametrize("cut", range(len(CUT)))
def test_a_record_behind_a_truncated_one_is_found(cut: int) -> None:
    whole = '{"added_id":240,"body":{"late":13},"shard":8}'
    assert records([whole, CUT[:cut] + whole]) == [json.loads(whole)] * 2


def test_a_file_sink_has_every_record_after_connect_was_killed(
    own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    try:
        class_path = connect_class_path()
    except ConnectUnavailable as reason:
        pytest.skip(f"no Kafka Connect: {reason}")
    directory = tmp_path / "connect"
    directory.mkdir()
    with (
        Datastore.open_embedded(tmp_path / "store") as datastore,
        closing(open_coordinator(IN_STORE, datastore.state)) as coordinator,
        FileSink(directory, class_path, own_gateway.bootstrap, "trips.BASE") as sink,
    ):

        def cells() -> set[tuple[int, int]]:
            shards = range(datastore.shards)
            return {
                (shard, cell.added_id)
                for shard in shards
                for cell in datastore.engine.scan(shard, 0, 1 << 20)
                if cell.column_name == "BASE"
            }

        def written() -> set[tuple[int, int]]:
            return {(each["shard"], each["added_id"]) for each in records(sink.lines)}

        def committed() -> dict[int, int]:
            return {
                partition: each.offset
                for (_, partition), each in coordinator.fetch_offsets(sink.group).items()
            }

        first = cells()
        wait_until(lambda: bool(committed()), "Connect commits in its group")
        assert sink.process is not None
        pid = sink.process.pid
        sink.kill()
        before = committed()
        assert before
        for number in range(500):
            datastore.put_cell(uuid.uuid4(), "BASE", 0, {"late": number}).or_raise()
        lines = len(sink.lines)
        sink.start()
        assert sink.process is not None
        assert sink.process.pid != pid

        everything = cells()
        assert everything > first
        ends = {shard: added_id + 1 for shard, added_id in sorted(everything)}
        wait_until(
            lambda: all(committed().get(shard, 0) >= end for shard, end in ends.items()),
            "Connect has committed to the end",
        )
        assert written() == everything, "what was committed is in the file, and nothing else"
        assert len(sink.lines) > lines, "the second process wrote, too"
        after = committed()
        assert all(after[partition] >= offset for partition, offset in before.items())
