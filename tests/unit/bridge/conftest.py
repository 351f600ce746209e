"""Intervals of groups that tests wait for."""

from __future__ import annotations

import pytest

from cellfeed.bridge.groups import member, progress_reporter
from cellfeed.bridge.triggers import trigger_group
from cellfeed.bridge.triggers.operate import reset


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of a group look at operators' requests, report, and claim again much more often than
    in production. Leases keep their length: a slow machine must not lose them."""
    monkeypatch.setattr(member, "CONTROL_LOOK_S", 0.05)
    monkeypatch.setattr(progress_reporter, "REPORT_EVERY_S", 0.05)
    monkeypatch.setattr(trigger_group, "CLAIM_AGAIN_S", 0.02)
    monkeypatch.setattr(reset, "_CLAIM_AGAIN_S", 0.02)
