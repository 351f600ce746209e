"""A cluster of MySQL servers as an operator gives it: names, addresses, how they replicate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.promises import promised_database
from cellfeed.store.errors import InvalidRequest, ProtectData


@dataclass(frozen=True)
class ClusterServers:
    """``servers``: node name to its server, the first one being the first master. ``semi_sync``:
    commits wait until a minion has received them."""

    name: str
    datastore: str
    shards: int
    servers: Mapping[str, MySqlServer]
    semi_sync: bool = True

    def server(self, node: str) -> MySqlServer:
        if node not in self.servers:
            raise InvalidRequest(
                f"cluster {self.name} has no node {node!r}; it has {', '.join(self.servers)}"
            )
        return self.servers[node]

    def with_timeout(self, timeout_s: float) -> ClusterServers:
        """The same servers over connections of their own, which wait so many seconds for an answer.
        The caller closes them."""
        servers = {
            name: MySqlServer(server.address, timeout_s) for name, server in self.servers.items()
        }
        return ClusterServers(
            self.name, self.datastore, self.shards, servers, semi_sync=self.semi_sync
        )

    def refuse_managed(self, operation: str) -> None:
        """Raises ProtectData for an operation on servers behind a managed endpoint."""
        if any(server.address.managed for server in self.servers.values()):
            raise ProtectData(
                f"cluster {self.name} is managed (`managed: true`): {operation} is for servers that"
                " replicate as cellfeed has them; its service has operations of its own. Nothing"
                " was changed"
            )

    def close(self) -> None:
        for server in self.servers.values():
            server.close()

    @property
    def meta(self) -> str:
        """The meta database: the counters, the state and the buffer."""
        return f"{self.datastore}_meta"

    @property
    def promised(self) -> str:
        """A database in which each node remembers by itself which promotions began
        (:mod:`cellfeed.store.clusters.model.promises`)."""
        return promised_database(self.datastore)

    @property
    def copying(self) -> str:
        """A database that a node has only while it is made a copy of its master: the meta database
        comes out of it when the copy is whole."""
        return f"{self.datastore}_copying"
