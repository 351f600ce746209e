"""The invariants of the product as functions of outside observations. Each returns the violations
as sentences; an empty list is a pass.

Pure: no clock, no socket. ``tests/unit/harness/test_invariants.py`` shows for each that it finds
its own violation, so none is a check that cannot fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from tests.faults.ledger import Ledger, Put


class Seen(NamedTuple):
    """A cell as some path showed it."""

    added_id: int
    row_key: UUID
    column_name: str
    ref_key: int
    body_json: bytes

    @property
    def triple(self) -> tuple[UUID, str, int]:
        return self.row_key, self.column_name, self.ref_key


Log = Mapping[int, Sequence[Seen]]
"""The cells that one path showed of every shard, in the order in which it showed them."""

Violations = dict[str, list[str]]


def check_log(ledger: Ledger, log: Log) -> Violations:
    """I1, I2, I4, I5 and I12 of the store's log against the writers' knowledge."""
    places = {cell.triple: (shard, cell) for shard, cells in log.items() for cell in cells}
    begun = {put.triple: put for put in ledger.puts}
    return {
        "I1": list(_lost(ledger.puts, places)),
        "I2": [
            f"{cell.triple} at {shard}/{cell.added_id} was never put"
            for shard, cell in places.values()
            if not _was_put(begun, cell)
        ],
        "I4": list(_misplaced(ledger.puts, places)),
        "I5": [
            f"{triple} stands {count} times in the logs"
            for triple, count in _counts(log).items()
            if count > 1
        ],
        "I12": list(_out_of_order(ledger.puts)),
    }


def check_reader(log: Log, read: Log, name: str) -> Violations:
    """I3, I6, I7 and I8 of one reader that began at 0 and has come to the end: ids contiguous, each
    cell as in the log."""
    violations: Violations = {"I3": [], "I6": [], "I7": [], "I8": []}
    for shard, cells in log.items():
        got = list(read.get(shard, ()))
        expected = {cell.added_id: cell for cell in cells}
        last = -1
        for cell in got:
            if cell.added_id <= last:
                violations["I6"].append(f"{name}: {shard}/{cell.added_id} came after {last}")
            elif cell.added_id != last + 1:
                violations["I7"].append(f"{name}: {shard} went from {last} to {cell.added_id}")
            last = max(last, cell.added_id)
            if expected.get(cell.added_id) != cell:
                violations["I3"].append(
                    f"{name}: {shard}/{cell.added_id} is another cell than in the store's log"
                )
        missing = set(expected) - {cell.added_id for cell in got}
        if missing:
            violations["I8"].append(
                f"{name}: {shard} lacks {len(missing)} cells, the first at {min(missing)}"
            )
    return violations


def check_gapless(log: Log) -> Violations:
    """Ids from 0 without holes, on the store's own log."""
    holes = [
        f"{shard}: ids are not 0 … {len(cells) - 1}"
        for shard, cells in log.items()
        if [c.added_id for c in cells] != list(range(len(cells)))
    ]
    return {"I7": holes}


def check_definite(ledger: Ledger, log: Log) -> Violations:
    """E6: a put that certainly failed wrote nothing. Each cell was put once."""
    places = {cell.triple: (shard, cell.added_id) for shard, cells in log.items() for cell in cells}
    return {
        "E6": [
            f"{put.triple} had certainly failed and stands at {places[put.triple]}"
            for put in ledger.puts
            if put.outcome == "failed" and put.triple in places
        ]
    }


def check_once_per_cell(expected: Iterable[str], effects: Iterable[str], what: str) -> Violations:
    """I16: every expected key has exactly one effect, and there is no other effect."""
    wanted, got = set(expected), Counter(effects)
    return {
        "I16": (
            [f"{what} {key} is missing" for key in sorted(wanted - set(got))]
            + [
                f"{what} {key} happened {count} times"
                for key, count in sorted(got.items())
                if count > 1
            ]
            + [f"{what} {key} belongs to no cell" for key in sorted(set(got) - wanted)]
        )
    }


def check_run_or_parked(
    cells: Iterable[str], run: Iterable[str], parked: Iterable[str]
) -> Violations:
    """I14: every triggered cell was run or is parked, never both, never neither."""
    wanted, done, waiting = set(cells), set(run), set(parked)
    return {
        "I14": (
            [f"cell {key} was neither run nor parked" for key in sorted(wanted - done - waiting)]
            + [f"cell {key} was run and is parked" for key in sorted(done & waiting)]
        )
    }


def check_watermarks(samples: Sequence[Mapping[int, int]]) -> Violations:
    """I9: no shard's watermark ever falls between two samples."""
    falls = [
        f"shard {shard}: the watermark fell from {before[shard]} to {after[shard]}"
        for before, after in pairwise(samples)
        for shard in before.keys() & after.keys()
        if after[shard] < before[shard]
    ]
    return {"I9": falls}


def verdict(what: str, check: Callable[[], Violations]) -> Violations:
    """The findings of a check. An exception is a violation too: damage that a check does not expect
    must not end the run without a verdict."""
    try:
        return check()
    except Exception as error:
        return {"errors": [f"{what}: {error!r}"]}


def merge(*parts: Violations) -> Violations:
    """All violations by invariant."""
    merged: Violations = {}
    for part in parts:
        for name, found in part.items():
            merged.setdefault(name, []).extend(found)
    return merged


def _was_put(begun: Mapping[tuple[UUID, str, int], Put], cell: Seen) -> bool:
    put = begun.get(cell.triple)
    return put is not None and put.body_json == cell.body_json


def _lost(
    puts: Iterable[Put], places: Mapping[tuple[UUID, str, int], tuple[int, Seen]]
) -> Iterable[str]:
    for put in puts:
        if put.acknowledged and put.triple not in places:
            yield f"{put.triple} was acknowledged ({put.outcome}) and is lost"


def _misplaced(
    puts: Iterable[Put], places: Mapping[tuple[UUID, str, int], tuple[int, Seen]]
) -> Iterable[str]:
    for put in puts:
        if put.acknowledged and put.added_id is not None and put.triple in places:
            shard, cell = places[put.triple]
            if (shard, cell.added_id) != (put.shard, put.added_id):
                yield (
                    f"{put.triple} was acknowledged as {put.shard}/{put.added_id} and stands at"
                    f" {shard}/{cell.added_id}"
                )


def _counts(log: Log) -> Counter[tuple[UUID, str, int]]:
    return Counter(cell.triple for cells in log.values() for cell in cells)


def _out_of_order(puts: Iterable[Put]) -> Iterable[str]:
    by_shard: dict[int, list[Put]] = {}
    for put in puts:
        if put.outcome == "stored" and put.shard is not None and put.added_id is not None:
            by_shard.setdefault(put.shard, []).append(put)
    for shard, stored in by_shard.items():
        earliest_answer = float("inf")
        for put in sorted(stored, key=lambda put: -(put.added_id or 0)):
            if earliest_answer < put.begun_s:
                yield (
                    f"shard {shard}: {put.added_id} was begun after a cell with a higher id was"
                    " acknowledged"
                )
            earliest_answer = min(earliest_answer, put.answered_s or float("inf"))
