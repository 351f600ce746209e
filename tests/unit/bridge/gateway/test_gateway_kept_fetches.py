"""Fetch sessions and repeated fetches: whose they are, which epoch continues them, and which of
them makes room."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.fetch.kept_fetches import FetchSession, KeptFetches
from cellfeed.bridge.gateway.limits import FETCH_KEPT_S
from tests.support.gateway_context import Heads
from tests.support.session_client import fetch_request

ME, OTHER = 1, 2


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def kept(clock: Clock, partitions_max: int = 100, session_max: int = 100) -> KeptFetches:
    return KeptFetches(cast("Any", Heads({})), partitions_max, session_max, clock)


def asking(count: int, session: tuple[int, int] = (0, 0), start: int = 0, **more: Any) -> Any:
    return fetch_request(
        [(("trips", partition), 0) for partition in range(start, start + count)], session, **more
    )


def opened(fetches: KeptFetches, connection: int, count: int) -> FetchSession | None:
    session = fetches.open(connection, asking(count))
    return session if fetches.keep(connection) else None


def test_a_session_continues_only_with_its_epoch(clock: Clock) -> None:
    fetches = kept(clock)
    session = opened(fetches, ME, 3)
    assert session is not None
    number = session.session_id
    assert number != 0
    assert fetches.continued(ME, asking(0, (number, 2))) is ErrorCode.invalid_fetch_session_epoch
    assert fetches.continued(ME, asking(0, (number + 1, 1))) is ErrorCode.fetch_session_id_not_found
    for epoch in (1, 2):
        assert fetches.continued(ME, asking(0, (number, epoch))) is session
    assert fetches.continued(ME, asking(0, (number, 2))) is ErrorCode.invalid_fetch_session_epoch
    session.epoch = (1 << 31) - 1
    assert fetches.continued(ME, asking(0, (number, session.epoch))) is session
    assert session.epoch == 1


def test_no_connection_continues_the_session_of_another(clock: Clock) -> None:
    fetches = kept(clock)
    mine, others = opened(fetches, ME, 3), opened(fetches, OTHER, 3)
    assert mine is not None
    assert others is not None
    assert mine.session_id != others.session_id
    refused = fetches.continued(OTHER, asking(0, (mine.session_id, 1)))
    assert refused is ErrorCode.fetch_session_id_not_found
    assert fetches.continued(ME, asking(0, (mine.session_id, 1))) is mine


def test_a_session_of_names_is_not_continued_by_ids(clock: Clock) -> None:
    fetches = kept(clock)
    session = opened(fetches, ME, 3)
    assert session is not None
    request = asking(0, (session.session_id, 1), version=13)
    assert fetches.continued(ME, request) is ErrorCode.fetch_session_topic_id_error


def test_a_request_adds_changes_and_forgets_the_partitions_that_it_names(clock: Clock) -> None:
    fetches = kept(clock)
    session = opened(fetches, ME, 3)
    assert session is not None
    request = fetch_request(
        [(("trips", 1), 7), (("fares", 1), 8)], (session.session_id, 1), [("trips", 0)]
    )
    assert fetches.continued(ME, request) is session
    assert {(each.topic, each.partition): each.asked.offset for each in session.all()} == {
        ("trips", 1): 7,
        ("trips", 2): 0,
        ("fares", 1): 8,
    }
    assert fetches.partitions == 3


def test_a_kept_fetch_ends_with_its_connection_and_with_a_fetch_without_session(
    clock: Clock,
) -> None:
    fetches = kept(clock)
    session = opened(fetches, ME, 3)
    assert session is not None
    assert fetches.sessions == 1
    fetches.repeated(ME).follow(asking(5, (0, -1)))
    assert fetches.keep(ME)
    assert session.is_closed
    assert (fetches.sessions, fetches.partitions) == (0, 5)
    refused = fetches.continued(ME, asking(0, (session.session_id, 1)))
    assert refused is ErrorCode.fetch_session_id_not_found
    fetches.left(ME)
    assert fetches.partitions == 0


def test_the_oldest_that_was_not_used_for_a_while_makes_room(clock: Clock) -> None:
    fetches = kept(clock, partitions_max=10)
    old, used = opened(fetches, 1, 5), opened(fetches, 2, 5)
    assert old is not None
    assert used is not None
    clock.now_s += FETCH_KEPT_S + 1
    assert fetches.continued(2, asking(0, (used.session_id, 1))) is used
    assert opened(fetches, 3, 1) is not None
    assert old.is_closed
    assert not used.is_closed
    assert (fetches.partitions, fetches.evicted) == (6, 1)


def test_a_smaller_one_makes_room_for_a_larger_one_once_it_has_been_there_for_a_while(
    clock: Clock,
) -> None:
    fetches = kept(clock, partitions_max=10)
    small = opened(fetches, 1, 3)
    large = opened(fetches, 2, 7)
    assert small is not None
    assert large is not None
    assert opened(fetches, 3, 5) is None, "everybody is new"
    clock.now_s += FETCH_KEPT_S - 1
    for each, number in ((small, 1), (large, 2)):
        assert fetches.continued(number, asking(0, (each.session_id, 1))) is each
    clock.now_s += 2
    assert opened(fetches, 3, 3) is None, "not for one of its size"
    assert opened(fetches, 3, 4) is None, "nor where that is not enough"
    assert fetches.partitions <= 10
    assert large.is_closed is False


def test_a_session_that_grows_beyond_the_limit_is_ended(clock: Clock) -> None:
    fetches = kept(clock, session_max=4)
    session = opened(fetches, ME, 3)
    assert session is not None
    request = asking(2, (session.session_id, 1), start=10)
    assert fetches.continued(ME, request) is ErrorCode.fetch_session_id_not_found
    assert session.is_closed
    assert (fetches.sessions, fetches.partitions) == (0, 0)
    assert opened(fetches, ME, 5) is None
