"""The witness of a process after a write to the state table without an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.zookeeper.era import ERA_KEY, Era
from cellfeed.bridge.coordination.zookeeper.paths import Paths
from cellfeed.bridge.coordination.zookeeper.witness import ABSENT, OwnWitness
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import OutcomeUnknown
from cellfeed.testing.zookeeper_tree import ZooKeeperTree

ERA = Era("era-1", first=True)


class Answering(SqliteState):
    """Its next commit is done, and its answer is lost, where the test says so."""

    loses_answer = False

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        found = super().commit(write, expect)
        if self.loses_answer:
            self.loses_answer = False
            raise OutcomeUnknown("the connection was cut")
        return found


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Answering]:
    with closing(Answering(tmp_path / "state.sqlite3")) as opened:
        yield opened


def test_an_announcement_without_an_answer_is_looked_for_before_the_next_one(
    state: Answering,
) -> None:
    version = state.commit({ERA_KEY: b"{}"})
    assert version is not None
    doubts: list[str] = []
    own = OwnWitness(
        ZooKeeperTree().begin(10), state, Paths(""), lambda: doubts.append("the era is another one")
    )
    state.loses_answer = True
    with pytest.raises(OutcomeUnknown):
        own.announce(own.of_era(ERA), [ABSENT, "mark-1"], version)
    again = own.of_era(ERA)
    assert again.marks == [ABSENT, "mark-1"]
    own.announce(again, [*again.marks, "mark-2"], version)
    assert doubts == []
