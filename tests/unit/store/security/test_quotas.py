"""Quotas: the mean of a rate is exact, principals do not spend for each other, and every debt
ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.limits import QUOTA_DEBT_MAX_S, QUOTA_PRINCIPALS_MAX
from cellfeed.store.security.peer_limits import EVERYBODY_ELSE, Quota
from cellfeed.store.security.quotas import Quotas


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nobody_owes_where_no_quota_is_declared(clock: Clock) -> None:
    quotas = Quotas({}, clock)
    quotas.spend("billing", requests=1_000_000, read_bytes=1 << 40)
    assert not quotas
    assert quotas.debt_s("billing") == 0
    assert quotas.read_bytes_max("billing", 77) == 77


def test_a_principal_may_ask_for_a_seconds_worth_at_once(clock: Clock) -> None:
    quotas = Quotas({"billing": Quota(requests_per_s=10)}, clock)
    for _ in range(10):
        assert quotas.debt_s("billing") == 0
        quotas.spend("billing", requests=1)
    assert quotas.debt_s("billing") == 0
    quotas.spend("billing", requests=1)
    assert quotas.debt_s("billing") == pytest.approx(0.1)
    clock.now_s += 0.11
    assert quotas.debt_s("billing") == 0


def test_a_long_silence_saves_up_a_second_alone(clock: Clock) -> None:
    quotas = Quotas({"billing": Quota(requests_per_s=10)}, clock)
    quotas.spend("billing", requests=1)
    clock.now_s += 3_600
    quotas.spend("billing", requests=30)
    assert quotas.debt_s("billing") == pytest.approx(2)


def test_each_rate_is_counted_apart(clock: Clock) -> None:
    quotas = Quotas({"billing": Quota(put_bytes_per_s=100, read_bytes_per_s=10)}, clock)
    quotas.spend("billing", requests=1_000, put_bytes=100, read_bytes=30)
    assert quotas.debt_s("billing") == pytest.approx(2)
    assert quotas.request_debt_s("billing") == 0, "a heartbeat waits for bytes"
    assert quotas.read_bytes_max("billing", 1_000) == 10


def test_everybody_elses_quota_is_one_for_each(clock: Clock) -> None:
    quotas = Quotas(
        {EVERYBODY_ELSE: Quota(requests_per_s=1), "billing": Quota(requests_per_s=100)}, clock
    )
    quotas.spend("a", requests=5)
    assert quotas.debt_s("a") > 0
    assert quotas.debt_s("b") == 0
    assert quotas.debt_s("billing") == 0
    quotas.spend("billing", requests=50)
    assert quotas.debt_s("billing") == 0


def test_a_debt_ends_within_its_limit_however_much_was_asked_for(clock: Clock) -> None:
    quotas = Quotas({"a": Quota(put_bytes_per_s=1)}, clock)
    quotas.spend("a", put_bytes=1 << 40)
    assert quotas.debt_s("a") == pytest.approx(QUOTA_DEBT_MAX_S)
    clock.now_s += QUOTA_DEBT_MAX_S + 0.1
    assert quotas.debt_s("a") == 0


def test_the_least_recently_seen_principal_is_forgotten(clock: Clock) -> None:
    quotas = Quotas({EVERYBODY_ELSE: Quota(requests_per_s=1)}, clock)
    for number in range(QUOTA_PRINCIPALS_MAX + 5):
        quotas.spend(f"p{number}", requests=3)
        quotas.spend("busy", requests=3)
    assert quotas.debt_s("busy") > 0
    assert quotas.debt_s(f"p{QUOTA_PRINCIPALS_MAX}") > 0
    assert len(quotas._accounts) <= QUOTA_PRINCIPALS_MAX


@given(
    rate=st.integers(1, 1_000),
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(0, 2_000)), min_size=1, max_size=60),
)
def test_a_patient_principal_gets_its_rate_with_a_second_and_an_answer_more_at_most(
    rate: int, steps: list[tuple[float, int]]
) -> None:
    clock = Clock()
    quotas = Quotas({"a": Quota(read_bytes_per_s=rate)}, clock)
    begun_s, taken, largest = clock.now_s, 0, 0
    for silence_s, size in steps:
        clock.now_s += silence_s
        debt_s = quotas.debt_s("a")
        assert debt_s <= QUOTA_DEBT_MAX_S + 1e-6
        clock.now_s += debt_s
        assert quotas.debt_s("a") == pytest.approx(0, abs=1e-6)
        allowed = min(size, rate * int(QUOTA_DEBT_MAX_S))
        quotas.spend("a", read_bytes=allowed)
        taken += allowed
        largest = max(largest, allowed)
        assert taken <= rate * (clock.now_s - begun_s + 1) + largest + 1e-3
