"""An engine over clusters: each shard's calls go to the cluster that the shard map names. Promises
E1–E27, with E1 per cluster.

One transaction cannot span two clusters, so a datastore over several has one group commit per
cluster (:meth:`ClusteredEngine.commit_group`): a cluster that is away holds up nobody else's puts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.cell import NewCell, PutResult, StoredCell, Triple
from cellfeed.store.cells.sharding import check_shard, shard_of
from cellfeed.store.clusters.model.shard_map import told_ranges
from cellfeed.store.clusters.model.shard_notes import Clusters
from cellfeed.store.clusters.moves.heal import take_back_left_copy
from cellfeed.store.clusters.serving.buffer import BufferDrain, buffer_of
from cellfeed.store.clusters.serving.cluster import Cluster, Watermark
from cellfeed.store.clusters.serving.dictionaries import ClusteredDictionaries
from cellfeed.store.clusters.serving.fan_out import FanOut
from cellfeed.store.clusters.serving.indexes import ClusteredIndexes
from cellfeed.store.clusters.serving.node import READ_TIMEOUT_S, NodeEngine, OpenNode, StorageNode
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.clusters.serving.puts import ClusteredPuts
from cellfeed.store.clusters.serving.state import ClusterState
from cellfeed.store.clusters.serving.status import ClusterStanding, standing
from cellfeed.store.clusters.serving.stored_bodies import ClusteredBodies
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.engines.contract.log_start import check_trim
from cellfeed.store.engines.contract.read_bounds import Page
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    LocatedCell,
    LogRange,
    NamedBodies,
    Replica,
)
from cellfeed.store.errors import CellfeedError, ShardMoving, StorageUnavailable, Unavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import History
from cellfeed.store.limits import ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS

declare("cluster.erase.before_buffers")

_log = logging.getLogger("cellfeed.moves")

UNBUFFERED_S: Final = 60
"""A cell is buffered by one master's clock and written by another's, in seconds by which they may
differ: a trim leaves the cells of so long before the oldest that is still buffered."""

_LOOKS: Final = 5
_PAUSE_S: Final = 0.002
"""All nodes are asked so many times for cells that one of them has shown, a little later each time:
the others have them in some milliseconds."""

T = TypeVar("T")
K = TypeVar("K")


class ClusteredEngine:
    """See the module. ``nodes``: cluster name to node name to how the node is opened.
    ``read_first``: where reads of logs go first. ``copies``: on how many other clusters a put is
    buffered first. ``servers``: the same clusters as their operator has them, closed with the
    engine: an erasure needs them that finds a half copy of its shard whose mover is dead.

    Opens while clusters are away, as long as one tells the shard map; raises StorageUnavailable
    otherwise, ProtectData when it is another datastore's, DictionaryLost when a master lacks a
    dictionary that bodies need.
    """

    def __init__(
        self,
        datastore: str,
        shards: int,
        nodes: Mapping[str, Mapping[str, OpenNode]],
        *,
        watermark: Watermark = Watermark.REPLICATED,
        read_first: Replica = Replica.MASTER,
        copies: int = 0,
        servers: Clusters | None = None,
    ) -> None:
        self._datastore, self._shards, self._read_first = datastore, shards, read_first
        self.clusters = {
            name: Cluster(
                name,
                [StorageNode(node, open_node) for node, open_node in members.items()],
                [],
                watermark,
            )
            for name, members in nodes.items()
        }
        tables = {name: buffer_of(cluster) for name, cluster in self.clusters.items()}
        self.drain = BufferDrain(tables, self._cluster_of, self._shard_of)
        """The job that empties the buffers; a process that should do it starts it."""
        self._servers = servers or {}
        self._dictionaries = ClusteredDictionaries(list(self.clusters.values()))
        known_dictionaries.add_source(self._dictionaries.find)
        self._fan_out = FanOut()
        try:
            self.placement = Placement(datastore, shards, self.clusters)
        except BaseException:
            self.close()
            raise
        self._puts = ClusteredPuts(
            self.placement, shards, tables if len(self.clusters) > 1 else {}, copies
        )
        self._bodies = ClusteredBodies(self.clusters, self.placement)
        self._state = ClusterState(next(iter(self.clusters.values())))
        self._indexes = ClusteredIndexes(
            list(self.clusters.values()), self.placement, self._fan_out
        )

    def _cluster_of(self, shard: int) -> Cluster:
        return self.placement.cluster_of(check_shard(shard, self._shards))

    @property
    def datastore(self) -> str:
        return self._datastore

    @property
    def shards(self) -> int:
        return self._shards

    @property
    def history(self) -> History:
        return self.placement.map.history

    @property
    def state(self) -> StateTable:
        return self._state

    @property
    def indexes(self) -> ClusteredIndexes:
        return self._indexes

    @property
    def dictionaries(self) -> ClusteredDictionaries:
        return self._dictionaries

    def commit_group(self, shard: int) -> str:
        """Cells of shards of the same group may be written in one transaction: the cluster's
        name."""
        return self.placement.name_of(shard)

    # --- writing ----------------------------------------------------------------------------------

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        return self._puts.put(cells)

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        """As the contract's, and at most up to the cells of ``UNBUFFERED_S`` before the oldest that
        a cluster still buffers, for whichever one: a shard may have moved since. The drain puts
        buffered cells again, and must find them stored rather than store them a second time."""
        limits: dict[int, int] = {}
        for shard in shards:
            cluster = self._cluster_of(shard)
            if shard not in limits:
                limits.update(cluster.trim_limits())
        oldest_us = self._oldest_buffered_us(
            ", ".join(sorted({self.placement.name_of(shard) for shard in shards}))
        )
        if oldest_us is None:
            return {shard: limits[shard] for shard in shards}
        return {
            shard: min(limits[shard], self.locate(shard, oldest_us - UNBUFFERED_S * 1_000_000))
            for shard in shards
        }

    def _oldest_buffered_us(self, owners: str) -> int | None:
        """When the oldest cell was buffered that waits on a cluster, microseconds; None when none
        does. Raises StorageUnavailable."""
        oldest = []
        for name, counts in self.drain.counts().items():
            if isinstance(counts, str):
                raise StorageUnavailable(
                    f"nothing trimmed: cluster {name} cannot tell what it buffers for {owners}:"
                    f" {counts}"
                )
            oldest += [each.oldest_at_us for each in counts if each.cells]
        return min(oldest, default=None)

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        limit = self.trim_limits([shard])[shard]
        check_trim(shard, below, limit)
        return self.placement.settled(lambda: self._cluster_of(shard).trim(shard, below, cells_max))

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        """As the contract's. With the last step the copies go that other clusters buffer of the
        row; raises OutcomeUnknown while one of them does not answer: then it is repeated. From the
        first step on no copy is written to the log any more, the drain drops it
        (:mod:`cellfeed.store.clusters.serving.buffer`). While the shard is copied for a move
        nothing is erased (ShardMoving), unless the mover is dead: then the copy is dropped first
        (:mod:`cellfeed.store.clusters.moves.heal`)."""
        shard = shard_of(row_key, self._shards)

        def erase() -> ErasedStep:
            return self._cluster_of(shard).erase(row_key, cells_max)

        try:
            step = self.placement.settled(erase)
        except ShardMoving as refused:
            self._take_back_copy(shard, refused)
            step = self.placement.settled(erase)
        failpoint("cluster.erase.before_buffers")
        if not step.done:
            return step
        self.drain.forget_row(row_key)
        return step._replace(kept=tuple(self._kept_elsewhere()))

    def _take_back_copy(self, shard: int, refused: ShardMoving) -> None:
        """Drops a copy of the shard that a dead mover has left. Raises what the erasure was refused
        with, and why, when there is none that can be dropped."""
        try:
            copied_to = take_back_left_copy(self._servers, self.placement.name_of(shard), shard)
        except CellfeedError as error:
            raise ShardMoving(f"{refused}; {error}") from error
        if copied_to is None:
            raise refused
        _log.warning(
            "shard %d: a dead mover had left a copy on cluster %s, which was dropped so that a row"
            " can be erased",
            shard,
            copied_to,
        )

    def settle_puts(self, shard: int) -> int:
        return self._bodies.settle_puts(check_shard(shard, self._shards))

    def bodies_named(self, shard: int, prefix: bytes, location: int, limit: int) -> NamedBodies:
        return self._bodies.named(check_shard(shard, self._shards), prefix, location, limit)

    def replace_bodies(self, shard: int, cells: Sequence[tuple[StoredCell, bytes]]) -> int:
        return self._bodies.replace(check_shard(shard, self._shards), cells)

    def bodies_with(self, prefix: bytes) -> dict[str, int]:
        return self._bodies.count(prefix)

    def _kept_elsewhere(self) -> list[str]:
        """What clusters keep of shards that have left them: as it was then, the cells of a row in
        its own shard, its entries of indexes in any."""
        told = []
        for name, cluster in self.clusters.items():
            try:
                shards = told_ranges(
                    cluster.write(lambda engine, _: engine.kept_shards(), READ_TIMEOUT_S)
                )
            except Unavailable as error:
                told.append(
                    f"cluster {name} does not say whether it keeps copies of shards that have left"
                    f" it: cellfeed shard moves: {error}"
                )
                continue
            if shards:
                told.append(
                    f"cluster {name} keeps shards {shards} as they were when they left it: cellfeed"
                    f" shard clean --shard {shards}"
                )
        return told

    def _shard_of(self, cell: NewCell) -> int:
        return shard_of(cell.row_key, self._shards)

    # --- reading ----------------------------------------------------------------------------------

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        return self._each(
            [(triple.row_key, triple) for triple in triples],
            lambda engine, wanted: engine.get(wanted),
            _as_stale,
            read_from,
            lasting=all_found,
        )

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        keyed = [(row_key, (row_key, column)) for row_key, column in keys]
        return self._each(keyed, lambda engine, wanted: engine.latest(wanted), _as_stale, read_from)

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        keyed = [(row_key, row_key) for row_key in row_keys]

        def read(engine: NodeEngine, wanted: list[bytes]) -> list[list[LocatedCell]]:
            return engine.row(wanted, after_column=after_column if wanted[0] == row_keys[0] else "")

        # That there is nothing behind a column says nothing of the row: it was found.
        begun = row_keys[:1] if after_column else ()
        return self._each(
            keyed,
            read,
            lambda row: [each._replace(stale=True) for each in row],
            read_from,
            lambda wanted, found: _all_there(wanted, found, begun),
        )

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        return self.placement.settled(lambda: self._row_cells(row_key, after, limit))

    def _row_cells(self, row_key: bytes, after: int, limit: int) -> list[StoredCell]:
        cluster = self._cluster_of(shard_of(row_key, self._shards))
        found, stale = cluster.read(lambda engine: engine.row_cells(row_key, after, limit))
        if stale:
            raise StorageUnavailable(
                f"cluster {cluster.name}: its master is away or unconfirmed: which cells a row has"
                " cannot be told"
            )
        return found

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        check_shard(shard, self._shards)
        return self.placement.settled(lambda: self._scan(shard, location, limit))

    def _scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        watermark = self._cluster_of(shard).shown(shard)
        if location >= watermark:
            # The cells that were shown before are enough: a caller that wants newer ones asks for
            # the heads, or reads on.
            watermark = self._head(shard).watermark
        cluster = self._cluster_of(shard)
        count = min(limit, watermark - location)
        if count <= 0:
            return []
        cells = self._read_shown(cluster, lambda engine: engine.scan(shard, location, count), bool)
        return _there(cluster, [LogRange(shard, location, count)], [_shown(cells, watermark)])[0]

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        for each in ranges:
            check_shard(each.shard, self._shards)
        return self.placement.settled(lambda: self._scan_many(ranges))

    def _scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        found: list[list[StoredCell]] = [[] for _ in ranges]
        by_cluster: dict[Cluster, list[tuple[int, LogRange]]] = {}
        for index, each in enumerate(ranges):
            by_cluster.setdefault(self._cluster_of(each.shard), []).append((index, each))
        for cluster, members in by_cluster.items():
            if any(each.location >= cluster.shown(each.shard) for _, each in members):
                self._heads_of(cluster)
            shown = [
                (
                    index,
                    each._replace(limit=min(each.limit, cluster.shown(each.shard) - each.location)),
                )
                for index, each in members
            ]
            some = [(index, each) for index, each in shown if each.limit > 0]
            if not some:
                continue
            wanted = [each for _, each in some]
            cells = self._read_shown(
                cluster,
                lambda engine, wanted=wanted: engine.scan_many(wanted),  # type: ignore[misc, misc]
                all_found,
            )
            below = [
                _shown(piece, cluster.shown(each.shard))
                for each, piece in zip(wanted, cells, strict=True)
            ]
            for (index, _), there in zip(some, _there(cluster, wanted, below), strict=True):
                found[index] = there
        return found

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        check_shard(shard, self._shards)

        # A node that is behind, or an old master, knows of fewer newer cells and names fewer. What
        # it has beyond the watermark does not count, so none is named in error.
        def ask(engine: NodeEngine) -> set[int]:
            return engine.superseded(shard, start, end, log_start, watermark)

        found, _ = self.placement.settled(
            lambda: self._cluster_of(shard).read(ask, self._read_first, lasting=_always)
        )
        return found

    def locate(self, shard: int, created_at_us: int) -> int:
        check_shard(shard, self._shards)
        watermark = self._head(shard).watermark
        found, _ = self.placement.settled(
            lambda: self._cluster_of(shard).read(lambda engine: engine.locate(shard, created_at_us))
        )
        return min(found, watermark)

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        wanted = (
            range(self._shards)
            if shards is None
            else [check_shard(shard, self._shards) for shard in shards]
        )
        heads: dict[int, Head] = {}
        # A shard that changes its cluster between two looks is looked for once more.
        while left := [shard for shard in wanted if shard not in heads]:
            clusters = list(
                {self.placement.name_of(shard): self._cluster_of(shard) for shard in left}.values()
            )
            for cluster in clusters:
                heads.update(
                    {
                        shard: head
                        for shard, head in self._heads_of(cluster).items()
                        if self.placement.name_of(shard) == cluster.name
                    }
                )
        return heads if shards is None else {shard: heads[shard] for shard in wanted}

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        ends: dict[int, tuple[int, int]] = {}
        for name, cluster in self.clusters.items():
            told = cluster.acknowledged_ends()
            ends |= {
                shard: end for shard, end in told.items() if self.placement.name_of(shard) == name
            }
        return ends

    def _head(self, shard: int) -> Head:
        return self.heads([shard])[shard]

    def _heads_of(self, cluster: Cluster) -> dict[int, Head]:
        heads = cluster.heads()
        if cluster.lacks():
            self.placement.refresh()
        return heads

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        check_shard(shard, self._shards)
        epochs, _ = self.placement.settled(
            lambda: self._cluster_of(shard).read(lambda engine: engine.leader_epochs(shard))
        )
        return epochs

    def columns(self) -> list[str]:
        return sorted(
            {
                name
                for cluster in self.clusters.values()
                for name in cluster.read(lambda engine: engine.columns())[0]
            },
            key=str.encode,
        )

    def change_token(self) -> int:
        return sum(
            head.watermark + head.log_start + head.erasures + head.leader_epoch
            for head in self.heads().values()
        )

    def standing(self) -> list[ClusterStanding]:
        """How each cluster stands, in the order of the configuration."""
        return [standing(cluster) for cluster in self.clusters.values()]

    def close(self) -> None:
        known_dictionaries.remove_source(self._dictionaries.find)
        self.drain.close()
        self._fan_out.close()
        for cluster in self.clusters.values():
            cluster.close()
        for servers in self._servers.values():
            servers.close()

    # --- inside -----------------------------------------------------------------------------------

    def _read_shown(
        self, cluster: Cluster, read: Callable[[NodeEngine], T], enough: Callable[[T], bool]
    ) -> T:
        """Reads from a node that has the cells that were shown. One that is behind gives none of
        them: the next one is asked then, and all of them again."""
        for look in range(_LOOKS):
            time.sleep(_PAUSE_S * look)
            found, _ = cluster.read(read, self._read_first, enough, shown=True)
            if enough(found):
                break
        return found

    def _grouped(self, keyed: Sequence[tuple[bytes, K]]) -> dict[Cluster, list[tuple[int, K]]]:
        """By cluster: the items, with their indexes."""
        groups: dict[Cluster, list[tuple[int, K]]] = {}
        for index, (row_key, item) in enumerate(keyed):
            groups.setdefault(self._cluster_of(shard_of(row_key, self._shards)), []).append(
                (index, item)
            )
        return groups

    def _each(
        self,
        keyed: Sequence[tuple[bytes, K]],
        read: Callable[[NodeEngine, list[K]], list[T]],
        as_stale: Callable[[T], T],
        read_from: Replica,
        enough: Callable[[list[K], list[T]], bool] = lambda _, values: all_found(values),
        lasting: Callable[[list[T]], bool] | None = None,
    ) -> list[T]:
        return self.placement.settled(
            lambda: self._each_now(keyed, read, as_stale, read_from, enough, lasting)
        )

    def _each_now(
        self,
        keyed: Sequence[tuple[bytes, K]],
        read: Callable[[NodeEngine, list[K]], list[T]],
        as_stale: Callable[[T], T],
        read_from: Replica,
        enough: Callable[[list[K], list[T]], bool],
        lasting: Callable[[list[T]], bool] | None,
    ) -> list[T]:
        """The first of them, up to where one of the clusters had no more room for its own (E26)."""
        results: dict[int, T] = {}
        end = len(keyed)
        for cluster, members in self._grouped(keyed).items():
            wanted = [item for _, item in members]
            values, stale = cluster.read(
                lambda engine, wanted=wanted: read(engine, wanted),  # type: ignore[misc]
                read_from,
                lambda values, wanted=wanted: enough(wanted, values),  # type: ignore[misc]
                lasting=lasting,
            )
            if stale and not enough(wanted, values):
                # What a minion does not have may still have been acknowledged: "not there" is only
                # the master's to say.
                raise StorageUnavailable(
                    f"cluster {cluster.name}: its master is away or unconfirmed, and what was asked"
                    " for is not on its minions: absence cannot be told"
                )
            for (index, _), value in zip(members, values, strict=False):
                results[index] = as_stale(value) if stale else value
            if len(values) < len(members) or _is_full(values):
                end = min(end, members[len(values) - 1][0] + 1)
        return [results[index] for index in range(end)]


def _shown(cells: list[StoredCell], watermark: int) -> list[StoredCell]:
    """The cells below the watermark: where a restore left ids out, a read of as many cells as ids
    may reach beyond it."""
    return (
        cells
        if not cells or cells[-1].added_id < watermark
        else [cell for cell in cells if cell.added_id < watermark]
    )


def _there(
    cluster: Cluster, ranges: Sequence[LogRange], found: list[list[StoredCell]]
) -> list[list[StoredCell]]:
    """The cells found, if there are any of each range: all of them lie below the watermark, and
    "nothing" from a node that is behind would be read as a hole in the log (I7). Raises
    StorageUnavailable."""
    for each, cells in zip(ranges, found, strict=True):
        if not cells:
            raise StorageUnavailable(
                f"cluster {cluster.name}: no node that can be read just now has shard {each.shard}"
                f" from {each.location} on, which was shown"
            )
    return found


def _as_stale(found: LocatedCell | None) -> LocatedCell | None:
    return found and found._replace(stale=True)


def _all_there(row_keys: Sequence[bytes], rows: Sequence[object], begun: Sequence[bytes]) -> bool:
    """Whether every row has a cell, but for those that are gone on with."""
    return all(row or row_key in begun for row_key, row in zip(row_keys, rows, strict=False))


def _is_full(values: Sequence[object]) -> bool:
    """Whether what one cluster answered is as much as an answer holds: the last of it may be a part
    of a row."""
    page = Page()
    for value in values:
        page.take_up_to_full_of(
            value if isinstance(value, list) else [value] if isinstance(value, LocatedCell) else []
        )
    return page.is_full


def _always(_: object) -> bool:
    return True


def all_found(values: Sequence[object]) -> bool:
    """Whether every key has a cell."""
    return all(values)
