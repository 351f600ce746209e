"""The buffer table of a real server: a triple keeps its first body, and an accepted cell is not
removed as a mere copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import pytest

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.engines.contract.buffer import NodeBufferTable
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration


@pytest.fixture
def buffer(empty_mariadb: MariaDB) -> Iterator[NodeBufferTable]:
    with closing(MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 3, create=True)) as engine:
        yield engine.buffer


def cell(body: bytes) -> NewCell:
    return NewCell(UUID(int=1).bytes, "BASE", 1, body)


def test_a_second_body_of_a_triple_is_not_accepted_and_the_first_one_stays(
    buffer: NodeBufferTable,
) -> None:
    first, second = cell(b'{"a":1}'), cell(b'{"a":2}')
    buffer.add("c1", [first])
    buffer.add("c1", [second])
    assert buffer.accept("c1", [second, first]) == [False, True]
    [waiting] = buffer.waiting("c1", 0, 10, 0)
    assert (waiting.cell, waiting.accepted) == (first, True)


def test_a_copy_goes_with_its_own_body_alone_and_an_accepted_one_stays(
    buffer: NodeBufferTable,
) -> None:
    first, second = cell(b'{"a":1}'), cell(b'{"a":2}')
    buffer.add("c1", [first])
    buffer.remove_copies("c1", [second])
    assert len(buffer.waiting("c1", 0, 10, 0)) == 1
    buffer.accept("c1", [first])
    buffer.remove_copies("c1", [first])
    assert len(buffer.waiting("c1", 0, 10, 0)) == 1
    buffer.remove_row("c1", first.row_key)
    assert buffer.waiting("c1", 0, 10, 0) == []
