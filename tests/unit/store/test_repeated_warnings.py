"""A warning that comes again and again is reported at once, then now and then, with the number of
those in between."""

from __future__ import annotations

import logging

import pytest

from cellfeed.store.repeated_warnings import WARN_EVERY_S, RepeatedWarning


def test_a_repeated_warning_is_logged_now_and_then_with_the_number_in_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    warning = RepeatedWarning(logging.getLogger("cellfeed.test"), lambda: now_s)
    for _ in range(3):
        warning.warn("node %s is away", "a")
    now_s = WARN_EVERY_S
    warning.warn("node %s is away", "b")
    now_s = 3 * WARN_EVERY_S
    warning.warn("node %s is away", "c")
    assert [record.getMessage() for record in caplog.records] == [
        "node a is away",
        "node b is away (and 2 times since the last such line)",
        "node c is away",
    ]
