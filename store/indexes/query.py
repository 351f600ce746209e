"""Answers queries of an index, and remembers for a moment which version is current.

**Fresh** (the default): every entry is checked against the ref keys of the row's current cells, and
made again where these differ. A row that no longer meets the filters is left out. A row that the
index does not hold *yet* is not found (``wait_for`` is for that). Rows come in the order of the
index's entries. **Fast**: entries as they are. While a master is away, both are answered from a
minion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from cellfeed.store.api import ReadFrom
from cellfeed.store.arguments import check_read_from
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import InvalidRequest, StorageUnavailable
from cellfeed.store.indexes.catalog import Catalog
from cellfeed.store.indexes.checked_request import checked_request
from cellfeed.store.indexes.page import Query
from cellfeed.store.indexes.records import IndexRecord, VersionRecord
from cellfeed.store.indexes.request import WAIT_S, Filter, IndexPage, check_wait_for, check_wait_s
from cellfeed.store.indexes.settled_logs import SettledLogs
from cellfeed.store.indexes.version import IndexVersion

REMEMBERED_S: Final = 1.0
"""How long it is remembered which version of an index is current. A version that was replaced is
kept on for longer than that."""


_POLL_S: Final = 0.002
_POLL_MAX_S: Final = 0.05

Positions = Callable[[str], Mapping[int, int]]
"""Of a trigger group by shard: the location that it has come to."""


class Indexes:
    """The indexes of a datastore. Any number of threads. ``positions`` is needed for ``wait_for``
    alone."""

    def __init__(self, engine: Engine, positions: Positions | None = None) -> None:
        self._engine = engine
        self.positions = positions
        self.settled = SettledLogs(engine)
        self.catalog = Catalog(engine.state, engine.datastore)
        self._remembered: dict[str, tuple[float, IndexVersion]] = {}

    def version(self, record: VersionRecord) -> IndexVersion:
        """The reader and writer of a version's entries."""
        return IndexVersion(record.definition, record.number, self._engine.shards)

    def kept_versions(self) -> list[IndexVersion]:
        """The versions that are written now."""
        now_us = self.catalog.now_us()
        return [
            self.version(version)
            for record in self.catalog.all()
            for version in record.versions
            if version.is_kept(now_us)
        ]

    def current(self, name: str) -> IndexVersion:
        """The version that queries are answered from. Raises NotFound; StorageUnavailable while the
        first one is being built."""
        remembered = self._remembered.get(name)
        if remembered is not None and time.monotonic() < remembered[0]:
            return remembered[1]
        record = self.catalog.get(name)
        version = self.version(_current(record))
        if remembered is not None and remembered[1].number == version.number:
            version = remembered[1]
        self._remembered[name] = time.monotonic() + REMEMBERED_S, version
        return version

    def query(
        self,
        name: str,
        shard_value: Any,
        where: Sequence[Filter] = (),
        *,
        order_by: str | None = None,
        descending: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        fields: Sequence[str] | None = None,
        columns: Sequence[str] | Literal["*"] | None = None,
        mode: Literal["fresh", "fast"] = "fresh",
        read_from: ReadFrom = "master",
        wait_for: object = None,
        wait_s: float = WAIT_S,
    ) -> IndexPage:
        """See :meth:`cellfeed.store.api.CellStore.query_index`."""
        version = self.current(name)
        request = checked_request(
            version.definition,
            version.number,
            shard_value=shard_value,
            where=where,
            order_by=order_by,
            descending=descending,
            limit=limit,
            cursor=cursor,
            fields=fields,
            columns=columns,
            mode=mode,
            read_from=check_read_from(read_from),
        )
        self._wait_for(name, check_wait_for(wait_for, self._engine.shards), check_wait_s(wait_s))
        return Query(self._engine, version, request, self.settled).page()

    def behind(self, name: str, locations: Mapping[int, int]) -> str | None:
        """The locations (by shard) that the index has not passed, as text; None when there are
        none."""
        if self.positions is None:
            raise InvalidRequest(
                "wait_for: this datastore was opened without the coordination that knows how far"
                " its indexes are"
            )
        reached = self.positions(self.current(name).group)
        for shard, added_id in locations.items():
            if reached.get(shard, 0) <= added_id:
                return (
                    f"index {name!r} has come to {reached.get(shard, 0)} in shard {shard}, not past"
                    f" {added_id}"
                )
        return None

    def pauses(self, wait_s: float) -> Iterator[float]:
        """Pauses between two looks at :meth:`behind`, in seconds, for so long."""
        deadline_s, pause_s = time.monotonic() + wait_s, _POLL_S
        while time.monotonic() < deadline_s:
            yield pause_s
            pause_s = min(_POLL_MAX_S, pause_s * 1.5)

    def _wait_for(self, name: str, locations: Mapping[int, int], wait_s: float) -> None:
        if not locations or not (lag := self.behind(name, locations)):
            return
        for pause_s in self.pauses(wait_s):
            time.sleep(pause_s)
            if not (lag := self.behind(name, locations)):
                return
        raise StorageUnavailable(f"{lag} within {wait_s} s")


def _current(record: IndexRecord) -> VersionRecord:
    if record.current is None:
        raise StorageUnavailable(
            f"index {record.name!r} is still being built (see cellfeed index status)"
        )
    return record.current
