"""Backups that are restored to be looked at, as ``cellfeed restore`` does, and the content that
they must have. Also wrong joins that are tried, and must be refused."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import dictionaries_known, read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.restore_target import Target
from cellfeed.store.backups.taking import Source
from cellfeed.store.backups.verify import check_files, verify
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import CellfeedError
from tests.faults.cluster_system import DATASTORE, SHARDS, seen_stored
from tests.faults.invariants import Seen, Violations
from tests.faults.ledger import Put

JOINS: Final = "joins"
"""Under which a wrong join that was not refused, or not with both identities, is reported."""


def backed_up(folder: BackupFolder, engine: Engine, onto: Backup | None = None) -> Backup:
    """As ``cellfeed backup create``. Raises as it."""
    return create(folder, Source(engine, belongs), onto=onto)


def restore_into(target: Target, folder: BackupFolder, backup: Backup) -> None:
    """As ``cellfeed restore``, with nobody who has read further. Raises as it."""
    chain = folder.chain(backup)
    assert not check_files(chain)
    state = read_state(backup)
    erasures = recorded_in(Register(folder.path), backup, folder.later(backup))
    now_us = time.time_ns() // 1000
    with dictionaries_known(chain):
        erased = to_erase(chain, state, erasures)
    kept = restored(state, now_us)
    restore(plan(chain, kept, [], {}, now_us, "a test", erased, target.begun_epoch(backup)), target)


def restored_log(folder: BackupFolder, backup: Backup, place: Path) -> dict[int, list[Seen]]:
    """All cells of a backup, and of those that it stands on, after a restore into an embedded store
    in ``place``, which is gone afterwards."""
    try:
        with SqliteTarget(place / DATASTORE, DATASTORE, SHARDS) as target:
            restore_into(target, folder, backup)
        with Datastore.open_embedded(place, DATASTORE, SHARDS) as store:
            return log_of(store.engine)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def unsound(folder: BackupFolder) -> list[str]:
    """The faults of a folder's backups, each with those that it stands on; and the files beside
    them."""
    whole, rests = folder.look()
    return [
        *(told for backup in whole for told in verify(folder.chain(backup))),
        *(f"{rest} is left in the folder" for rest in rests),
    ]


def log_of(engine: Engine) -> dict[int, list[Seen]]:
    """Every shard's log up to its watermark."""
    return {
        shard: [seen_stored(cell) for cell in engine.scan(shard, 0, 1_000_000)]
        for shard in range(SHARDS)
    }


def lacking(puts: Iterable[Put], log: dict[int, list[Seen]]) -> list[str]:
    """Acknowledged cells that are not in the log at the place that was acknowledged."""
    there = {(shard, cell.added_id): cell for shard, cells in log.items() for cell in cells}
    told = []
    for put in puts:
        assert put.shard is not None
        assert put.added_id is not None
        found = there.get((put.shard, put.added_id))
        if found is None:
            told.append(f"{put.triple} was acknowledged as {put.shard}/{put.added_id} and is lost")
        elif (found.triple, found.body_json) != (put.triple, put.body_json):
            told.append(f"{put.triple} was acknowledged as {put.shard}/{put.added_id}: {found}")
    return told


class WrongJoin(Exception):
    """A join was not refused as it must be: nobody can say any more which part belongs to which."""


class Joins:
    """Wrong joins that are tried; each must be refused, and its message name the two parts."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.violations: Violations = {JOINS: []}

    def try_(self, what: str, join: Callable[[], object], ids: Sequence[str]) -> None:
        """``ids``: the words that the refusal must have. Raises WrongJoin."""
        try:
            join()
        except CellfeedError as error:
            self.refused.append(what)
            if missing := [each for each in ids if each not in str(error)]:
                self.violations[JOINS].append(
                    f"{what} was refused without naming {' and '.join(missing)}: {error}"
                )
                raise WrongJoin(what) from error
        else:
            self.violations[JOINS].append(f"{what} was not refused")
            raise WrongJoin(what)
