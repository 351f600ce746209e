"""The part of a node's history that its master lacks: cells and erasures that were never
replicated, and would be lost if it became a copy of the master."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cellfeed.store.cells.body_codec import decode_body, is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell, StoredCell
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.replication import Gtid, position
from cellfeed.store.engines.mysql.statements import query

_SCAN_CELLS: Final = 5_000


@dataclass(frozen=True)
class NeverReplicated:
    """The cells and erasures of a node that were never replicated. ``cells``: of its own shards;
    ``buffered``: of other clusters, which its buffer answers for; ``erased``: row keys, to be
    erased again; ``position``: where the node was before it was looked through; ``begins``: by
    shard the first id that it did not share. No cell of an erased row is listed.

    Trims are not listed: they took only cells that every node had, and a trim is answered when a
    minion has it. One that was not answered is repeated."""

    cells: list[NewCell]
    buffered: list[NewCell]
    erased: list[bytes]
    position: Gtid
    begins: Mapping[int, int]

    @property
    def nothing(self) -> bool:
        """Whether no cell and no erasure is among it."""
        return not self.cells and not self.buffered and not self.erased

    def __str__(self) -> str:
        erased = f" and {len(self.erased)} erasures" if self.erased else ""
        return f"{len(self.cells) + len(self.buffered)} cells{erased}"


def never_replicated(cluster: ClusterServers, node: str, role: Role) -> NeverReplicated:
    """The cells and erasures that would be lost if the node became a copy of the master now. Raises
    StorageUnavailable."""
    at = position(cluster.server(node))
    found = list(extra_cells(cluster, node, role))
    extra = [cell for _, cell in found]
    begins = {shard: cell.added_id for shard, cell in reversed(found)}
    erased = list({cell.row_key: None for cell in extra if cell.column_name == ERASED_COLUMN})
    cells = [
        NewCell(cell.row_key, cell.column_name, cell.ref_key, decode_body(cell.body))
        for cell in extra
        if not is_erased(cell.body) and cell.row_key not in erased
    ]
    buffered = [cell for cell in extra_buffered(cluster, node) if cell.row_key not in erased]
    return NeverReplicated(cells, buffered, erased, at, begins)


def extra_cells(cluster: ClusterServers, node: str, role: Role) -> Iterator[tuple[int, StoredCell]]:
    """``(shard, cell)`` of all cells that the node has at ids which the new master gave out itself:
    they were never replicated."""
    own = MySqlEngine(MySqlServer(cluster.server(node).address), cluster.datastore, cluster.shards)
    master = MySqlEngine(
        MySqlServer(cluster.server(role.master).address), cluster.datastore, cluster.shards
    )
    try:
        for shard, head in own.heads().items():
            begins = [
                first for later, first in master.leader_epochs(shard) if later > head.leader_epoch
            ]
            location = min(begins, default=head.next_added_id)
            while cells := own.scan(shard, location, _SCAN_CELLS):
                yield from ((shard, cell) for cell in cells)
                location = cells[-1].added_id + 1
    finally:
        own.close()
        master.close()


def extra_buffered(cluster: ClusterServers, node: str) -> list[NewCell]:
    """The cells of other clusters that the node's buffer answers for."""
    sql = (
        f"SELECT row_key, column_name, ref_key, body FROM {cluster.meta}.buffered_cell WHERE"
        " accepted = 1"
    )
    with cluster.server(node).connection() as connection:
        return [
            NewCell(row, column.decode(), int(ref_key), decode_body(body))
            for row, column, ref_key, body in query(connection, sql)
        ]
