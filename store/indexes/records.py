"""An index and its versions, as the state table keeps them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cellfeed.store.errors import NotFound
from cellfeed.store.indexes.definition import IndexDefinition

GRACE_S: Final = 10.0
"""How long a version that has been replaced is kept on: longer than anybody remembers which version
is current."""

BUILDING: Final = "building"

CURRENT: Final = "current"

RETIRED: Final = "retired"

DROPPING: Final = "dropping"


class VersionRecord(msgspec.Struct, frozen=True):
    """A version. ``cells_per_s``: how fast it may be built, None for as fast as it goes. Times are
    the storage's, microseconds since 1970 UTC."""

    number: int
    definition: IndexDefinition
    state: Literal["building", "current", "retired", "dropping"]
    created_at_us: int
    cells_per_s: float | None = None
    retired_at_us: int = 0

    def is_kept(self, now_us: int) -> bool:
        """Whether its entries are to follow the logs."""
        return self.state in (BUILDING, CURRENT) or (
            self.state == RETIRED and now_us < self.retired_at_us + GRACE_S * 1e6
        )


class IndexRecord(msgspec.Struct, frozen=True):
    """An index and its versions, by number. One without versions was dropped."""

    name: str
    next_number: int = 1
    versions: list[VersionRecord] = []

    @property
    def current(self) -> VersionRecord | None:
        return next((version for version in self.versions if version.state == CURRENT), None)

    @property
    def building(self) -> VersionRecord | None:
        """The newest that is not ready yet."""
        return next(
            (version for version in reversed(self.versions) if version.state == BUILDING), None
        )

    def version(self, number: int) -> VersionRecord:
        """Raises NotFound."""
        for version in self.versions:
            if version.number == number:
                return version
        raise NotFound(
            f"index {self.name!r} has no version {number}; it has"
            f" {', '.join(str(each.number) for each in self.versions)}"
        )
