"""Programs that are recorded: each prints a line once the change that the line names was
acknowledged (``python -m tests.durability.programs KIND DIR``)."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock
from uuid import UUID

import pyrage

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.zookeeper.client import Operation
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import make_topic
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import make_table
from cellfeed.store.backups.create import create
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.sqlite import checkpoints
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.rides import ride, rides, row_of
from tests.support.warehouse_log import SHARD, Log

CELLS, FEW_CELLS = 24, 4
ROWS = range(40)
BLOCK_ROWS, BLOCK_STEP = 40, 10
ALL_CELLS: Final = make_topic("trips", View(), JsonFormat())
ERASED_ROWS: Final = (row_of(3), row_of(50))
INDEX_ROWS = 8
OFFSETS = 6
INDEX: Final = parse_definition(
    """
table: by_driver
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: driver, type: string}]
"""
)


def say(line: str) -> None:
    """In one write, behind all that came before it."""
    os.write(1, f"{line}\n".encode())


def store(directory: Path) -> None:
    """Puts cells and saves entries; the WAL is moved into the file beside commits and between
    them."""
    mock.patch.object(checkpoints, "CHECKPOINT_FRAMES", 30).start()
    mock.patch.object(checkpoints, "STEP_FRAMES", 12).start()
    with Datastore.open_embedded(directory / "run", "trips", 4) as opened:
        for number in range(CELLS):
            [result] = opened.put_new_cells([ride(number)])
            say(f"cell {number} {result.shard} {result.added_id}")
            if number % 4 == 0:
                assert opened.state.commit({f"entry/{number}": b"%d" % number}) is not None
                say(f"entry {number}")


def few(directory: Path) -> None:
    """A few cells in one shard, and the WAL is moved into the file between them."""
    mock.patch.object(checkpoints, "CHECKPOINT_FRAMES", 0).start()
    with Datastore.open_embedded(directory / "run", "trips", 1) as opened:
        for number in range(FEW_CELLS):
            [result] = opened.put_new_cells([ride(number)])
            say(f"cell {number} {result.shard} {result.added_id}")


def warehouse(directory: Path) -> None:
    """Loads a shard in a few commits."""
    make_table(directory / "table", "trips")
    loader = ShardLoader(directory / "table", SHARD)
    for offset, value in Log(ROWS).records:
        assert loader.add(offset, value)
        if offset % 13 == 12:
            assert loader.flush() is not None
            say(f"committed {loader.committed.next_id}")


def backup(directory: Path, recipients: Recipients | None = None) -> None:
    """Takes a full backup and an increment of a store that lies elsewhere, each behind an
    erasure."""
    source = directory.with_name("source")
    folder = BackupFolder(directory / "backups")
    with Datastore.open_embedded(source, "trips", 4) as opened:
        opened.put_new_cells(rides(0, 40))
        opened.erase_row(ERASED_ROWS[0])
        full = create(folder, Source(opened.engine, belongs), recipients=recipients)
        say(f"backup {full.name}")
        opened.put_new_cells(rides(40, 60))
        opened.erase_row(ERASED_ROWS[1])
        second = create(folder, Source(opened.engine, belongs), onto=full, recipients=recipients)
        say(f"backup {second.name}")


def encrypted_backup(directory: Path) -> None:
    """The same, encrypted to an identity that lies beside the folder."""
    identity = pyrage.x25519.Identity.generate()
    key_beside(directory).write_text(f"{identity}\n")
    backup(directory, Recipients([str(identity.to_public())]))


def key_beside(directory: Path) -> Path:
    """Where :func:`encrypted_backup` leaves the key of its backups."""
    return directory.with_name("identity.txt")


def blocks(directory: Path) -> None:
    """A gateway's blocks in files, beside the store that they come of; one is forgotten."""
    with Datastore.open_embedded(directory / "run", "trips", 1) as opened:
        opened.put_new_cells(rides(0, BLOCK_ROWS))
        files = BlockFiles(directory / "blocks", "gw", opened.engine, 1 << 30)
        for start in range(0, BLOCK_ROWS, BLOCK_STEP):
            end = start + BLOCK_STEP
            files.keep(
                files.key(ALL_CELLS, 0, start, end),
                encode_range(opened.engine, ALL_CELLS, 0, start, end, 0),
                BLOCK_ROWS,
                0,
            )
        files.trim(0, BLOCK_STEP)
        files.close()
        say("blocks")


def index(directory: Path) -> None:
    """Keeps an index of a store, and saves how far it has come behind each batch."""
    with Datastore.open_embedded(directory / "run", "trips", 1) as opened:
        version = opened.indexes.version(opened.indexes.catalog.create(INDEX))
        opened.engine.indexes.create(version.table)
        say("created")
        keeper = IndexKeeper(version, opened.engine.indexes, opened.engine.row_cells)
        for number in range(INDEX_ROWS):
            opened.put_new_cells([new_cell(UUID(int=number), "BASE", 1, {"driver": f"d{number}"})])
            keeper.apply(0, opened.engine.scan(0, number, 10))
            assert opened.state.commit({"location": b"%d" % (number + 1)}) is not None
            say(f"indexed {number + 1}")


def offsets(directory: Path) -> None:
    """Members join, claim and save offsets in a ZooKeeper that is another machine: it reports its
    cells after each of its commits."""
    tree = ZooKeeperTree()
    commit = tree.commit

    def told(session: int, operations: Sequence[Operation], start: int | None = None) -> list[Any]:
        results = commit(session, operations, start)
        say(f"tree {pickle.dumps(tree.copy()).hex()}")
        return results

    tree.commit = told  # type: ignore[method-assign]
    with Datastore.open_embedded(directory / "run", "trips", 1) as opened:
        coordinator = zookeeper_of(tree, opened.state)
        session = coordinator.join("g", "a", 60.0)
        claims = coordinator.claim(session, "trips", [0, 1])
        for number in range(OFFSETS):
            offset = CommittedOffset(number + 1)
            coordinator.commit_offsets(
                "g", {("trips", number % 2): offset}, claims=[claims[number % 2]]
            )
            say(f"offset {number % 2} {number + 1}")
        coordinator.close()


def zookeeper_of(tree: ZooKeeperTree, state: StateTable) -> ZooKeeperCoordinator:
    """The coordination in this ZooKeeper, of a datastore with that state table."""
    return ZooKeeperCoordinator(
        ZooKeeperAddress("in memory"), state, connect=lambda _, timeout_s: tree.begin(timeout_s)
    )


PROGRAMS: Final = {
    "store": store,
    "few": few,
    "warehouse": warehouse,
    "backup": backup,
    "encrypted-backup": encrypted_backup,
    "blocks": blocks,
    "index": index,
    "offsets": offsets,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
