"""The check that workers run unasked: its findings, its place after a kill or a stop, and its view
of cells that change while it runs."""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from cellfeed.store import checks
from cellfeed.store.checks import KEY, BackgroundCheck, Pass, Passes, passes_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.contract.piecewise import Piece
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.piecewise import FilesInPieces
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.hidden_cells import mislead_keys
from tests.support.rides import rides

SHARDS, CELLS, DAY_S = 2, 600, 86_400.0


class Waits(threading.Event):
    """Instead of a stop: the awaited event, at once; ``between`` is called with each wait."""

    def __init__(self, between: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.between = between

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0)
        self.between()
        return self.is_set()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    with closing(SqliteEngine(tmp_path / "trips", "trips", SHARDS)) as made:
        made.put(rides(0, CELLS))
        yield made


def files(tmp_path: Path) -> FilesInPieces:
    return FilesInPieces(tmp_path / "trips", "trips", SHARDS)


def check_of(engine: Engine, *places: object, cells_per_s: float = 1e6) -> BackgroundCheck:
    found = list(places)
    return BackgroundCheck(engine.state, lambda _: nullcontext(found), DAY_S, cells_per_s)  # type: ignore[arg-type]


def known(engine: Engine) -> Passes:
    return passes_of(engine.state.get(KEY))


def test_a_store_in_good_order_has_one_pass_a_day(engine: SqliteEngine, tmp_path: Path) -> None:
    check = check_of(engine, files(tmp_path))
    check.look(Waits())
    first = known(engine)
    assert first.under_way is None
    assert first.last is not None
    assert (first.last.cells, first.last.damaged, first.last.named) == (CELLS, 0, [])
    check.look(Waits())
    assert known(engine) == first, "the next one is due in a day"
    for begun_at_us in (first.last.begun_at_us - int(DAY_S * 1e6), 2**60):
        last = Passes(last=Pass(begun_at_us, begun_at_us))
        engine.state.commit({KEY: msgspec.json.encode(last)})
        check.look(Waits())
        assert known(engine).last != last.last, "a day is over, or a clock went back"


def test_a_cell_that_no_key_finds_is_named_though_no_read_notices(
    engine: SqliteEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine.close()
    mislead_keys(tmp_path / "trips" / CELLS_FILE)
    with closing(SqliteEngine(tmp_path / "trips", "trips", SHARDS)) as opened:
        answers = opened.get([cell.triple for cell in rides(0, CELLS)])
        hidden = answers.count(None)
        assert hidden > 3, "the pointer misleads nobody"
        with caplog.at_level(logging.ERROR):
            check_of(opened, files(tmp_path)).look(Waits())
        last = known(opened).last
    assert last is not None
    assert last.damaged == hidden
    assert "the cell is not found by its key" in last.named[0]
    assert last.named[0] in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        f"UPDATE cell SET body = x'04' WHERE position = {position_of(1, 250)}",
        f"DELETE FROM cell WHERE position = {position_of(1, 250)}",
        "UPDATE shard_counter SET next_added_id = next_added_id - 3 WHERE shard = 1",
        "UPDATE shard_counter SET log_start = 7 WHERE shard = 1",
        "DELETE FROM history",
    ],
)
def test_planted_damage_is_found_once(engine: SqliteEngine, tmp_path: Path, change: str) -> None:
    check_of(engine, files(tmp_path), cells_per_s=7).look(Waits())
    before = known(engine).last
    with closing(sqlite3.connect(tmp_path / "trips" / CELLS_FILE)) as connection, connection:
        assert connection.execute(change).rowcount
    engine.state.commit({KEY: None})
    check_of(engine, files(tmp_path), cells_per_s=7).look(Waits())
    after = known(engine).last
    assert before is not None
    assert after is not None
    assert (before.cells, before.damaged) == (CELLS, 0)
    assert (after.damaged, len(after.named)) == (1, 1)


def test_puts_trims_and_erasures_meanwhile_make_no_findings(tmp_path: Path) -> None:
    chance, cells = random.Random(7), rides(0, 900)
    with Datastore.open_embedded(tmp_path, "trips", SHARDS) as store:
        store.put_new_cells(cells[:CELLS])
        later = iter(cells[CELLS:])

        def change() -> None:
            kind = chance.randrange(3)
            if kind == 0 and (new := next(later, None)) is not None:
                store.put_new_cells([new])
            elif kind == 1:
                shard = chance.randrange(SHARDS)
                store.trim(shard, min(200, store.heads()[shard].log_start + 3))
            else:
                store.erase_row(str(UUID(bytes=chance.choice(cells[:CELLS]).row_key)))

        waits = Waits(change)
        check_of(store.engine, files(tmp_path), cells_per_s=5).look(waits)
        last = known(store.engine).last
    assert last is not None
    assert last.named == []
    assert len(waits.seconds) > 60


class Counted:
    """A place of 4 shards with 40 cells each; it notes which pieces were asked for."""

    def __init__(self, place: str = "here", *, away: bool = False) -> None:
        self.place, self.away = place, away
        self.asked: list[tuple[int, int]] = []

    def begin(self, into: Findings) -> list[int]:
        if self.away:
            raise StorageUnavailable("it is switched off")
        return [0, 1, 2, 3]

    def check(self, shard: int, first: int, cells: int, into: Findings) -> Piece:
        self.asked.append((shard, first))
        into.cells += 10
        if shard == 1 and first == 10:
            into.add("checksum", self.place, "a cell of shard 1", 1)
        return Piece(first + 10 if first < 30 else None, 10)


ALL = [(shard, first) for shard in range(4) for first in range(0, 40, 10)]


def test_a_pass_that_was_stopped_is_continued_where_it_was(engine: SqliteEngine) -> None:
    place = Counted()
    waits = Waits()
    waits.between = lambda: waits.set() if len(place.asked) == 7 else None
    check_of(engine, place).look(waits)
    under_way = known(engine).under_way
    assert under_way is not None
    assert (under_way.cells, under_way.damaged, known(engine).found) == (70, 1, under_way)
    check_of(engine, place).look(Waits())
    assert place.asked == ALL, "each piece once"
    last = known(engine).last
    assert last is not None
    assert (last.cells, last.damaged, last.begun_at_us) == (160, 1, under_way.begun_at_us)


def test_a_pass_is_one_workers_until_it_gives_no_sign(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, other = Counted(), Counted()
    set_failpoint("checks.after_sign", "raise")
    with pytest.raises(FailpointReached):
        check_of(engine, killed).look(Waits())
    clear_failpoints()
    check_of(engine, other).look(Waits())
    assert (killed.asked, other.asked) == ([], []), "its worker may live"
    monkeypatch.setattr(checks, "AGAIN_AFTER_S", 0)
    check_of(engine, other).look(Waits())
    assert other.asked == ALL
    assert known(engine).under_way is None


def test_a_worker_that_was_overtaken_leaves_the_pass(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "SIGN_EVERY_S", 0)
    slow, other = Counted(), Counted()
    waits = Waits()

    def overtaken() -> None:
        if len(slow.asked) == 3:
            monkeypatch.setattr(checks, "AGAIN_AFTER_S", 0)
            check_of(engine, other).look(Waits())

    waits.between = overtaken
    check_of(engine, slow).look(waits)
    assert slow.asked == ALL[:3]
    assert other.asked == ALL[2:], "from its last sign on"
    last = known(engine).last
    assert last is not None
    assert (last.cells, last.damaged) == (160, 1)


def test_a_node_that_is_away_is_counted_apart_and_delays_no_other(engine: SqliteEngine) -> None:
    away, here = Counted("c1/a", away=True), Counted("c1/b")
    check_of(engine, away, here).look(Waits())
    last = known(engine).last
    assert here.asked == ALL
    assert last is not None
    assert (last.damaged, last.unread) == (1, 1)
    assert "it is switched off" in last.named[0]


def test_no_faster_than_declared(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    waits = Waits()
    check_of(engine, Counted(), cells_per_s=20).look(waits)
    assert sum(waits.seconds) == pytest.approx(160 / 20)


def test_an_entry_that_is_no_entry_begins_again(engine: SqliteEngine) -> None:
    engine.state.commit({KEY: b"\x00"})
    check_of(engine, Counted()).look(Waits())
    assert known(engine).last is not None


def test_the_loop_waits_out_a_state_table_that_is_away(
    engine: SqliteEngine, caplog: pytest.LogCaptureFixture
) -> None:
    check, waits = check_of(engine, Counted()), Waits()
    waits.between = lambda: waits.set() if len(waits.seconds) > 3 else None
    engine.close()
    with caplog.at_level(logging.ERROR):
        check.run(waits)
    assert caplog.text.count("the check for damage waits") == 1
