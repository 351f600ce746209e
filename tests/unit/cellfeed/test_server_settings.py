"""The settings of local servers: no process needed."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.servers.kafka import new_cluster_id
from cellfeed.servers.memory import POOL_BYTES_MAX, POOL_BYTES_MIN, memory_bytes, pool_bytes

MIB = 1 << 20


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


@pytest.mark.parametrize(
    ("servers", "memory", "pool"),
    [
        (1, 24 << 30, POOL_BYTES_MAX),
        (3, 24 << 30, 4 << 30),
        (6, 24 << 30, 2 << 30),
        (7, 24 << 30, 1755 * MIB),
        (6, 1 << 30, POOL_BYTES_MIN),
        (0, 4 << 30, 2 << 30),
    ],
)
def test_servers_of_an_instance_share_half_of_the_memory(
    servers: int, memory: int, pool: int
) -> None:
    assert pool_bytes(servers, memory) == pool


@pytest.mark.parametrize("written", ["max\n", None])
def test_without_a_limit_the_memory_is_that_of_the_machine(
    tmp_path: Path, written: str | None
) -> None:
    limit = tmp_path / "memory.max"
    if written is not None:
        limit.write_text(written)
    assert memory_bytes(limit) > 64 * MIB


def test_a_control_group_has_no_more_than_its_limit(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{48 * MIB}\n")
    assert memory_bytes(limit) == 48 * MIB
