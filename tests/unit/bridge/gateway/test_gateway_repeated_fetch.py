"""Full fetches that repeat each other: in whichever order a client names its partitions, each has
the request that was sent last, and one that changed is due."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.gateway.fetch.partitions import Terms
from cellfeed.bridge.gateway.fetch.repeated import RepeatedFetch
from cellfeed.bridge.gateway.wire.fetch_request import FetchRequest, Row, row_format
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.following.heads import LogHeads

VERSION = 11
TERMS = Terms(object(), VERSION)
Asked = list[tuple[int, int]]
"""Partitions and offsets, in the order of a request."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["turn", "seek", "swap", "leave out", "twice", "all", "version"]),
        st.integers(0, 69),
        st.integers(0, 2),
    ),
    max_size=12,
)


def repeated() -> RepeatedFetch:
    return RepeatedFetch(LogHeads(cast("Engine", None), cast("ThreadPoolExecutor", None)), 0.0)


def request_of(topics: dict[str, Asked], version: int = VERSION) -> FetchRequest:
    rows = row_format(version)
    values: dict[str, Any] = {"current_leader_epoch": -1, "log_start_offset": -1, "tags": 0}
    regions = [
        (
            topic,
            b"".join(
                rows.struct.pack(
                    *(
                        {"partition": partition, "fetch_offset": offset}.get(
                            name, values.get(name, 100)
                        )
                        for name in rows.fields
                    )
                )
                for partition, offset in asked
            ),
        )
        for topic, asked in topics.items()
    ]
    return FetchRequest(version, 500, 1, 1000, False, 0, -1, list(regions), [])


def rows_of(fetch: RepeatedFetch, request: FetchRequest) -> list[tuple[Any, list[Row]]]:
    return [(topic, [each.asked for each in run]) for topic, run in fetch.follow(request)]


def stepped(asked: Asked, what: str, at: int, offset: int) -> Asked:
    if what == "turn":
        return asked[at:] + asked[:at]
    if what == "seek":
        return [(partition, offset if partition == at else old) for partition, old in asked]
    if what == "swap":
        return [*asked[1:2], *asked[:1], *asked[2:]]
    if what == "leave out":
        return asked[:at] + asked[at + 1 :]
    if what == "twice":
        return [*asked, *asked[:1]]
    return [(partition, offset) for partition in range(70)]


@given(STEPS)
def test_each_repeated_request_is_answered_as_without_kept_fetches(
    steps: list[tuple[str, int, int]],
) -> None:
    fetch, version = repeated(), VERSION
    topics = {"trips": [(each, 0) for each in range(70)], "fares": [(each, 0) for each in range(3)]}
    last: dict[tuple[Any, int], Row] = {}
    for what, at, offset in [("all", 0, 0), *steps]:
        version = (VERSION if version == 5 else 5) if what == "version" else version
        name = "fares" if at % 5 == 0 else "trips"
        if what != "version":
            topics = {**topics, name: stepped(topics[name], what, at, offset)}
        request = request_of(topics, version)
        found = rows_of(fetch, request)
        rows = row_format(version)
        sent = [
            (topic, [rows.read(row) for row in rows.rows(region)])
            for topic, region in request.topics
        ]
        by_partition = {(topic, row.partition): row for topic, run in sent for row in run}
        once = {topic: dict.fromkeys(row.partition for row in run) for topic, run in sent}
        assert [
            (topic, [by_partition[topic, partition] for partition in partitions])
            for topic, partitions in once.items()
        ] == found
        assert len(fetch) == len(by_partition)
        due = {(each.topic, each.partition) for each in fetch.take_due(TERMS)}
        assert due >= {key for key, row in by_partition.items() if last.get(key) != row}
        last = by_partition


def test_a_request_that_begins_with_another_partition_reads_the_rows_that_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch = repeated()
    asked = [(each, 0) for each in range(200)]
    for begin in range(3):  # the order is kept from the second request on
        fetch.follow(request_of({"trips": asked[begin:] + asked[:begin]}))
    fetch.take_due(TERMS)
    monkeypatch.setattr(RepeatedFetch, "_run", None)
    asked[150] = (150, 7)
    rows = rows_of(fetch, request_of({"trips": asked[77:] + asked[:77]}))[0][1]
    assert [(row.partition, row.offset) for row in rows] == asked[77:] + asked[:77]
    assert [each.asked.offset for each in fetch.take_due(TERMS)] == [7]


def test_a_position_that_returns_and_partitions_that_change_places_are_seen() -> None:
    fetch = repeated()
    first = [(each, 0) for each in range(200)]
    moved = [(each, 7 if each == 150 else 0) for each in range(200)]
    swapped = [first[1], first[0], *first[2:]]
    for asked in (first, first[1:] + first[:1], moved, first, swapped, moved, swapped):
        rows = rows_of(fetch, request_of({"trips": asked}))[0][1]
        assert [(row.partition, row.offset) for row in rows] == asked


def test_a_client_with_a_new_order_of_partitions_each_time_is_still_followed() -> None:
    fetch = repeated()
    for step in range(1, 80):
        asked = [(each * step % 83, step) for each in range(83)]
        rows = rows_of(fetch, request_of({"trips": asked}))[0][1]
        assert [(row.partition, row.offset) for row in rows] == asked
