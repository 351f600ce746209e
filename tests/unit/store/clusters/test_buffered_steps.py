"""Buffered writes step by step, with tables that give the answers of a test: which clusters get a
copy, how certain the outcome is when some do not answer, and which cells the drain leaves for
later."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.clusters.serving import buffer_drain as module
from cellfeed.store.clusters.serving.buffer import BufferedWriter
from cellfeed.store.clusters.serving.buffer_drain import COPY_AGE_S, BufferDrain
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.master_buffer import buffer_of
from cellfeed.store.engines.contract.buffer import BufferCount, BufferedCell, BufferTable
from cellfeed.store.errors import (
    CellConflict,
    CellfeedError,
    InvalidRequest,
    OutcomeUnknown,
    StorageUnavailable,
)
from tests.support.waiting import wait_until

CELLS = [new_cell(UUID(int=n), "BASE", 1, {}) for n in range(3)]
AWAY = StorageUnavailable("away")
OPEN = OutcomeUnknown("cut off")


class Table:
    """A buffer table. ``fails``: by call the error that it raises."""

    def __init__(self, **fails: CellfeedError) -> None:
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []
        self.rows: dict[str, list[BufferedCell]] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if (error := self.fails.get(name)) is not None:
            raise error

    def add(self, owner: str, cells: Sequence[NewCell]) -> None:
        self._call("add", owner, list(cells))

    def accept(self, owner: str, cells: Sequence[NewCell]) -> list[bool]:
        self._call("accept", owner, list(cells))
        return [True] * len(cells)

    def remove_copies(self, owner: str, cells: Sequence[NewCell]) -> None:
        self._call("remove_copies", owner, list(cells))

    def remove_row(self, owner: str, row_key: bytes) -> None:
        self._call("remove_row", owner, row_key)

    def remove(self, ids: Sequence[int]) -> None:
        self._call("remove", list(ids))

    def mark_conflict(self, buffer_id: int, reason: str) -> None:
        self._call("mark_conflict", buffer_id, reason)

    def counts(self) -> list[BufferCount]:
        self._call("counts")
        return [BufferCount(owner, len(some), 0, 0, 0) for owner, some in self.rows.items()]

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        self._call("waiting", owner, after_id, older_than_s)
        if (error := self.fails.get(f"waiting {owner}")) is not None:
            raise error
        return [each for each in self.rows[owner] if each.buffer_id > after_id][:limit]

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


def shard_of(cell: NewCell) -> int:
    return CELLS.index(cell)


class Clusters:
    """Four clusters' tables, and the answers of the own log."""

    def __init__(self, copies: int, results: list[PutResult] | CellfeedError, **tables: Table):
        self.tables = {name: tables.get(name, Table()) for name in ("own", "a", "b", "c")}
        self.results = results
        self.writer = BufferedWriter(
            cast("dict[str, BufferTable]", self.tables),
            self.write,
            shard_of,
            copies,
            random.Random(1),
        )

    def write(self, cells: Sequence[NewCell]) -> list[PutResult]:
        del cells
        if isinstance(self.results, CellfeedError):
            raise self.results
        return list(self.results)

    def put(self) -> list[PutResult]:
        return self.writer.put("own", CELLS)

    def having(self, name: str) -> list[str]:
        return [each for each, table in self.tables.items() if table.called(name)]


STORED = [PutResult(Outcome.STORED, shard, 7) for shard in range(3)]


@pytest.mark.parametrize(("copies", "on"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_configured_number_of_other_clusters_gets_a_copy_and_the_own_one_does_not(
    copies: int, on: int
) -> None:
    clusters = Clusters(copies, STORED)
    assert clusters.put() == STORED
    having = clusters.having("add")
    assert len(having) == on
    assert "own" not in having
    assert all(clusters.tables[name].called("add") == [("own", CELLS)] for name in having)
    assert clusters.having("accept") == clusters.having("remove_copies") == []


def test_when_one_cluster_cannot_take_a_copy_the_next_one_is_asked() -> None:
    away = {name: Table(add=AWAY) for name in ("a", "b")}
    clusters = Clusters(1, AWAY, **away)
    assert [result.outcome for result in clusters.put()] == [Outcome.BUFFERED] * 3
    assert clusters.having("accept") == ["c"]


def test_without_any_copy_the_clusters_own_answer_stands() -> None:
    away = {name: Table(add=AWAY) for name in "abc"}
    results = [*STORED[:2], PutResult(Outcome.FAILED, 2, error=AWAY)]
    assert Clusters(2, results, **away).put() == results
    with pytest.raises(StorageUnavailable):
        Clusters(2, AWAY, **away).put()


def test_a_copy_that_may_exist_leaves_the_failed_put_unknown() -> None:
    """The drain may write it later."""
    tables = {name: Table(add=OPEN, accept=AWAY) for name in "abc"}
    results = Clusters(1, AWAY, **tables).put()
    assert [result.outcome for result in results] == [Outcome.UNKNOWN] * 3
    assert all("a copy may wait on" in str(result.error) for result in results)
    assert [result.shard for result in results] == [0, 1, 2]


def test_only_the_cells_that_the_own_log_did_not_take_are_answered_for_by_a_buffer() -> None:
    conflict = PutResult(Outcome.CONFLICT, 2, error=CellConflict("another body"))
    failed = PutResult(Outcome.FAILED, 1, error=AWAY)
    clusters = Clusters(3, [STORED[0], failed, conflict])
    results = clusters.put()
    assert results[0] == STORED[0]
    assert (results[1].outcome, results[1].shard) == (Outcome.BUFFERED, 1)
    assert results[2] == conflict
    [first] = clusters.having("accept")
    assert clusters.tables[first].called("accept") == [("own", [CELLS[1]])]
    for name in "abc":
        assert clusters.tables[name].called("remove_copies") == [("own", [CELLS[2]])]


def test_the_next_buffer_is_asked_when_one_does_not_answer() -> None:
    clusters = Clusters(3, AWAY)
    order: list[str] = []

    def asked(
        name: str, accept: Callable[[str, Sequence[NewCell]], list[bool]]
    ) -> Callable[[str, Sequence[NewCell]], list[bool]]:
        def answer(owner: str, cells: Sequence[NewCell]) -> list[bool]:
            order.append(name)
            accept(owner, cells)
            if len(order) == 1:
                raise AWAY
            return [False, True, False] if len(order) == 2 else [True, False]

        return answer

    for name in "abc":
        table = clusters.tables[name]
        table.accept = asked(name, table.accept)  # type: ignore[assignment,method-assign]
    results = clusters.put()
    assert [result.outcome for result in results] == [
        Outcome.BUFFERED,
        Outcome.BUFFERED,
        Outcome.UNKNOWN,
    ]
    assert clusters.tables[order[2]].called("accept") == [("own", [CELLS[0], CELLS[2]])]


def test_a_refusal_that_a_later_try_may_not_meet_is_unknown_where_a_copy_waits() -> None:
    refused = PutResult(Outcome.FAILED, 0, error=InvalidRequest("no"))
    results = Clusters(1, [refused, *STORED[1:]]).put()
    assert [result.outcome for result in results] == [
        Outcome.UNKNOWN,
        Outcome.STORED,
        Outcome.STORED,
    ]


# --- the drain ------------------------------------------------------------------------------------


class Own:
    """A cluster whose minions hold cells below 8 of each shard."""

    def __init__(self, *results: PutResult) -> None:
        self.results = list(results)
        self.puts: list[list[NewCell]] = []
        self.looked = 0

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        self.puts.append(list(cells))
        return [self.results[shard_of(cell)] for cell in cells]

    def look(self) -> None:
        self.looked += 1

    def replicated(self) -> dict[int, int]:
        assert self.looked, "what minions hold is looked up after the put"
        return {0: 8, 1: 8}


def row(
    buffer_id: int, cell: NewCell, owner: str = "own", *, accepted: bool = True
) -> BufferedCell:
    return BufferedCell(buffer_id, owner, cell, 0, accepted)


def drain_of(own: Own, **tables: Table) -> BufferDrain:
    return BufferDrain(
        cast("dict[str, BufferTable]", tables), lambda _: cast("Cluster", own), shard_of
    )


def test_a_table_or_an_owner_that_is_away_keeps_no_other_from_being_drained() -> None:
    gone, broken, table = Table(counts=AWAY), Table(), Table()
    broken.rows = {"x": [row(1, CELLS[0])], "y": [row(2, CELLS[1])], "z": [row(3, CELLS[0])]}
    broken.fails = {"waiting x": AWAY, "waiting y": InvalidRequest("a defect")}
    table.rows = {"own": [row(4, CELLS[1])]}
    drain = drain_of(Own(*STORED), gone=gone, broken=broken, table=table)
    assert drain.drain_once() == 2
    assert broken.called("remove") == [([3],)]
    assert table.called("remove") == [([4],)]
    found = drain.counts()
    assert found["gone"] == "away"
    assert found["table"] == [BufferCount("own", 1, 0, 0, 0)]


def test_young_copies_are_left_alone_and_each_piece_follows_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_DRAIN_CELLS", 2)
    table = Table()
    table.rows = {"own": [row(number, CELLS[number % 2]) for number in (3, 5, 8)]}
    assert drain_of(Own(*STORED), table=table).drain_once() == 3
    assert table.called("waiting") == [
        ("own", 0, COPY_AGE_S),
        ("own", 5, COPY_AGE_S),
        ("own", 8, COPY_AGE_S),
    ]
    assert table.called("remove") == [([3, 5],), ([8],)]


@pytest.mark.parametrize(
    ("result", "goes"),
    [
        (PutResult(Outcome.STORED, 0, 7), True),
        (PutResult(Outcome.EXISTS, 0, 7), True),
        (PutResult(Outcome.STORED, 0, 8), False),
        (PutResult(Outcome.STORED, 2, 0), False),
        (PutResult(Outcome.BUFFERED, 0), False),
        (PutResult(Outcome.FAILED, 0, error=AWAY), False),
        (PutResult(Outcome.UNKNOWN, 0, 7, error=OPEN), False),
    ],
)
def test_a_buffered_cell_goes_once_a_minion_of_its_own_cluster_has_it(
    result: PutResult, goes: bool
) -> None:
    table = Table()
    table.rows = {"own": [row(4, CELLS[0])]}
    own = Own(result)
    assert drain_of(own, table=table).drain_once() == goes
    assert table.called("remove") == [([4] if goes else [],)]
    assert table.called("mark_conflict") == table.called("remove_copies") == []


def test_a_cell_goes_to_where_its_shard_is_now() -> None:
    table, here, there = Table(), Own(*STORED), Own(*STORED)
    table.rows = {"own": [row(1, CELLS[0]), row(2, CELLS[1])]}
    drain = BufferDrain(
        {"table": cast("BufferTable", table)},
        lambda shard: cast("Cluster", there if shard else here),
        shard_of,
    )
    assert drain.drain_once() == 2
    assert (here.puts, there.puts) == ([[CELLS[0]]], [[CELLS[1]]])


def test_an_erased_row_is_forgotten_everywhere_and_a_silent_cluster_is_named() -> None:
    tables = {"a": Table(), "b": Table(remove_row=AWAY), "c": Table()}
    drain = drain_of(Own(), **tables)
    with pytest.raises(OutcomeUnknown, match="b: away"):
        drain.forget_row(b"row")
    assert tables["a"].called("remove_row") == [("b", b"row"), ("c", b"row")]
    assert tables["c"].called("remove_row") == [("a", b"row"), ("b", b"row")]
    tables["b"].fails = {}
    drain.forget_row(b"row")


def test_the_drain_runs_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAIN_EVERY_S", 0.001)
    table = Table()
    drain = drain_of(Own(), table=table)
    drain.start()
    wait_until(lambda: len(table.called("counts")) >= 2, "the drain looks again and again")
    drain.close()
    assert not drain._thread.is_alive()


def test_each_call_of_a_clusters_table_goes_to_its_master_under_its_terms() -> None:
    told: list[tuple[Any, ...]] = []

    class Engine:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> list[str]:
                told.append((name, *arguments))
                return [name]

            return call

    terms = object()

    def write(call: Any) -> Any:
        return call(SimpleNamespace(buffer=Engine()), SimpleNamespace(terms=terms))

    table = buffer_of(cast("Cluster", SimpleNamespace(write=write)))
    table.add("own", CELLS)
    assert table.accept("own", CELLS) == cast("list[bool]", ["accept"])
    table.waiting("own", 3, 10, 2.0)
    table.remove([1])
    table.remove_copies("own", CELLS)
    table.remove_row("own", b"row")
    table.mark_conflict(1, "why")
    assert table.counts()
    assert told == [
        ("add", "own", CELLS, terms),
        ("accept", "own", CELLS, terms),
        ("waiting", "own", 3, 10, 2.0),
        ("remove", [1], terms),
        ("remove_copies", "own", CELLS, terms),
        ("remove_row", "own", b"row", terms),
        ("mark_conflict", 1, "why", terms),
        ("counts",),
    ]
