"""One process's belief in leases that it did not write, by its own clock."""

from __future__ import annotations

from cellfeed.bridge.coordination.watched_leases import Lease, WatchedLeases
from cellfeed.store.engines.contract.values import StateEntry

TTL_US = 10_000_000
HOUR_US = 3_600_000_000


def lives(seen: WatchedLeases, version: int, written_us: int, now_s: float, now_us: int) -> bool:
    """``written_us``, by the clock of the writer; ``now_us``, by that of the storage as this
    process sees it."""
    return seen.is_alive(
        StateEntry("lease", b"", version), Lease(1, written_us + TTL_US, TTL_US), now_s, now_us
    )


def test_a_lease_that_another_clock_wrote_counts_as_expired_at_first_sight() -> None:
    assert not lives(WatchedLeases(), 1, written_us=HOUR_US, now_s=0.0, now_us=0)
    assert lives(WatchedLeases(), 1, written_us=5_000_000, now_s=0.0, now_us=0), (
        "clocks differ a little"
    )


def test_a_lease_that_was_seen_renewing_outlives_a_step_of_the_clock() -> None:
    seen = WatchedLeases()
    assert lives(seen, 1, written_us=0, now_s=0.0, now_us=0)
    assert lives(seen, 2, written_us=1_000_000, now_s=2.0, now_us=HOUR_US)
    assert lives(seen, 2, written_us=1_000_000, now_s=9.0, now_us=HOUR_US)
    assert not lives(seen, 2, written_us=1_000_000, now_s=10.0, now_us=HOUR_US), (
        "it is no older than the look before it, and no younger"
    )
