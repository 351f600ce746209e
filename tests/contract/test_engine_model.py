"""A state machine over the engine against the simplest model there is: a dict of cells and a list
per shard, with a crash at every failpoint.

A crash is a failpoint that raises, after which the engine is dropped and opened again. The model
does not know whether a put that crashed was written: it asks the engine once, and from then on
holds it to that (I1–I5).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from uuid import UUID

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import (
    ERASED_COLUMN,
    ERASED_JSON,
    NewCell,
    StoredCell,
    Triple,
    new_cell,
)
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import InvalidLocation, Trimmed
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, clear_failpoints, set_failpoint
from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB

SHARDS = 3
TRIM_FAILPOINTS = sorted(
    {
        name.split(".trim.")[1]
        for name in FAILPOINTS
        if ".trim." in name and name.startswith(("sqlite.", "mysql."))
    }
)
ERASE_FAILPOINTS = sorted(
    {
        name.split(".erase.")[1]
        for name in FAILPOINTS
        if ".erase." in name and name.startswith(("sqlite.", "mysql."))
    }
)
PUT_FAILPOINTS = sorted(
    {
        name.split(".put.")[1]
        for name in FAILPOINTS
        if ".put." in name and name.startswith(("sqlite.", "mysql."))
    }
)

CELLS = st.builds(
    lambda row, column, ref_key, n: new_cell(UUID(int=row), column, ref_key, {"n": n}),
    st.integers(0, 5),
    st.sampled_from(["BASE", "base", "STATUS"]),
    st.integers(-1, 2),
    st.integers(0, 1),
)
CALLS = st.lists(CELLS, min_size=1, max_size=8)


class EngineMachine(RuleBasedStateMachine):
    """``kind`` is the engine as its failpoints name it; a subclass opens it."""

    kind: str

    def __init__(self) -> None:
        super().__init__()
        self.log: list[list[NewCell]] = [[] for _ in range(SHARDS)]
        self.place: dict[Triple, tuple[int, int]] = {}
        self.shown: list[int] = [0] * SHARDS
        self.starts: list[int] = [0] * SHARDS
        self.erased: dict[bytes, Triple] = {}
        """Rows that the log tells the erasure of, and by which cell."""

    def open_engine(self) -> Engine:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.engine = self.open_engine()

    def teardown(self) -> None:
        clear_failpoints()
        if hasattr(self, "engine"):
            self.engine.close()

    def append(self, cell: NewCell) -> tuple[int, int]:
        shard = shard_of(cell.row_key, SHARDS)
        self.log[shard].append(cell)
        self.place[cell.triple] = (shard, len(self.log[shard]) - 1)
        return self.place[cell.triple]

    def body_of(self, triple: Triple) -> bytes:
        shard, added_id = self.place[triple]
        return self.log[shard][added_id].body_json

    @rule(cells=CALLS)
    def put(self, cells: list[NewCell]) -> None:
        for cell, result in zip(cells, self.engine.put(cells), strict=True):
            if cell.row_key in self.erased:
                assert (result.outcome, result.shard, result.added_id) == (
                    Outcome.FAILED,
                    shard_of(cell.row_key, SHARDS),
                    None,
                )
            elif cell.triple not in self.place:
                assert (result.outcome, result.shard, result.added_id) == (
                    Outcome.STORED,
                    *self.append(cell),
                )
            elif self.body_of(cell.triple) == cell.body_json:
                assert (result.outcome, result.shard, result.added_id) == (
                    Outcome.EXISTS,
                    *self.place[cell.triple],
                )
            else:
                assert result.outcome is Outcome.CONFLICT

    @rule(cells=CALLS, place=st.sampled_from(PUT_FAILPOINTS))
    def crash_in_put(self, cells: list[NewCell], place: str) -> None:
        failpoint = f"{self.kind}.put.{place}"
        if failpoint not in FAILPOINTS:
            return
        set_failpoint(failpoint, "raise")
        try:
            self.engine.put(cells)
        except FailpointReached:
            pass
        else:
            # MySQL has nothing to insert or to commit when all of a call is of erased rows.
            assert all(cell.row_key in self.erased for cell in cells), f"{failpoint} was not passed"
        clear_failpoints()
        self.engine.close()
        self.open()
        if place == "after_commit":
            for cell in cells:
                if cell.triple not in self.place and cell.row_key not in self.erased:
                    self.append(cell)

    def forget(self, shard: int, below: int) -> None:
        """The model's trim: the log begins there, and the triples of the cells below are
        nobody's."""
        for added_id in range(self.starts[shard], below):
            triple = self.log[shard][added_id].triple
            del self.place[triple]
            if self.erased.get(triple.row_key) == triple:
                del self.erased[triple.row_key]
        self.starts[shard] = max(self.starts[shard], below)

    @rule(shard=st.integers(0, SHARDS - 1), below=st.integers(0, 12), cells_max=st.integers(1, 5))
    def trim(self, shard: int, below: int, cells_max: int) -> None:
        if below > len(self.log[shard]):
            try:
                self.engine.trim(shard, below, cells_max)
            except InvalidLocation:
                return
            raise AssertionError("trimmed beyond the end of the log")
        end = max(self.starts[shard], min(below, self.starts[shard] + cells_max))
        assert self.engine.trim(shard, below, cells_max) == end
        self.forget(shard, end)

    @rule(shard=st.integers(0, SHARDS - 1), place=st.sampled_from(TRIM_FAILPOINTS))
    def crash_in_trim(self, shard: int, place: str) -> None:
        set_failpoint(f"{self.kind}.trim.{place}", "raise")
        below = min(len(self.log[shard]), self.starts[shard] + 2)
        try:
            self.engine.trim(shard, below)
        except FailpointReached:
            pass
        else:
            raise AssertionError(f"trim.{place} was not passed")
        clear_failpoints()
        self.engine.close()
        self.open()
        if place == "after_commit":
            self.forget(shard, below)

    def erase_in_model(self, row_key: bytes) -> int:
        """How many bodies an erasure takes."""
        taken = 0
        for triple, (shard, added_id) in self.place.items():
            body = self.log[shard][added_id].body_json
            if triple.row_key == row_key and body != ERASED_JSON:
                self.log[shard][added_id] = NewCell(*triple, ERASED_JSON)
                taken += 1
        if row_key not in self.erased:
            entry = NewCell(row_key, ERASED_COLUMN, 0, ERASED_JSON)
            self.append(entry)
            self.erased[row_key] = entry.triple
        return taken

    @rule(row=st.integers(0, 5), cells_max=st.integers(1, 4))
    def erase(self, row: int, cells_max: int) -> None:
        row_key, taken, done = UUID(int=row).bytes, 0, False
        while not done:
            step = self.engine.erase(row_key, cells_max)
            taken, done = taken + step.cells, step.done
            assert step.cells <= cells_max
        assert taken == self.erase_in_model(row_key)
        assert (step.shard, step.added_id) == self.place[self.erased[row_key]]

    @rule(row=st.integers(0, 5), place=st.sampled_from(ERASE_FAILPOINTS))
    def crash_in_erase(self, row: int, place: str) -> None:
        row_key = UUID(int=row).bytes
        has_work = row_key not in self.erased
        set_failpoint(f"{self.kind}.erase.{place}", "raise")
        try:
            self.engine.erase(row_key)
        except FailpointReached:
            pass
        else:
            assert not has_work, f"erase.{place} was not passed"
        clear_failpoints()
        self.engine.close()
        self.open()
        if place == "after_commit":
            self.erase_in_model(row_key)

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.open()

    @rule(cell=CELLS)
    def get(self, cell: NewCell) -> None:
        [found] = self.engine.get([cell.triple])
        if cell.triple not in self.place:
            assert found is None
        else:
            assert found is not None
            assert (found.shard, found.cell.added_id) == self.place[cell.triple]
            assert decode_body(found.cell.body) == self.body_of(cell.triple)

    @rule(row=st.integers(0, 5))
    def row(self, row: int) -> None:
        key = UUID(int=row).bytes
        latest: dict[str, int] = {}
        for triple in self.place:
            if triple.row_key == key:
                latest[triple.column_name] = max(
                    latest.get(triple.column_name, triple.ref_key), triple.ref_key
                )
        [found] = self.engine.row([key])
        assert [(c.cell.column_name, c.cell.ref_key) for c in found] == sorted(latest.items())
        for column, ref_key in latest.items():
            [one] = self.engine.latest([(key, column)])
            assert one is not None
            assert one.cell.ref_key == ref_key

    @rule(shard=st.integers(0, SHARDS - 1), location=st.integers(0, 30), limit=st.integers(1, 10))
    def scan(self, shard: int, location: int, limit: int) -> None:
        if location < self.starts[shard]:
            try:
                self.engine.scan(shard, location, limit)
            except Trimmed:
                return
            raise AssertionError("a scan went on silently behind what was trimmed")
        entries = self.engine.scan(shard, location, limit)
        assert [self.plain(c) for c in entries] == [(n, *c) for n, c in enumerate(self.log[shard])][
            location : location + limit
        ]
        if entries:
            self.shown[shard] = max(self.shown[shard], entries[-1].added_id + 1)

    @invariant()
    def heads_agree_and_never_fall_below_what_was_shown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for shard, head in self.engine.heads().items():
            assert head.watermark == head.next_added_id == len(self.log[shard])
            assert head.watermark >= self.shown[shard]
            assert head.log_start == self.starts[shard]

    @staticmethod
    def plain(cell: StoredCell) -> tuple[int, bytes, str, int, bytes]:
        return cell.added_id, cell.row_key, cell.column_name, cell.ref_key, decode_body(cell.body)


class SqliteMachine(EngineMachine):
    kind = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="cellfeed-model-"))

    def open_engine(self) -> Engine:
        return SqliteEngine(self.directory / "trips", "trips", SHARDS)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


def test_the_sqlite_engine_equals_the_model() -> None:
    run_state_machine_as_test(SqliteMachine, settings=settings(stateful_step_count=30))


def test_the_mysql_engine_equals_the_model(either_server: MariaDB) -> None:
    class MySqlMachine(EngineMachine):
        kind = "mysql"

        def open_engine(self) -> Engine:
            return MySqlEngine(MySqlServer(either_server.address), "trips", SHARDS, create=True)

        def teardown(self) -> None:
            super().teardown()
            local_mariadb.drop_all_databases(either_server)

    # Every example makes its tables again on a real server.
    run_state_machine_as_test(
        MySqlMachine, settings=settings(stateful_step_count=30, max_examples=10)
    )
