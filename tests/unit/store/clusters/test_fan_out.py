"""Reads of several clusters side by side: the maker of the threads, the order of answers and
errors, and the way without threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cellfeed.store.clusters.serving.fan_out import FanOut
from cellfeed.store.errors import StorageUnavailable

TIMEOUT_S = 60.0


@pytest.fixture
def fan_out() -> Iterator[FanOut]:
    made = FanOut(2)
    yield made
    made.close()


def thread_name(_key: str, _value: int) -> str:
    return threading.current_thread().name


def test_a_single_read_is_made_by_its_caller(fan_out: FanOut) -> None:
    assert fan_out.each({"a": 1}, thread_name) == [threading.current_thread().name]
    assert fan_out.each({}, thread_name) == []


def test_reads_of_all_clusters_run_at_the_same_time_and_answers_keep_the_order(
    fan_out: FanOut,
) -> None:
    everybody = threading.Barrier(3)

    def read(key: str, value: int) -> str:
        everybody.wait(TIMEOUT_S)
        return f"{key}{value}"

    assert fan_out.each({"a": 1, "b": 2, "c": 3}, read) == ["a1", "b2", "c3"]


def test_the_first_error_in_order_is_raised_once_every_read_has_ended(fan_out: FanOut) -> None:
    third_failed, ended = threading.Event(), list[str]()

    def read(key: str, _: int) -> None:
        if key == "b":
            assert third_failed.wait(TIMEOUT_S)
        ended.append(key)
        if key == "c":
            third_failed.set()
        if key != "a":
            raise StorageUnavailable(key)

    with pytest.raises(StorageUnavailable, match=r"^b$"):
        fan_out.each({"a": 1, "b": 2, "c": 3}, read)
    assert sorted(ended) == ["a", "b", "c"]


def test_where_no_thread_is_free_the_caller_makes_the_reads(fan_out: FanOut) -> None:
    """Both threads wait, and another caller is answered still; afterwards both are free
    again."""
    waiting, go_on = threading.Semaphore(0), threading.Event()

    def stall(_key: str, _value: int) -> None:
        waiting.release()
        assert go_on.wait(TIMEOUT_S)

    other = threading.Thread(target=fan_out.each, args=({"a": 1, "b": 2, "c": 3}, stall))
    other.start()
    try:
        for _ in range(3):
            assert waiting.acquire(timeout=TIMEOUT_S)
        assert set(fan_out.each({"a": 1, "b": 2, "c": 3}, thread_name)) == {
            threading.current_thread().name
        }
    finally:
        go_on.set()
        other.join()
    everybody = threading.Barrier(3)
    fan_out.each({"a": 1, "b": 2, "c": 3}, lambda _key, _value: everybody.wait(TIMEOUT_S))


def test_callers_make_all_reads_after_the_fan_out_is_closed(fan_out: FanOut) -> None:
    fan_out.close()
    assert set(fan_out.each({"a": 1, "b": 2}, thread_name)) == {threading.current_thread().name}


def test_threads_are_free_again_after_reads_that_failed_or_not(fan_out: FanOut) -> None:
    def read(_key: str, value: int) -> str:
        if value < 0:
            raise StorageUnavailable("away")
        return threading.current_thread().name

    for _ in range(5):
        with pytest.raises(StorageUnavailable):
            fan_out.each({"a": 1, "b": -1, "c": -1}, read)
    names = fan_out.each({"a": 1, "b": 2, "c": 3}, read)
    assert [name.startswith("fan-out") for name in names] == [False, True, True]
