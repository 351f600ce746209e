"""A trim takes entries out of an index while workers and erasures act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cellfeed.store.indexes.trimmed import IndexedTrim
from tests.support.fenced_index import OTHER, ROW, Held, Index, base, status
from tests.support.index_store_proxy import IndexStoreProxy


def test_a_trim_keeps_an_entry_that_a_newer_cell_made_while_it_looked(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes two newer entries: one that it takes for wrong, and one that is put again just
    then."""
    index.keeper.apply(
        0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob"), base(ROW, 2, "ann"))
    )
    keeper = index.keeper_of(index.store)

    def put_more() -> None:
        keeper.apply(0, index.put(base(ROW, 3, "ann"), base(OTHER, 1, "bob")))

    held = Held(index.store, put_more, at_removal=True)
    monkeypatch.setattr(type(index.engine), "indexes", property(lambda _: held), raising=False)
    index.trim(2)
    assert held.held
    assert index.entries() == [("ann", 1, True), ("bob", 2, True)]
    assert [entry.refs for entry in index.store.walk(index.version.table, 0, None, 10)] == [
        (3, None),
        (1, None),
    ]


def test_a_trim_that_is_overtaken_by_another_one_looks_again(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.keeper.apply(0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob")))
    seen: list[int] = []

    def finish_and_put_anew() -> None:
        seen.append(
            IndexedTrim(index.engine, index.datastore.indexes, index.datastore.trim).settle(0)
        )
        index.keeper.apply(0, index.put(base(ROW, 1, "ann")))

    held = Held(index.store, finish_and_put_anew, at_removal=True)
    monkeypatch.setattr(type(index.engine), "indexes", property(lambda _: held), raising=False)
    index.trim(2)
    assert seen == [2]
    assert held.refused == 1
    assert index.entries() == [("ann", 1, True)]


def test_a_row_whose_entry_is_made_again_is_never_missing(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell of one column is trimmed, so the entry loses its part of it and stays."""
    index.keeper.apply(0, index.put(status(ROW, 1, "new"), base(ROW, 1, "ann")))
    seen: list[list[tuple[str, int, bool]]] = []

    class Watched(IndexStoreProxy):
        def remove(self, *given: Any) -> None:
            super().remove(*given)
            seen.append(index.entries())

    watched = Watched(index.store)
    monkeypatch.setattr(type(index.engine), "indexes", property(lambda _: watched), raising=False)
    index.trim(1)
    assert seen == [[("ann", 1, True)]]
    [entry] = index.store.walk(index.version.table, 0, None, 10)
    assert entry.refs == (1, None)


def test_a_note_of_cells_that_are_still_there_survives_the_settling_of_another(
    index: Index,
) -> None:
    """A trim has noted the places, and an erasure settles the shard before the cells go."""
    index.keeper.apply(0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob")))
    settled: list[int] = []

    def trim_later(shard: int, below: int) -> int:
        settled.append(
            IndexedTrim(index.engine, index.datastore.indexes, index.datastore.trim).settle(shard)
        )
        return index.datastore.trim(shard, below)

    IndexedTrim(index.engine, index.datastore.indexes, trim_later).step(0, 0, 1)
    assert settled == [0]
    assert index.entries() == [("bob", 2, True)]
    assert index.engine.state.list("trims/") == []


def test_a_row_that_is_erased_meanwhile_leaves_the_note(index: Index) -> None:
    """The place that a note names is a value of the row."""
    index.keeper.apply(0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob")))
    seen: list[list[bytes]] = []

    def trim_later(shard: int, below: int) -> int:
        index.datastore.erase_row(ROW)
        seen.append([entry.value for entry in index.engine.state.list("trims/")])
        return index.datastore.trim(shard, below)

    IndexedTrim(index.engine, index.datastore.indexes, trim_later).step(0, 0, 2)
    [[note]] = seen
    assert b"ann" not in note
    assert b"bob" in note
    assert index.entries() == []


def test_a_row_that_is_erased_before_the_note_is_written_is_not_in_it(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.keeper.apply(0, index.put(base(ROW, 1, "ann"), base(OTHER, 1, "bob")))
    state, seen = index.engine.state, list[bytes]()
    commit = state.commit

    def erase_first(write: Mapping[str, bytes | None], **given: object) -> int | None:
        monkeypatch.setattr(state, "commit", commit)
        index.datastore.erase_row(ROW)
        return commit(write, **given)  # type: ignore[arg-type]

    def trim_later(shard: int, below: int) -> int:
        seen.extend(entry.value for entry in state.list("trims/"))
        return index.datastore.trim(shard, below)

    monkeypatch.setattr(state, "commit", erase_first)
    IndexedTrim(index.engine, index.datastore.indexes, trim_later).step(0, 0, 2)
    [note] = seen
    assert b"ann" not in note
