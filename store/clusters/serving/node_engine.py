"""The engine of one storage node, as a cluster calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from cellfeed.store.cells.cell import NewCell, StoredCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.buffer import NodeBufferTable
from cellfeed.store.engines.contract.dictionaries import NodeDictionaryTable
from cellfeed.store.engines.contract.indexes import NodeIndexStore
from cellfeed.store.engines.contract.rewritable import RewritableEngine
from cellfeed.store.engines.contract.state_table import NodeStateTable
from cellfeed.store.engines.contract.values import ErasedStep, Look, WriteTerms
from cellfeed.store.limits import ERASE_STEP_CELLS, TRIM_STEP_CELLS

WATCH_TIMEOUT_S: Final = 1.0
"""Longest wait of the watcher for one answer, in seconds."""

READ_TIMEOUT_S: Final = 3.0
"""Longest wait of a read for one answer before another node is asked."""

WRITE_TIMEOUT_S: Final = 15.0
"""Longest wait of a write for one answer: above InnoDB's lock wait, so that a lock time-out is
reported as such."""


class NodeEngine(RewritableEngine, Protocol):
    """The engine of one node. A put, a trim or an erasure under ``terms`` is refused (StaleWriter,
    nothing written) when their leader epoch is not the shards' own."""

    def put(self, cells: Sequence[NewCell], terms: WriteTerms | None = None) -> list[PutResult]: ...

    def trim(
        self,
        shard: int,
        below: int,
        cells_max: int = TRIM_STEP_CELLS,
        terms: WriteTerms | None = None,
    ) -> int: ...

    def erase(
        self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS, terms: WriteTerms | None = None
    ) -> ErasedStep: ...

    def settle_puts(self, shard: int, terms: WriteTerms | None = None) -> int: ...

    def replace_bodies(
        self,
        shard: int,
        cells: Sequence[tuple[StoredCell, bytes]],
        terms: WriteTerms | None = None,
    ) -> int: ...

    def memory_advice(self) -> str | None:
        """A hint to the node's operator about its memory, in a sentence; None when nothing."""
        ...

    def kept_shards(self) -> list[int]:
        """Shards that have left the node's cluster, or are about to, and whose rows it still
        has."""
        ...

    @property
    def connected_at_s(self) -> float:
        """When the youngest connection was begun, by the monotonic clock: the server may have
        restarted before that."""
        ...

    def expect(self, cluster: str, history_id: str) -> None:
        """From now on calls raise ForeignServer where another server than one of this cluster and
        history answers."""
        ...

    def settle(self, terms: WriteTerms) -> None:
        """Returns when a write under these terms would be acknowledged, so when a minion has all
        that a semi-synchronous master holds."""
        ...

    def look(self, state_key: str, seen: object | None) -> Look:
        """All that a watcher asks about, in one round trip: a state entry's value, and the counters
        unless they are those of the look whose token is ``seen``."""
        ...

    def promised_epoch(self, history_id: str) -> int:
        """The highest epoch of a promotion that the node was asked to remember; -1 when none
        (:mod:`cellfeed.store.clusters.model.promises`)."""
        ...

    @property
    def state(self) -> NodeStateTable: ...

    @property
    def indexes(self) -> NodeIndexStore: ...

    @property
    def dictionaries(self) -> NodeDictionaryTable: ...

    def abort(self) -> None:
        """Cuts off calls under way, which fail as when the network does. Later calls work."""
        ...

    @property
    def buffer(self) -> NodeBufferTable:
        """Cells of other clusters that wait on this one."""
        ...


OpenNode = Callable[[float], NodeEngine]
"""Opens a node's storage with a time-out in seconds for each answer. Raises StorageUnavailable
while it is away."""
