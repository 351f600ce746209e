"""Positions in a cluster's binlog, in one replication domain or more."""

from __future__ import annotations

import pytest

from cellfeed.store.backups.binlogs.position import has_passed, position_of


@pytest.mark.parametrize(
    ("position", "target", "passed"),
    [
        ("0-1-5", "0-1-5", True),
        ("0-2-6", "0-1-5", True),
        ("0-1-4", "0-1-5", False),
        ("0-1-10", "0-1-9", True),
        ("0-1-5", "0-1-5,7-1-1", False),
        ("0-1-5,7-1-1", "0-1-5", True),
        ("", "0-1-1", False),
        ("0-1-1", "", True),
    ],
)
def test_a_target_has_passed_when_each_of_its_domains_has(
    position: str, target: str, passed: bool
) -> None:
    assert has_passed(position_of(position), position_of(target)) is passed
