"""Requests of each Kafka API as a gateway counts them: answers, errors, durations, bytes.

The event loop alone changes the numbers. APIs and error codes are Kafka's own lists, so nobody
outside can make new series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from kio.schema.errors import ErrorCode
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cellfeed.store.http.server.metric_families import histogram
from cellfeed.store.tallies import Tally

LOOKED_AT_MAX: Final = 1_000
"""Fields of one answer that are looked at for error codes: a larger one rarely has one."""


class RequestTallies:
    """See the module."""

    def __init__(self) -> None:
        self._seconds: dict[int, Tally] = {}
        self._received: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._errors: dict[tuple[int, ErrorCode], int] = {}

    def answered(self, key: int, seconds: float, received: int, sent: int) -> None:
        """Counts an answer. ``seconds``: from the whole request to the answer, a fetch's wait
        included. Bytes are those of the frames."""
        if (tally := self._seconds.get(key)) is None:
            tally = self._seconds[key] = Tally()
        tally.add(seconds)
        self._received[key] = self._received.get(key, 0) + received
        self._sent[key] = self._sent.get(key, 0) + sent

    def failed(self, key: int, errors: Iterable[ErrorCode]) -> None:
        """Counts an answer under each of its error codes, once."""
        for error in {each for each in errors if each is not ErrorCode.none}:
            self._errors[key, error] = self._errors.get((key, error), 0) + 1

    def families(self, names: Mapping[int, str]) -> Iterator[Metric]:
        """For Prometheus. ``names``: of the APIs, by key."""
        named: dict[tuple[str, ...], Tally] = {
            (names[key],): tally for key, tally in self._seconds.items()
        }
        yield histogram(
            "cellfeed_gateway_request_seconds",
            "From a whole request to its answer; a fetch's wait for records is part of it.",
            named,
            ["api"],
        )
        for name, says, found in (
            ("cellfeed_gateway_received_bytes", "Bytes of requests' frames.", self._received),
            ("cellfeed_gateway_sent_bytes", "Bytes of answers' frames.", self._sent),
        ):
            family = CounterMetricFamily(name, says, labels=["api"])
            for key, count in found.items():
                family.add_metric([names[key]], count)
            yield family
        errors = CounterMetricFamily(
            "cellfeed_gateway_request_errors",
            "Answers with an error code, by each code that they hold.",
            labels=["api", "error"],
        )
        for (key, error), count in self._errors.items():
            errors.add_metric([names[key], error.name], count)
        yield errors


def error_codes(answer: Mapping[str, Any]) -> list[ErrorCode]:
    """The error codes of an answer's fields, at every depth."""
    found: list[ErrorCode] = []
    for field in islice(_fields(answer), LOOKED_AT_MAX):
        code = field.get("error_code")
        if isinstance(code, ErrorCode) and code is not ErrorCode.none:
            found.append(code)
    return found


def _fields(answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield answer
    for value in answer.values():
        if isinstance(value, Mapping):
            yield from _fields(value)
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            for each in value:
                if isinstance(each, Mapping):
                    yield from _fields(each)
