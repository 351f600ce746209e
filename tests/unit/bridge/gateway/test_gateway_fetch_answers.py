"""Fetch over logs whose heads and blocks are values: which error a partition gets, how long a fetch
waits, and how many bytes it sends."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis import api_01_fetch
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import StorageUnavailable
from tests.support.fetched import fetched
from tests.support.gateway_context import KnownHeads, topics_of

BATCH_BYTES = 100


class Fetches:
    """Asks and keeps the answers. Every partition has one batch of ``BATCH_BYTES`` from the offset
    that is asked for on."""

    def __init__(self) -> None:
        self.told = KnownHeads({0: Head(2, 9, 9, 3, 0), 1: Head(2, 9, 9, 3, 0)})
        self.raises: Exception | None = None
        self.answers: list[Any] = []
        self.error = ErrorCode.none
        self.told.blocks.read = self._read

    async def _read(self, _topic: Any, _partition: int, offset: int, *_: Any) -> list[Batch]:
        if self.raises is not None:
            raise self.raises
        return [Batch(offset, offset + 1, b"x" * BATCH_BYTES)]

    def ask(self, *offsets: int, epoch: int = -1, wait_s: float = 0.0, **fields: Any) -> list[Any]:
        partitions = [
            {
                "partition": partition,
                "fetch_offset": offset,
                "partition_max_bytes": 1 << 20,
                "current_leader_epoch": epoch,
            }
            for partition, offset in enumerate(offsets)
        ]
        given = {
            "session_epoch": -1,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            **fields,
        }
        answer = self.told.ask(
            api_01_fetch,
            12,
            topics=topics_of(*partitions),
            max_wait=timedelta(seconds=wait_s),
            **given,
        )
        response = fetched(answer, 12)
        self.error = response.error_code
        self.answers = [each for topic in response.responses for each in topic.partitions]
        return [each.error_code for each in self.answers]


@pytest.fixture
def fetches() -> Fetches:
    return Fetches()


@pytest.mark.parametrize(
    ("offset", "epoch", "error"),
    [
        (2, -1, ErrorCode.none),
        (1, -1, ErrorCode.offset_out_of_range),
        (9, -1, ErrorCode.none),
        (10, -1, ErrorCode.offset_out_of_range),
        (2, 3, ErrorCode.none),
        (2, 2, ErrorCode.fenced_leader_epoch),
        (2, 0, ErrorCode.fenced_leader_epoch),
        (2, 4, ErrorCode.unknown_leader_epoch),
    ],
)
def test_a_partition_is_read_at_offsets_of_its_log_in_its_epoch(
    fetches: Fetches, offset: int, epoch: int, error: ErrorCode
) -> None:
    assert fetches.ask(offset, epoch=epoch) == [error]


def test_a_client_of_a_gateway_that_has_shown_more_is_not_out_of_range(
    fetches: Fetches,
) -> None:
    fetches.told.heads.fresher = {0: Head(2, 20, 20, 3, 0)}
    assert fetches.ask(15) == [ErrorCode.none]


def test_a_session_that_is_not_here_is_not_continued(fetches: Fetches) -> None:
    assert fetches.ask(2, session_epoch=4) == []
    assert fetches.error is ErrorCode.fetch_session_id_not_found
    for whole in (-1, 0):
        assert fetches.ask(2, session_epoch=whole) == [ErrorCode.none]


def test_a_partition_whose_cluster_is_away_has_that_error(fetches: Fetches) -> None:
    fetches.raises = StorageUnavailable("its cluster is away")
    assert fetches.ask(2) == [ErrorCode.not_leader_or_follower]


def test_a_fetch_of_cells_trimmed_while_they_are_read_is_out_of_range(
    fetches: Fetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def trimming(*about: Any) -> list[Batch]:
        fetches.told.heads[0] = Head(5, 9, 9, 3, 0)
        return [Batch(2, 3, b"x")]

    monkeypatch.setattr(fetches.told.blocks, "read", trimming)
    assert fetches.ask(2) == [ErrorCode.offset_out_of_range]
    assert not fetches.answers[0].records


@pytest.mark.parametrize(
    ("max_bytes", "sent"), [(1, [1, 0]), (BATCH_BYTES, [1, 0]), (BATCH_BYTES + 1, [1, 1])]
)
def test_one_batch_is_sent_however_small_the_answer_and_no_more_when_it_is_full(
    fetches: Fetches, max_bytes: int, sent: list[int]
) -> None:
    fetches.ask(2, 2, max_bytes=max_bytes)
    assert [len(each.records or b"") // BATCH_BYTES for each in fetches.answers] == sent


def test_a_partition_that_gave_records_has_its_next_turn_behind_the_others(
    fetches: Fetches,
) -> None:
    for sent in ([1, 0], [0, 1], [1, 0]):
        fetches.ask(2, 2, max_bytes=1)
        assert [len(each.records or b"") // BATCH_BYTES for each in fetches.answers] == sent


def test_no_fetch_waits_for_longer_than_the_limit(
    fetches: Fetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_01_fetch, "FETCH_WAIT_MAX_S", 0.05)
    assert fetches.ask(9, wait_s=2) == [ErrorCode.none]
    assert 0 < max(fetches.told.heads.waited_s) <= 0.05


def test_an_error_is_answered_at_once(fetches: Fetches) -> None:
    began_s = time.monotonic()
    assert fetches.ask(10, 9, wait_s=30) == [ErrorCode.offset_out_of_range, ErrorCode.none]
    assert fetches.told.heads.waited_s == []
    assert time.monotonic() - began_s < 30
