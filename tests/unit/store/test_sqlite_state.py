"""The state table in SQLite: a restored one gives no version a second time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from cellfeed.store.engines.sqlite.state import SqliteState


def test_versions_continue_above_those_of_a_backup_and_never_fall(tmp_path: Path) -> None:
    with closing(SqliteState(tmp_path / "state.sqlite3")) as state:
        first = state.commit({"a": b""})
        assert first is not None
        state.begin_at(first + 100)
        second = state.commit({"a": b""})
        assert second == first + 101
        state.begin_at(first)
        assert state.commit({"a": b""}) == second + 1
