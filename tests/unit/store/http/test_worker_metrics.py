"""A worker's metrics: each route with its rate, errors, durations and bytes; the writer's groups;
and the bound on series that users name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cellfeed.store.commit.writer_tally import WriterTally
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.app import WorkerApp
from cellfeed.store.http.server.metric_families import OTHERS, SERIES_MAX, bounded
from cellfeed.store.tallies import Tally
from tests.unit.store.http.test_worker_answers import call

GROUPS = 10_000


@pytest.fixture
def app(tmp_path: Path) -> Iterator[WorkerApp]:
    with Datastore.open_embedded(tmp_path) as store:
        made = WorkerApp(store)
        yield made
        made.close()


def samples(app: WorkerApp) -> dict[tuple[str, str], float]:
    """By name and route; of the writer by name alone."""
    return {
        (sample.name, sample.labels.get("route", "")): sample.value
        for family in text_string_to_metric_families(app.metrics.text().decode())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def test_each_route_has_its_rate_its_duration_and_its_bytes(app: WorkerApp) -> None:
    cell = {"row_key": str(UUID(int=1)), "column_name": "BASE", "ref_key": 1, "body": {"a": 1}}
    call(app, "POST", "/v1/trips/cell", cell)
    found = call(app, "GET", f"/v1/trips/row?row_key={UUID(int=1)}")
    call(app, "GET", "/v1/trips/nothing/there")
    figures = samples(app)
    for route in ("put_one", "get_row", "other"):
        assert figures["cellfeed_http_requests_total", route] == 1
        assert figures["cellfeed_http_request_seconds_count", route] == 1
        assert figures["cellfeed_http_request_seconds_sum", route] > 0
    assert figures["cellfeed_http_received_bytes_total", "put_one"] > 50
    assert figures["cellfeed_http_sent_bytes_total", "get_row"] == len(found.content)
    assert figures["cellfeed_writer_group_cells_sum", ""] == 1
    assert figures["cellfeed_writer_commit_seconds_count", ""] == 1
    assert figures["cellfeed_writer_wait_seconds_count", ""] == 1
    assert figures["process_resident_memory_bytes", ""] > 1e6


def test_the_wait_of_a_group_is_that_of_its_first_call() -> None:
    tally = WriterTally()
    tally.arrived()
    tally.taken()
    first_s = tally.waits.total
    tally.taken()  # of the calls that the first group left
    assert tally.waits.counts()[-1] == 2
    assert 0 < first_s < tally.waits.total
    tally.committed(10_001, 0.5)
    assert tally.cells.counts()[-2:] == [0, 1]


def test_a_value_at_a_limit_is_within_it() -> None:
    tally = Tally((1.0, 10.0))
    for value in (0.5, 1.0, 1.5, 10.0, 11.0):
        tally.add(value)
    assert tally.counts() == [2, 4, 5]
    assert tally.total == 24.0


def test_ten_thousand_groups_are_a_hundred_series_and_one() -> None:
    found = bounded(([f"group-{number}", "trips"], number) for number in range(GROUPS))
    assert len(found) == SERIES_MAX + 1
    by_name = {names[0]: value for names, value in found}
    assert by_name["group-9999"] == 9_999
    assert by_name[OTHERS] == sum(range(GROUPS - SERIES_MAX))
    ages = bounded(([f"group-{number}"], number) for number in range(GROUPS))
    assert sum(value for _, value in ages) == sum(range(GROUPS))
    oldest = bounded((([f"g{n}"], n) for n in range(200)), max)
    assert {names[0]: value for names, value in oldest}[OTHERS] == 99
    assert [names for names, _ in bounded([(["one"], 1.0)])] == [["one"]]
