"""An engine over clusters: each shard's calls go to the cluster that the shard map names. Promises
E1–E28, with E1 per cluster.

One transaction cannot span two clusters, so a datastore over several has one group commit per
cluster (:meth:`ClusteredEngine.commit_group`): a cluster that is away holds up nobody else's puts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.cell import NewCell, StoredCell, Triple
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import check_shard, shard_of
from cellfeed.store.clusters.model.shard_notes import Clusters
from cellfeed.store.clusters.serving.buffer_drain import BufferDrain
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.dictionaries import ClusteredDictionaries
from cellfeed.store.clusters.serving.fan_out import FanOut
from cellfeed.store.clusters.serving.indexes import ClusteredIndexes
from cellfeed.store.clusters.serving.key_reads import ClusteredKeyReads
from cellfeed.store.clusters.serving.log_reads import ClusteredLogReads
from cellfeed.store.clusters.serving.master_buffer import buffer_of
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_engine import OpenNode
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.clusters.serving.puts import ClusteredPuts
from cellfeed.store.clusters.serving.removals import ClusteredRemovals
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.clusters.serving.state import ClusterState
from cellfeed.store.clusters.serving.status import ClusterStatus, cluster_status
from cellfeed.store.clusters.serving.stored_bodies import ClusteredBodies
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    LogRange,
    NamedBodies,
    Replica,
)
from cellfeed.store.histories import History
from cellfeed.store.limits import ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS


class ClusteredEngine:
    """See the module. ``nodes``: cluster name to node name to how the node is opened.
    ``read_first``: where reads of logs go first. ``copies``: on how many other clusters a put is
    buffered first. ``servers``: the same clusters as their operator has them, closed with the
    engine: an erasure needs them that finds a half copy of its shard whose mover is dead.

    Opens while clusters are away, as long as one has the shard map; raises StorageUnavailable
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
        self._datastore, self._shards = datastore, shards
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
        self._keys = ClusteredKeyReads(self.placement, shards)
        self._logs = ClusteredLogReads(self.clusters, self.placement, shards, read_first)
        self._removals = ClusteredRemovals(
            self.clusters, self.placement, shards, self.drain, self._servers, self.locate
        )
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
        """As the contract's; see :mod:`cellfeed.store.clusters.serving.removals`."""
        return self._removals.trim_limits([check_shard(shard, self._shards) for shard in shards])

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        return self._removals.trim(check_shard(shard, self._shards), below, cells_max)

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        return self._removals.erase(row_key, cells_max)

    def settle_puts(self, shard: int) -> int:
        return self._bodies.settle_puts(check_shard(shard, self._shards))

    def bodies_named(self, shard: int, prefix: bytes, location: int, limit: int) -> NamedBodies:
        return self._bodies.named(check_shard(shard, self._shards), prefix, location, limit)

    def replace_bodies(self, shard: int, cells: Sequence[tuple[StoredCell, bytes]]) -> int:
        return self._bodies.replace(check_shard(shard, self._shards), cells)

    def bodies_with(self, prefix: bytes) -> dict[str, int]:
        return self._bodies.count(prefix)

    def _shard_of(self, cell: NewCell) -> int:
        return shard_of(cell.row_key, self._shards)

    # --- reading ----------------------------------------------------------------------------------

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        return self._keys.get(triples, read_from)

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        return self._keys.latest(keys, read_from)

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        return self._keys.row(row_keys, read_from, after_column)

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        return self._keys.row_cells(row_key, after, limit)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        return self._logs.scan(shard, location, limit)

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        return self._logs.scan_many(ranges)

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        return self._logs.superseded(shard, start, end, log_start, watermark)

    def locate(self, shard: int, created_at_us: int) -> int:
        return self._logs.locate(shard, created_at_us)

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        return self._logs.heads(shards)

    def heads_since(self, mark: object | None) -> HeadChanges:
        return self._logs.heads_since(mark)

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        return self._logs.acknowledged_ends()

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        check_shard(shard, self._shards)
        epochs, _ = self.placement.retry_while_moving(
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
        return self._logs.change_token()

    def status(self) -> list[ClusterStatus]:
        """How each cluster stands, in the order of the configuration."""
        return [cluster_status(cluster) for cluster in self.clusters.values()]

    def close(self) -> None:
        known_dictionaries.remove_source(self._dictionaries.find)
        self.drain.close()
        self._fan_out.close()
        for cluster in self.clusters.values():
            cluster.close()
        for servers in self._servers.values():
            servers.close()
