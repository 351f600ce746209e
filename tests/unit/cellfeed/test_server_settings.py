"""What local servers are given: no process needed."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from uuid import UUID

import pytest

from cellfeed.servers.kafka import new_cluster_id


def test_a_cluster_id_is_a_uuid_that_no_tool_takes_for_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [
        UUID(bytes=bytes([0xF8]) + bytes(15)),
        UUID(bytes=bytes([0xFB]) * 16),
        UUID(bytes=bytes(range(16))),
    ]  # the first two are written with a dash first
    left = iter(made)
    monkeypatch.setattr("cellfeed.servers.kafka.uuid4", lambda: next(left))
    assert UUID(bytes=urlsafe_b64decode(new_cluster_id() + "==")) == made[2]
