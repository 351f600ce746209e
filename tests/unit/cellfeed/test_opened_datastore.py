"""The datastore of a configuration, as every process opens it: an erasure reaches the lists that
quote values of the row. And offsets of a trigger at work are not set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.typed.rejected_cells import note_rejected, rejected_cells
from cellfeed.cli import offsets
from cellfeed.cli.main import command_line
from cellfeed.config.model import Config
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Refused
from tests.support.parked import parked_cell

GONE, STAYS = UUID(int=1), UUID(int=2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with open_datastore(Config(), tmp_path) as datastore:
        yield datastore


def parked(row_key: UUID, datastore: Datastore) -> ParkedCell:
    return parked_cell(
        datastore.shard_of(row_key), 0, row_key=str(row_key), error="cannot charge the card 4711"
    )


def test_an_erasure_takes_values_of_the_row_off_every_list(store: Datastore) -> None:
    cells = ParkedCells(store.state)
    for row_key in (GONE, STAYS):
        store.put_cell(row_key, "BASE", 1, {"card": 4711})
        store.state.commit(cells.entry(parked(row_key, store)))
        shard = store.shard_of(row_key)
        note_rejected(store.state, "BASE", shard, [(store.engine.scan(shard, 0, 1)[0], "4711")])
    store.erase_row(GONE)
    assert [cell.row_key for cell in cells.all()] == [str(STAYS)]
    assert [cell.row_key for cell in rejected_cells(store.state)] == [str(STAYS)]


@pytest.mark.parametrize(
    ("members", "lost", "is_set"),
    [
        (["w1"], None, False),
        ([], None, True),
        (["w1"], "ZooKeeper was emptied", True),
    ],
)
def test_offsets_of_a_trigger_are_set_while_no_worker_moves_them(
    store: Datastore,
    monkeypatch: pytest.MonkeyPatch,
    members: list[str],
    lost: str | None,
    is_set: bool,
) -> None:
    done: list[object] = []
    coordinator = SimpleNamespace(members=lambda _group: members)

    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        yield None, store, coordinator

    for name, found in (
        ("opened", opened),
        ("must_exist", lambda *_: None),
        ("lost_offsets", lambda *_: lost),
        ("wanted_locations", lambda *_: {0: 5}),
        ("offsets_by_shard", lambda *_: {0: 5}),
        ("Reset", lambda *_, **__: SimpleNamespace(run=done.append)),
    ):
        monkeypatch.setattr(offsets, name, found)
    words = ["offsets", "set", "billing", "earliest", "--json"]
    result = CliRunner().invoke(command_line("offsets"), words)
    assert done == ([{0: 5}] if is_set else [])
    assert isinstance(result.exception, Refused) is not is_set
