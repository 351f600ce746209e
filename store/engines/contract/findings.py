"""Findings of a check: the fault, its place and its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

NAMED_MAX: Final = 100
"""Findings of one kind in one shard of one place that are named; the others are counted. A disk
that fails damages thousands of cells."""

Kind = Literal["identity", "integrity", "gap", "checksum", "counter", "key", "index", "unread"]
"""``identity``: a part of another history, or none. ``integrity``: the database's own check.
``gap``: ids without a cell. ``checksum``: a cell is not the one that was written. ``counter``: a
counter does not fit the cells. ``key``: a cell in the wrong shard, or not found by its key.
``index``: an entry does not fit the cells. ``unread``: something could not be looked at."""

OnCells = Callable[[int], None]
"""Gets how many cells have been looked at, after each piece."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``place``: the file, or ``cluster/node``. ``shard`` and ``ids`` where it concerns cells.
    ``mended``: the damaged value that a repair replaced; empty when nothing was."""

    kind: Kind
    place: str
    text: str
    shard: int | None = None
    ids: range | None = None
    mended: str = ""

    def as_json(self) -> dict[str, object]:
        """For ``--json``: ``from`` and ``to`` are the first and the last added_id."""
        found: dict[str, object] = {"kind": self.kind, "place": self.place, "text": self.text}
        if self.shard is not None:
            found["shard"] = self.shard
        if self.ids is not None:
            found |= {"from": self.ids.start, "to": self.ids.stop - 1}
        if self.mended:
            found["mended"] = self.mended
        return found

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.text}" + (
            f"; mended: {self.mended}" if self.mended else ""
        )


@dataclass
class Findings:
    """All that a check found. ``without_checksum``: cells of an earlier version, which
    `cellfeed scrub` gives one."""

    found: list[Finding] = field(default_factory=list)
    cells: int = 0
    without_checksum: int = 0
    unnamed: int = 0
    """Findings that are counted only."""

    def __post_init__(self) -> None:
        self._named: Counter[tuple[str, str, int | None]] = Counter()

    def add(
        self, kind: Kind, place: str, text: str, shard: int | None = None, ids: range | None = None
    ) -> None:
        """One more."""
        key = kind, place, shard
        self._named[key] += 1
        if self._named[key] > NAMED_MAX:
            self.unnamed += 1
        else:
            self.found.append(Finding(kind, place, text, shard, ids))

    def take(self, other: Findings) -> None:
        """Adds the findings about a part that was checked in parallel."""
        self.found += other.found
        self.cells += other.cells
        self.without_checksum += other.without_checksum
        self.unnamed += other.unnamed

    @property
    def well(self) -> bool:
        """Whether nothing is wrong that was not mended."""
        return not self.unnamed and all(each.mended for each in self.found)
