"""When a MariaDB server's operator is advised to give it memory."""

from __future__ import annotations

import pytest

from cellfeed.store.engines.mysql.memory import MISSED_MAX, POOL_BYTES_MIN, advice

GIB = 1 << 30


def test_the_servers_own_default_is_named() -> None:
    line = advice(128 << 20, 0.1, 0.0)
    assert line is not None
    assert line.startswith("innodb_buffer_pool_size is 128 MiB: ")
    assert advice(POOL_BYTES_MIN, 0.1, 0.0) is None


@pytest.mark.parametrize(
    ("used", "missed", "advised"),
    [
        (1.0, MISSED_MAX * 1.1, True),
        (1.0, MISSED_MAX, False),
        (0.5, 0.5, False),  # a server that has just started reads each page for the first time
    ],
)
def test_a_full_pool_that_misses_pages_is_too_small(
    used: float, missed: float, advised: bool
) -> None:
    line = advice(2 * GIB, used, missed)
    assert (line is not None) is advised
    assert line is None or "2048 MiB, full, and 1.1% of the pages" in line
