"""Each check of a fault run's observations finds a planted fault, and finds nothing where there is
none.

The ledgers of the state are made by hand. Readers and workers run over an embedded store whose
answers are falsified.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_encoding import encode_bodies
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LocatedCell, StateEntry
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import DataDamaged, StorageUnavailable
from cellfeed.store.indexes.definition_file import parse_definition
from tests.faults.invariants import Seen, check_reader, verdict
from tests.faults.key_readers import INDEX_PATH, PATHS, IndexQuestion, KeyReader, look_at_all
from tests.faults.ledger import Ledger, Put
from tests.faults.offset_watch import OffsetWatch
from tests.faults.seeds import VARIABLE, default_seed, seed_with
from tests.faults.shown import Shown
from tests.faults.state_ledger import (
    Commit,
    OffsetLook,
    OffsetSave,
    StateLedger,
    check_falls,
    check_offsets,
    check_state,
)
from tests.faults.state_work import StateWork
from tests.support.kept_index import caught_up, index_worker, made_index

INDEX = parse_definition(
    """
table: by_number
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: n, type: int}]
"""
)


def found(*violations: dict[str, list[str]]) -> set[str]:
    return {name for each in violations for name, told in each.items() if told}


def seen(number: int, added_id: int, body: bytes = b"{}") -> Seen:
    return Seen(added_id, UUID(int=number), "BASE", 1, body)


# --- one ledger of what was shown -----------------------------------------------------------------


def shown_by(*sights: tuple[str, int, Seen]) -> set[str]:
    """The findings when these are shown, of cells 1 and 2 that were put as ``{}``."""
    shown, ledger = (
        Shown(),
        Ledger(
            [
                Put(UUID(int=number), "BASE", 1, b"{}", 0.0, "stored", 0, number, 1.0)
                for number in (1, 2)
            ]
        ),
    )
    for path, shard, cell in sights:
        shown.see(path, shard, cell)
    return found(shown.violations(ledger, ("BASE",), ("a",)))


def test_equal_bodies_and_places_on_every_path_are_no_violation() -> None:
    assert shown_by(("a", 0, seen(1, 0)), ("b", 0, seen(1, 0)), ("b", 0, seen(2, 1))) == set()


def test_each_difference_between_two_paths_is_found() -> None:
    assert shown_by(("a", 0, seen(1, 0)), ("b", 0, seen(1, 0, b'{"x":1}'))) == {"I3"}, (
        "another body"
    )
    assert shown_by(("a", 0, seen(1, 0)), ("b", 0, seen(2, 0))) == {"I3"}, (
        "another cell in the place"
    )
    assert shown_by(("a", 0, seen(1, 0)), ("b", 0, seen(1, 1))) == {"I3"}, "another added_id"
    assert shown_by(("a", 0, seen(1, 0)), ("b", 1, seen(1, 0))) == {"I3"}, "another shard"
    assert shown_by(("a", 0, seen(9, 0))) == {"I2"}, "never put"
    assert shown_by(("a", 0, seen(1, 0, b'{"x":1}'))) == {"I2"}, "never put like this"
    assert shown_by(("b", 0, seen(1, 0))) == {"no look"}, "a path that nobody looked at"


def test_a_place_that_is_not_promised_yet_may_change_but_no_body() -> None:
    shown, ledger = Shown(), Ledger([Put(UUID(int=1), "BASE", 1, b"{}", 0.0)])
    shown.see("a", 0, seen(1, 7), place_counts=False)
    shown.see("a", 0, seen(1, 3))
    assert found(shown.violations(ledger, ("BASE",), ("a",))) == set()
    shown.see("a", 0, seen(1, 3, b'{"x":1}'), place_counts=False)
    assert found(shown.violations(ledger, ("BASE",), ("a",))) == {"I3"}


# --- readers by key -------------------------------------------------------------------------------


@pytest.fixture
def put_cells(datastore: Datastore) -> Ledger:
    """Twenty cells in the store, and their writer's knowledge."""
    ledger = Ledger()
    for number in range(20):
        body = {"n": number}
        put = ledger.begin(UUID(int=number), "BASE", 1, canonical_json.canonical(body))
        result = datastore.put_cell(put.row_key, "BASE", 1, body)
        ledger.answer(put, result.outcome.value, result.shard, result.added_id)
    return ledger


def looked(datastore: Datastore, ledger: Ledger, *, with_index: bool = False) -> set[str]:
    """The findings of a reader that looks at all, and then a few times more."""

    def question(put: Put) -> IndexQuestion:
        number = int(put.row_key)
        return IndexQuestion("by_number", number, [("n", "=", number)], ("n",))

    shown = Shown()
    reader = KeyReader(
        "reader",
        datastore,
        ledger,
        shown,
        random.Random(1),
        question=question if with_index else None,
    )
    look_at_all(reader)
    for _ in range(5):
        reader.look()
    paths = (*PATHS, INDEX_PATH) if with_index else PATHS
    shown.answers(ledger)
    return found(reader.violations(), shown.violations(ledger, ("BASE",), paths))


def falsified(located: LocatedCell) -> LocatedCell:
    [body] = encode_bodies([b'{"n":-1}'])
    return located._replace(cell=located.cell._replace(body=body))


def test_readers_by_key_find_nothing_in_a_store_that_is_well(
    datastore: Datastore, put_cells: Ledger
) -> None:
    assert looked(datastore, put_cells) == set()


@pytest.mark.parametrize("call", ["get", "latest"])
def test_a_false_body_by_key_is_found(
    datastore: Datastore, put_cells: Ledger, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(datastore.engine, call)
    monkeypatch.setattr(
        datastore.engine, call, lambda *given: [each and falsified(each) for each in real(*given)]
    )
    assert "I3" in looked(datastore, put_cells)


def test_a_false_body_of_a_row_is_found(
    datastore: Datastore, put_cells: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = datastore.engine.row
    monkeypatch.setattr(
        datastore.engine, "row", lambda *given: [list(map(falsified, row)) for row in real(*given)]
    )
    assert "I3" in looked(datastore, put_cells)


@pytest.mark.parametrize(("call", "nothing"), [("get", None), ("latest", None), ("row", [])])
def test_an_acknowledged_cell_that_is_reported_absent_is_found(
    datastore: Datastore,
    put_cells: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    nothing: object,
) -> None:
    monkeypatch.setattr(datastore.engine, call, lambda keys, *_: [nothing for _ in keys])
    assert "I1" in looked(datastore, put_cells)


def test_another_cell_than_the_one_asked_for_is_found(
    datastore: Datastore, put_cells: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = datastore.engine.get
    monkeypatch.setattr(datastore.engine, "get", lambda *given: list(reversed(real(*given))))
    assert "errors" in looked(datastore, put_cells)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (StorageUnavailable("away"), {"no look"}),
        (DataDamaged("a body"), {"no look", "errors"}),
        (KeyError("x"), {"no look", "errors"}),
    ],
)
def test_a_refusal_is_no_violation_and_any_other_exception_is_a_violation(
    datastore: Datastore,
    put_cells: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    wanted: set[str],
) -> None:
    def fail(*_: object) -> Any:
        raise error

    monkeypatch.setattr(datastore.engine, "latest", fail)
    assert looked(datastore, put_cells) == wanted


@pytest.fixture
def indexed(datastore: Datastore, put_cells: Ledger) -> Iterator[Datastore]:
    with index_worker(datastore):
        caught_up(datastore, made_index(datastore, INDEX))
        yield datastore


def test_an_index_that_shows_false_fields_or_lacks_a_row_is_found(
    indexed: Datastore, put_cells: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looked(indexed, put_cells, with_index=True) == set()
    real = Datastore.query_index

    def query_false(self: Datastore, *given: Any, **how: Any) -> Any:
        page = real(self, *given, **how)
        return type(page)(
            [type(row)(row.row_key, {"n": -1}, row.cells) for row in page.rows],
            page.cursor,
            page.version,
            page.stale,
        )

    def query_nothing(self: Datastore, *given: Any, **how: Any) -> Any:
        page = real(self, *given, **how)
        return type(page)([], None, page.version, page.stale)

    monkeypatch.setattr(Datastore, "query_index", query_false)
    assert "I18" in looked(indexed, put_cells, with_index=True)
    monkeypatch.setattr(Datastore, "query_index", query_nothing)
    assert "I18" in looked(indexed, put_cells, with_index=True)


# --- state, claims and offsets --------------------------------------------------------------------


def commit(key: str, value: bytes, version: int | None, expected: int | None = None) -> Commit:
    return Commit(
        key,
        value,
        expected,
        float(version or 0),
        "committed" if version else "unknown",
        version,
        float(version or 0),
    )


def test_each_broken_promise_of_the_state_table_is_found() -> None:
    good = StateLedger([commit("k", b"a", 1), commit("k", b"b", 2, 1), commit("k", b"c", None, 2)])
    assert found(check_state(good, {"k": StateEntry("k", b"b", 2)})) == set()
    assert found(check_state(good, {"k": StateEntry("k", b"c", 3)})) == set(), (
        "the one of no known fate may stand"
    )
    assert found(check_state(good, {"k": StateEntry("k", b"a", 1)})) == {"E11"}, "lost"
    assert found(check_state(good, {"k": None})) == {"E11"}, "lost"
    assert found(check_state(good, {"k": None}, lossy=True)) == set(), (
        "asynchronous replication may lose it"
    )
    assert found(check_state(good, {"k": StateEntry("k", b"x", 2)})) == {"E11"}, (
        "another value under a version"
    )
    twice = StateLedger([commit("k", b"a", 1), commit("other", b"b", 1)])
    assert found(check_state(twice, {}, lossy=True)) == {"E11"}, "a version given twice"
    both = StateLedger([commit("k", b"a", 5, 1), commit("k", b"b", 6, 1)])
    assert found(check_state(both, {})) == {"E11"}, "two succeeded on one version"
    assert found(check_state(both, {}, lossy=True)) == set(), "the first one may have been lost"
    changed = StateLedger([commit("k", b"a", 5)], [StateEntry("k", b"z", 5)])
    assert found(check_state(changed, {}, lossy=True)) == {"E11"}, "shown with another value"


def test_each_offset_that_falls_is_found() -> None:
    saves = [
        OffsetSave(0, 10, "m", 0.0, "committed", 1.0),
        OffsetSave(0, 30, "m", 2.0, "unknown", 3.0),
    ]
    good = StateLedger(
        saves=saves, looks=[OffsetLook(0, 0, 0.5), OffsetLook(0, 10, 2.0), OffsetLook(0, 30, 4.0)]
    )
    assert found(check_offsets(good, {0: 10})) == set()
    assert found(check_offsets(good, {0: 30})) == set()
    assert found(check_offsets(good, {0: 9})) == {"I20"}
    assert found(check_offsets(good, {})) == {"I20"}
    assert found(
        check_offsets(StateLedger(saves=saves, looks=[OffsetLook(0, 9, 2.0)]), {0: 30})
    ) == {"I20"}, "shown too low"
    assert found(
        check_offsets(StateLedger(saves=saves, broken=["a claim"]), {0: 30}, lossy=True)
    ) == {"I20"}


def test_a_watch_without_an_offset_reports_that(datastore: Datastore) -> None:
    assert found(OffsetWatch(StoreCoordinator(datastore.state)).violations({})) == {"no look"}


def test_an_offset_that_was_moved_back_by_twenty_is_found(datastore: Datastore) -> None:
    coordinator = StoreCoordinator(datastore.state)
    watch = OffsetWatch(coordinator)

    def save(offset: int) -> None:
        coordinator.commit_offsets("billing", {("trips", 0): CommittedOffset(offset)})
        watch.look()

    save(20)
    save(40)
    assert found(watch.violations({0: 40})) == set()
    assert found(watch.violations({0: 39})) == {"I14"}, "ahead of the log"
    save(20)
    assert found(watch.violations({0: 40})) == {"I20"}
    assert found(check_falls("g", [{0: 1}, {}, {0: 0}], {0: 1})) == {"I20"}


def state_work(datastore: Datastore, seconds: float = 0.8) -> set[str]:
    work = StateWork(datastore.state)
    time.sleep(seconds)
    work.stop()
    return found(work.violations())


def test_the_work_on_the_state_finds_nothing_in_a_store_that_is_well(datastore: Datastore) -> None:
    assert state_work(datastore) == set()


def test_a_version_that_is_given_twice_is_found(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteState.commit
    monkeypatch.setattr(
        SqliteState,
        "commit",
        lambda *given, **how: (version := real(*given, **how)) and version - version % 2,
    )
    assert "E11" in state_work(datastore)


def test_a_commit_on_a_removed_version_is_found(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without compare-and-set members that gave their claim up save offsets, too."""
    real = SqliteState.commit
    monkeypatch.setattr(SqliteState, "commit", lambda self, write, expect=None: real(self, write))
    assert "I20" in state_work(datastore)


def test_a_commit_that_is_acknowledged_and_not_written_is_found(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteState.commit
    lost: list[int] = []

    def commit(self: SqliteState, write: Any, expect: Any = None) -> int | None:
        if (version := real(self, {}, expect)) is None or len(lost) > 20:
            return version if version is None else real(self, write)
        lost.append(version)
        return version

    work = StateWork(datastore.state)
    time.sleep(0.5)
    monkeypatch.setattr(SqliteState, "commit", commit)
    time.sleep(0.3)
    work.stop()
    assert found(work.violations()) & {"E11", "I20"}


# --- verdicts and seeds ---------------------------------------------------------------------------


def test_a_row_that_is_there_twice_and_a_check_that_breaks_off_are_verdicts() -> None:
    log = {0: [seen(1, 0), seen(2, 1)]}
    assert found(check_reader(log, {0: [seen(1, 0), seen(1, 0), seen(2, 1)]}, "warehouse")) == {
        "I6"
    }

    def damaged() -> dict[str, list[str]]:
        raise DataDamaged("a file has a row twice")

    assert found(verdict("the warehouse", damaged)) == {"errors"}


def test_seeds_follow_from_the_date_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "20261124")
    assert (default_seed(), seed_with(0), seed_with(1)) == (20261124, 20261124, 20261125)
    monkeypatch.delenv(VARIABLE)
    assert str(default_seed()) in {
        time.strftime("%Y%m%d", time.gmtime(time.time() + shift)) for shift in (-5, 5)
    }
