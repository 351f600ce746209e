"""The one ledger of the cells that anyone was shown, on any path: by key, row, latest, index,
log, gateway, warehouse, and in the answers of puts.

I3: a place (shard and added_id) has one cell, and a triple has one place and one body, on every
path, for ever. I2: nothing is shown that was not put.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple
from uuid import UUID

from tests.faults.invariants import Log, Seen, Violations
from tests.faults.ledger import Ledger

_TOLD_MAX: Final = 100
"""Violations that are kept: a defect that shows in every read is understood from these."""


class Sight(NamedTuple):
    """The first time that a cell was shown."""

    path: str
    shard: int
    cell: Seen


class Shown:
    """Thread-safe."""

    def __init__(self) -> None:
        self.looks: Counter[str] = Counter()
        """Cells shown, by path."""
        self._lock = threading.Lock()
        self._places: dict[tuple[int, int], Sight] = {}
        self._triples: dict[tuple[UUID, str, int], Sight] = {}
        self._placed: dict[tuple[UUID, str, int], Sight] = {}
        self._differing: list[str] = []

    def see(self, path: str, shard: int, cell: Seen, *, place_counts: bool = True) -> None:
        """Records one showing. ``place_counts``: False where the product does not promise the
        added_id yet, as of a master's unreplicated commit."""
        sight = Sight(path, shard, cell)
        with self._lock:
            self.looks[path] += 1
            firsts = [self._triples.setdefault(cell.triple, sight)]
            if place_counts:
                firsts += [
                    self._places.setdefault((shard, cell.added_id), sight),
                    self._placed.setdefault(cell.triple, sight),
                ]
            for first in firsts:
                if first.cell.triple != cell.triple or first.cell.body_json != cell.body_json:
                    self._differs(first, sight)
            if (
                place_counts
                and (placed := firsts[-1])
                and (placed.shard, placed.cell.added_id) != (shard, cell.added_id)
            ):
                self._differs(placed, sight)

    def log(self, path: str, log: Log, *, place_counts: bool = True) -> None:
        """Records all that one path showed of the logs."""
        for shard, cells in log.items():
            for cell in cells:
                self.see(path, shard, cell, place_counts=place_counts)

    def answers(self, ledger: Ledger, *, place_counts: bool = True) -> None:
        """Records the places that the answers of puts named."""
        for put in ledger.puts:
            if put.acknowledged and put.shard is not None and put.added_id is not None:
                cell = Seen(put.added_id, put.row_key, put.column_name, put.ref_key, put.body_json)
                self.see("the answer of a put", put.shard, cell, place_counts=place_counts)

    def violations(
        self, ledger: Ledger, columns: Collection[str], paths: Collection[str]
    ) -> Violations:
        """I2 and I3 of all that was shown. ``columns``: those that the ledger has all puts of.
        ``paths``: those that must have shown something, or the run has not looked."""
        begun = {put.triple: put.body_json for put in ledger.puts}
        invented = [
            f"{sight.path} showed {_told(sight)}, which was never put"
            for triple, sight in self._triples.items()
            if triple[1] in columns and begun.get(triple) != sight.cell.body_json
        ]
        unused = [f"nothing was shown by {path}" for path in paths if not self.looks[path]]
        return {"I2": invented, "I3": list(self._differing), "no look": unused}

    def _differs(self, first: Sight, now: Sight) -> None:
        if len(self._differing) < _TOLD_MAX:
            self._differing.append(
                f"{first.path} showed {_told(first)}, and {now.path} showed {_told(now)}"
            )


def _told(sight: Sight) -> str:
    cell = sight.cell
    return (
        f"{cell.row_key} {cell.column_name} {cell.ref_key} at {sight.shard}/{cell.added_id} as"
        f" {cell.body_json[:60].decode(errors='replace')}"
    )
