"""The audit log: its lines, its counts, its file that is moved away, and a disk without room."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.security import audit
from cellfeed.store.security.audit import AuditLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "worker.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_acts_are_listed_and_puts_are_counted_by_principal(path: Path) -> None:
    log = AuditLog(path, "worker")
    log.record("alice", "GET", "/v1/trips/cell?x", how="token 1", request="7", result="200")
    for _ in range(3):
        log.count("alice", "put", "200", 2)
    log.count("bob", "put", "403")
    log.close()
    first, *counted = lines(path)
    assert first.pop("at").endswith("Z")
    assert first == {
        "process": "worker",
        "who": "alice",
        "did": "GET",
        "to": "/v1/trips/cell?x",
        "how": "token 1",
        "request": "7",
        "result": "200",
    }
    assert [(each["who"], each["count"], each.get("cells", 0)) for each in counted] == [
        ("alice", 3, 6),
        ("bob", 1, 0),
    ]
    assert path.stat().st_mode & 0o077 == 0, "its readers are those of the process"


def test_counts_are_written_when_their_time_is_over(path: Path) -> None:
    now = [0.0]
    log = AuditLog(path, "worker", lambda: now[0])
    log.count("alice", "put", "200", 1)
    assert lines(path) == []
    now[0] = audit.COUNTED_EVERY_S
    log.count("alice", "put", "200", 1)
    assert [each["count"] for each in lines(path)] == [2]
    log.close()


@pytest.mark.parametrize("signalled", [True, False])
def test_a_file_that_was_moved_away_is_made_again(path: Path, signalled: bool) -> None:
    now = [0.0]
    log = AuditLog(path, "worker", lambda: now[0])
    log.record("alice", "GET")
    path.rename(path.with_suffix(".1"))
    path.touch()
    if signalled:
        log.reopen_soon()
    else:
        now[0] = 5.0
    log.record("bob", "GET")
    log.close()
    assert [each["who"] for each in lines(path.with_suffix(".1"))] == ["alice"]
    assert [each["who"] for each in lines(path)] == ["bob"]


def test_a_full_disk_refuses_acts_of_operators_and_stops_no_put(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(path, "worker")
    write, room = os.write, [0]

    def limited(file: int, content: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content[: room[0]])

    monkeypatch.setattr(os, "write", limited)
    log.record("alice", "GET")
    log.count("alice", "put", "200", 1)
    with pytest.raises(StorageUnavailable, match="nothing was done"):
        log.before("alice", "erase", "row")
    room[0] = 10  # a part of a line
    log.record("alice", "GET")
    assert "cannot be written" in caplog.text
    room[0] = 1 << 20
    log.before("alice", "erase", "row")
    monkeypatch.undo()
    log.close()
    torn, begun, counted = path.read_text().splitlines()
    assert torn == '{"at":"202' or len(torn) == 10
    assert json.loads(begun)["missing"] == 3
    assert json.loads(begun)["result"] == "begun"
    assert json.loads(counted)["count"] == 1
