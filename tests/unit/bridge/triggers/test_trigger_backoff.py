"""Shards that the store does not serve are tried less often and less often, and at once again when
one has gone well."""

from __future__ import annotations

import pytest

from cellfeed.bridge.groups.backoff import WAIT_FIRST_S, WAIT_MAX_S, Backoff


def test_each_try_in_vain_doubles_the_wait_up_to_the_longest() -> None:
    now_s = 100.0
    backoff = Backoff(lambda: now_s)
    assert not backoff.has_to_wait(3)
    waited: list[float] = []
    for _ in range(8):
        backoff.failed(3)
        begun_s = now_s
        while backoff.has_to_wait(3):
            now_s += WAIT_FIRST_S / 4
        waited.append(now_s - begun_s)
    assert waited == pytest.approx(
        [0.02, 0.04, 0.08, 0.16, 0.32, WAIT_MAX_S, WAIT_MAX_S, WAIT_MAX_S], abs=WAIT_FIRST_S / 2
    )


def test_a_shard_that_went_well_begins_with_the_shortest_wait_again_and_others_never_wait() -> None:
    now_s = 0.0
    backoff = Backoff(lambda: now_s)
    for _ in range(5):
        backoff.failed(1)
    assert backoff.has_to_wait(1)
    assert not backoff.has_to_wait(2)
    backoff.forget(1)
    assert not backoff.has_to_wait(1)
    backoff.failed(1)
    now_s = WAIT_FIRST_S
    assert not backoff.has_to_wait(1)
