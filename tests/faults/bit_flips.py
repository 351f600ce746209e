"""``bit-flips``: single bits of an embedded store's files change, as a failing disk changes them.
Then everything is read, everywhere, by every path.

Each answer is right, or an error of ours that names the damage: a raw TypeError, another body, a
shorter log is a violation (I1, I7, errors). `cellfeed check` finds every damage where any read
would have met it; `--repair` from a backup makes the store as it was, or changes nothing.

SQLite has no checksum of a page. A bit of a page's pointers can lead a search by key astray, beside
entries that are in good order: then a cell is not found by its key, though the log has it. Such an
answer is reported as ``hidden`` beside the evidence of the fault. Where a check does not name the
damage, or the one that workers run unasked does not, it is a violation.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cellfeed.cli.checking import Backups, check_storage, repair_storage
from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import NewCell, StoredCell, Triple
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.contract.values import LocatedCell, LogRange
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.piecewise import FilesInPieces
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import CellfeedError
from tests.faults.invariants import Violations
from tests.faults.run import FaultRun
from tests.support.rides import rides

BIT_FLIP_KINDS: Final = ("bit-flips",)

SHARDS: Final = 2
CELLS: Final = 400
FLIPS: Final = 40
FLIPS_BRIEF: Final = 12


class Whole(NamedTuple):
    """The store as it was before: its cells, and its logs with decoded bodies."""

    cells: Sequence[NewCell]
    logs: list[list[tuple[object, ...]]]


def run_bit_flips(kind: str, seed: int, directory: Path, flips: int = FLIPS) -> FaultRun:
    """Runs and checks. Which bits change follows from the seed; each flip is made in a fresh copy
    of the store."""
    chance, result = random.Random(f"{kind}-{seed}"), FaultRun(kind, seed)
    result.violations = {name: [] for name in ("I1", "I2", "I3", "I7", "errors", "check", "repair")}
    whole, backups = _made(directory / "whole", directory / "backups")
    for _ in range(flips):
        run_dir = directory / "damaged"
        shutil.rmtree(run_dir, ignore_errors=True)
        shutil.copytree(directory / "whole", run_dir)
        told = _flipped(run_dir / "store" / "trips" / CELLS_FILE, chance)
        refused, hidden, read = _read_all(run_dir, whole, told, result.violations)
        found = _checked(run_dir)
        unasked = _checked_in_pieces(run_dir)
        if hidden and unasked and any(each.kind == "integrity" for each in found.found):
            result.witnessed += [f"hidden, and named by a check: {each}" for each in hidden]
        else:
            result.violations["I1"] += hidden
        result.operations_inside += read
        if refused and not found.found:
            result.violations["check"].append(
                f"{told}: a read was refused, and a check finds nothing: {refused[0]}"
            )
        if found.found:
            result.witnessed.append(told)
            _repaired(run_dir, backups, whole, found, told, result.violations)
    return result


def _made(run_dir: Path, backups: Path) -> tuple[Whole, Path]:
    cells = [*rides(0, CELLS), *rides(0, CELLS // 2, "STATUS")]
    with closing(SqliteEngine(run_dir / "store" / "trips", "trips", SHARDS)) as engine:
        engine.put(cells)
        create(BackupFolder(backups), Source(engine, lambda _: True))
        logs = [_shown(engine.scan(shard, 0, 10_000)) for shard in range(SHARDS)]
    with closing(sqlite3.connect(run_dir / "store" / "trips" / CELLS_FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Whole(cells, logs), backups


def _flipped(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    bit = chance.randrange(len(data) * 8)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit} of {len(data)} bytes"


def _read_all(
    run_dir: Path, whole: Whole, told: str, violations: Violations
) -> tuple[list[str], list[str], int]:
    """Every path; the errors of ours, cells that are not found by their keys, and how many calls
    were made."""
    refused, hidden = list[str](), list[str]()
    calls = 0

    def ask(invariant: str, what: str, call: Callable[[], object], right: object) -> None:
        nonlocal calls, hidden
        calls += 1
        try:
            answer = call()
            if (
                invariant == "I1"
                and isinstance(answer, list)
                and isinstance(right, list)
                and all(each is None or each in right for each in answer)
            ):
                hidden += [f"{told}: {what}"] if answer != right else []
            elif answer != right:
                violations[invariant].append(f"{told}: {what} is another answer")
        except CellfeedError as error:
            refused.append(f"{what}: {error}")
        except Exception as error:
            violations["errors"].append(f"{told}: {what}: {error!r}")

    try:
        engine: Engine = SqliteEngine(run_dir / "store" / "trips", "trips", SHARDS)
    except CellfeedError as error:
        return [f"it does not open: {error}"], [], 1
    except Exception as error:
        violations["errors"].append(f"{told}: it does not open: {error!r}")
        return [], [], 1
    by_row = {
        cell.row_key: [each for each in whole.cells if each.row_key == cell.row_key]
        for cell in whole.cells[:60]
    }

    def log_of(shard: int) -> object:
        return _shown(engine.scan(shard, 0, 10_000))

    def piece_of(shard: int) -> object:
        return [_shown(each) for each in engine.scan_many([LogRange(shard, 5, 50)])]

    def by_triple(triple: Triple) -> object:
        return _bodies(engine.get([triple]))

    def latest_of(key: tuple[bytes, str]) -> object:
        return _bodies(engine.latest([key]))

    def row_of(row_key: bytes) -> object:
        return _bodies(engine.row([row_key])[0])

    with closing(engine):
        for shard in range(SHARDS):
            ask(
                "I7",
                f"the log of shard {shard}",
                partial(log_of, shard),
                whole.logs[shard],
            )
            wanted = [whole.logs[shard][5:55]]
            ask(
                "I7",
                f"a piece of shard {shard}",
                partial(piece_of, shard),
                wanted,
            )
        for row_key, cells in by_row.items():
            for cell in cells:
                ask(
                    "I1",
                    f"get of {cell.triple}",
                    partial(by_triple, cell.triple),
                    [cell.body_json],
                )
                key = (cell.row_key, cell.column_name)
                ask(
                    "I1",
                    f"latest of {key}",
                    partial(latest_of, key),
                    [cell.body_json],
                )
            in_order = [cell.body_json for cell in sorted(cells, key=lambda each: each.column_name)]
            ask(
                "I1",
                f"row {row_key.hex()}",
                partial(row_of, row_key),
                in_order,
            )
    return refused, hidden, calls


def _shown(cells: Sequence[StoredCell]) -> list[tuple[object, ...]]:
    return [(*cell[:5], decode_body(cell.body)) for cell in cells]


def _bodies(found: Sequence[LocatedCell | None]) -> list[bytes | None]:
    return [each and decode_body(each.cell.body) for each in found]


def _config() -> Config:
    return Config(datastore=DatastoreConfig(name="trips", shards=SHARDS))


def _checked(run_dir: Path) -> Findings:
    found = Findings()
    check_storage(_config(), run_dir, found)
    return found


def _checked_in_pieces(run_dir: Path) -> list[str]:
    """The damage that the workers' own background check names: of each flip that hides a cell,
    something."""
    files, found = FilesInPieces(run_dir / "store" / "trips", "trips", SHARDS), Findings()
    try:
        for shard in files.begin(found):
            first: int | None = 0
            while first is not None:
                first, _ = files.check(shard, first, 100, found)
    except CellfeedError as error:
        return [str(error)]
    return [str(each) for each in found.found]


def _repaired(
    run_dir: Path, backups: Path, whole: Whole, found: Findings, told: str, violations: Violations
) -> None:
    """A repair that says that all is mended has made the store as it was."""
    path = run_dir / "store" / "trips" / CELLS_FILE
    try:
        repair_storage(_config(), run_dir, Backups(place_at(str(backups)), None), found)
        if not found.well:
            return
        if (again := _checked(run_dir)).found:
            violations["repair"].append(f"{told}: mended, and found again: {again.found[0]}")
        with closing(SqliteEngine(path.parent, "trips", SHARDS)) as engine:
            if [_shown(engine.scan(shard, 0, 10_000)) for shard in range(SHARDS)] != whole.logs:
                violations["repair"].append(f"{told}: mended, and another log")
            if _bodies(engine.get([cell.triple for cell in whole.cells])) != [
                cell.body_json for cell in whole.cells
            ]:
                violations["repair"].append(f"{told}: mended, and not all cells are found by key")
    except CellfeedError as error:
        if found.well:
            violations["repair"].append(f"{told}: mended, and {error}")
    except Exception as error:
        violations["repair"].append(f"{told}: {error!r}")
