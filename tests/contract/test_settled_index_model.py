"""A state machine over settled rows: a fresh query that looks at no cells of rows in logs that the
index has passed answers as one that looks at every row. Known offsets are read at any moment, and
used as late as the machine likes: after crashes, trims, erasures and late writes."""

from __future__ import annotations

from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.indexes.checked_request import checked_request
from cellfeed.store.indexes.page import Query
from cellfeed.store.indexes.request import IndexPage, IndexRequest
from cellfeed.store.indexes.settled_logs import SettledLogs
from tests.contract.test_index_model import DEFINITION, ErasedMachine, TrimmedMachine
from tests.support.index_with_ends import EndsBesideEntries
from tests.support.local_mariadb import MariaDB

DRIVERS = ["ann", "bob", "eve"]


class SettledMachine(TrimmedMachine):
    settled_answers: ClassVar[int] = 0

    @initialize()
    def open(self) -> None:
        super().open()
        self.around = EndsBesideEntries(self.engine)
        self.group = self.version.group
        self.settled = SettledLogs(self.around, lambda _: dict(enumerate(self.saved)))

    @rule(at_the_ends=st.booleans())
    def learn(self, at_the_ends: bool) -> None:
        if at_the_ends:
            self.catch_up()
        self.settled.read(self.group)

    @precondition(lambda self: self.settled.known(self.group) is not None)
    @rule(together=st.booleans())
    def look(self, together: bool) -> None:
        self.around.together = together

    @invariant()
    def a_settled_answer_is_what_a_look_at_every_row_says(self) -> None:
        if not hasattr(self, "settled") or self.settled.known(self.group) is None:
            return
        looked_at = self.around.looked_at
        answer = self.answer(self.settled)
        type(self).settled_answers += bool(answer.rows) and self.around.looked_at == looked_at
        assert answer.rows == self.answer(SettledLogs(self.around)).rows

    def answer(self, settled: SettledLogs) -> IndexPage:
        return Query(self.around, self.version, self.request(), settled).page()

    def request(self) -> IndexRequest:
        return checked_request(
            DEFINITION,
            1,
            shard_value=DRIVERS,
            where=[],
            order_by="n",
            descending=False,
            limit=100,
            cursor=None,
            fields=None,
            columns=None,
            mode="fresh",
            read_from=Replica.MASTER,
        )


class SettledErasedMachine(SettledMachine, ErasedMachine):
    """The same with rows that are erased."""


def test_settled_rows_of_a_sqlite_index_are_fresh() -> None:
    class SqliteMachine(SettledMachine):
        kind = "sqlite"

    run_state_machine_as_test(
        SqliteMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
    assert SqliteMachine.settled_answers


def test_settled_rows_of_a_sqlite_index_are_fresh_after_erasures() -> None:
    class SqliteMachine(SettledErasedMachine):
        kind = "sqlite"

    run_state_machine_as_test(
        SqliteMachine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )


@pytest.mark.integration
@pytest.mark.xdist_group("mariadb")
def test_settled_rows_of_a_mysql_index_are_fresh(empty_mariadb: MariaDB) -> None:
    class MySqlMachine(SettledErasedMachine):
        kind = "mysql"
        server = empty_mariadb

    run_state_machine_as_test(
        MySqlMachine, settings=settings(max_examples=5, stateful_step_count=25, deadline=None)
    )
