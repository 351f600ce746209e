"""The counts of requests by API: answers, errors, durations and bytes."""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cellfeed.bridge.gateway.apis.advertised import APIS
from cellfeed.bridge.gateway.apis.registry import api_names
from cellfeed.bridge.gateway.request_tallies import LOOKED_AT_MAX, RequestTallies, error_codes


class _Families(Collector):
    def __init__(self, tallies: RequestTallies) -> None:
        self._tallies = tallies

    def collect(self) -> list[Metric]:
        return list(self._tallies.families(api_names()))


def test_an_answer_counts_its_duration_its_bytes_and_each_of_its_errors_once() -> None:
    tallies, registry = RequestTallies(), CollectorRegistry()
    registry.register(_Families(tallies))
    tallies.answered(1, 0.02, 100, 5_000)
    tallies.answered(1, 7.0, 50, 10)
    out_of_range = ErrorCode.offset_out_of_range
    tallies.failed(1, [ErrorCode.none, out_of_range, out_of_range])

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"cellfeed_gateway_{name}", {"api": "fetch", **labels})

    assert value("request_seconds_count") == 2
    assert value("request_seconds_sum") == 7.02
    assert value("request_seconds_bucket", le="0.025") == 1
    assert value("request_seconds_bucket", le="+Inf") == 2
    assert value("received_bytes_total") == 150
    assert value("sent_bytes_total") == 5_010
    assert value("request_errors_total", error="offset_out_of_range") == 1
    assert value("request_errors_total", error="none") is None


def test_errors_are_found_at_every_depth_of_an_answer_up_to_a_bound() -> None:
    wrong = {"error_code": ErrorCode.unknown_topic_or_partition}
    well = {"error_code": ErrorCode.none, "name": "trips"}
    answer = {**well, "topics": [{**well, "partitions": [well, wrong]}], "raw": b"x", "none": None}
    assert error_codes(answer) == [ErrorCode.unknown_topic_or_partition]
    assert error_codes({"error_code": ErrorCode.not_coordinator}) == [ErrorCode.not_coordinator]
    many = {"topics": [well] * LOOKED_AT_MAX + [wrong]}
    assert error_codes(many) == []


def test_every_api_has_a_name_of_its_own() -> None:
    names = api_names()
    assert names.keys() == APIS.keys()
    assert len(set(names.values())) == len(APIS)
    assert (names[0], names[1], names[8]) == ("produce", "fetch", "offset_commit")
