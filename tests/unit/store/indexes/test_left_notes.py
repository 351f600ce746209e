"""The notes of trims that died are settled by workers, once nobody has touched them for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.left_notes import AGAIN_AFTER_S, LeftNotes
from cellfeed.store.indexes.trimmed import IndexedTrim
from tests.support.kept_index import caught_up, differences, index_worker, made_index

DEFINITION = (
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
    " driver, type: string}]}, {column_name: STATUS, fields: [{field: state, type: string}]}]}"
)


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path, shards=1) as opened:
        yield opened


def killed_trim(store: Datastore, place: str, below: int) -> None:
    trim = IndexedTrim(store.engine, store.indexes, store.trim)
    set_failpoint(place, "raise")
    try:
        with pytest.raises(FailpointReached):
            trim.step(0, store.heads()[0].log_start, below)
    finally:
        clear_failpoints()


@pytest.mark.parametrize(
    "place", ["index.trim.trimmed", "index.trim.removed", "index.trim.before_done"]
)
def test_notes_that_a_killed_trim_left_are_settled_after_a_while(
    store: Datastore, place: str
) -> None:
    clock = _Clock()
    with index_worker(store):
        version = made_index(store, parse_definition(DEFINITION))
        # The first cell of each row goes, and its entry has to be made again from the second.
        store.put_cells([(UUID(int=n), "STATUS", 1, {"state": "new"}) for n in range(4)])
        store.put_cells([(UUID(int=n), "BASE", 1, {"driver": "ann"}) for n in range(4)])
        caught_up(store, version)
        killed_trim(store, place, 4)
        notes = LeftNotes(store.engine, store.indexes, clock)
        assert notes.look() == []
        clock.now_s += AGAIN_AFTER_S - 1
        assert notes.look() == [], "the trim may be under way"
        clock.now_s += 1
        assert notes.look() == [0]
        assert store.engine.state.list("trims/") == []
        assert differences(store, version) == []
        assert len(store.query_index("by_driver", "ann", mode="fast").rows) == 4
        assert notes.look() == []


def test_a_note_whose_cells_stay_is_settled_once_and_again_when_they_go(store: Datastore) -> None:
    clock = _Clock()
    with index_worker(store):
        version = made_index(store, parse_definition(DEFINITION))
        store.put_cells([(UUID(int=n), "BASE", 1, {"driver": "ann"}) for n in range(4)])
        caught_up(store, version)
        killed_trim(store, "index.trim.noted", 4)
        notes = LeftNotes(store.engine, store.indexes, clock)
        notes.look()
        clock.now_s += AGAIN_AFTER_S
        assert notes.look() == [0]
        assert len(store.engine.state.list("trims/")) == 1
        clock.now_s += AGAIN_AFTER_S
        assert notes.look() == [], "nothing has changed"
        store.trim(0, 4)  # a trim that was paused for so long
        assert notes.look() == [0]
        assert store.engine.state.list("trims/") == []
        assert store.query_index("by_driver", "ann", mode="fast").rows == []


def test_a_note_that_changes_is_left_to_its_writers(store: Datastore) -> None:
    clock = _Clock()
    with index_worker(store):
        version = made_index(store, parse_definition(DEFINITION))
        store.put_cells([(UUID(int=n), "BASE", 1, {"driver": "ann"}) for n in range(4)])
        caught_up(store, version)
        notes = LeftNotes(store.engine, store.indexes, clock)
        for _ in range(3):
            killed_trim(store, "index.trim.noted", 4)
            assert notes.look() == []
            clock.now_s += AGAIN_AFTER_S - 1
        clock.now_s += 1
        assert notes.look() == [0]
