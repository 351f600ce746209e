"""Two clusters of three MariaDB servers under test, every server behind a proxy of the tests' own,
with writers and tailers at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID, uuid5

from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.moves.healer import MoveHealer
from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.never_replicated import NeverReplicated
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.node_engine import OpenNode
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.engines.mysql.address import parse_mysql_url
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.indexes.version import IndexVersion
from tests.faults import general_log
from tests.faults.invariants import Seen, Violations
from tests.faults.key_readers import ALLOWED_ERRORS
from tests.faults.ledger import Ledger, Put
from tests.faults.state_work import StateWork
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import bare_servers
from tests.support.small_disk import small_disk
from tests.support.tcp_proxy import TcpProxy

DATASTORE = "trips"
SHARDS = 8
SMALL_DISK_BYTES = 220 << 20
SMALL_FILES = ("--innodb-log-file-size=8M", "--innodb-undo-tablespaces=0")
"""Options of a server that has little room."""

NAMESPACE = UUID("3e5a9a55-5b6e-4f0e-9d21-0c6b3c1d7f10")


class ClusterSystem:
    """``servers`` and ``proxies`` by node name: a1 … a3 are cluster a, b1 … b3 cluster b.
    Replication goes through the proxies, too."""

    def __init__(
        self,
        servers: list[MariaDB],
        *,
        semi_sync: bool,
        clusters: int,
        supervised: bool,
        disk: Path | None = None,
    ) -> None:
        self.disk = disk
        """The small disk that the first server's files are on."""
        names = [f"{cluster}{number}" for cluster in "ab"[:clusters] for number in (1, 2, 3)]
        self.servers = dict(zip(names, servers, strict=True))
        self.proxies = {
            name: TcpProxy(server.port, mysql=True) for name, server in self.servers.items()
        }
        self.work: Work
        """The work that continues beside the fault; set once it has begun."""
        self.violations: Violations = {}
        """Those that the fault itself has seen."""
        self.promoted: list[Promotion] = []
        self.healed: list[str] = []
        shard_map = even_map(DATASTORE, SHARDS, list("ab"[:clusters]))
        self.admin = {cluster: self._admin(cluster, semi_sync) for cluster in "ab"[:clusters]}
        for cluster in self.admin.values():
            init_cluster(cluster, shard_map)
        self._stop = threading.Event()
        looking = [
            FailoverSupervisor(each, self.promoted.append).run for each in self.admin.values()
        ] + [MoveHealer(self.admin, self.healed.append).run]
        self._threads = [threading.Thread(target=look, args=(self._stop,)) for look in looking]
        if supervised:
            for thread in self._threads:
                thread.start()

    def _admin(self, cluster: str, semi_sync: bool) -> ClusterServers:
        nodes = {name: MySqlServer(self.url(name)) for name in self.servers if name[0] == cluster}
        return ClusterServers(cluster, DATASTORE, SHARDS, nodes, semi_sync=semi_sync)

    def url(self, name: str) -> str:
        return f"mysql://root@127.0.0.1:{self.proxies[name].port}"

    def engine(self, copies: int, watermark: Watermark = Watermark.REPLICATED) -> ClusteredEngine:
        """The connections of one process."""
        nodes: dict[str, dict[str, OpenNode]] = {}
        for name in self.servers:
            nodes.setdefault(name[0], {})[name] = partial(_open_node, self.url(name))
        return ClusteredEngine(DATASTORE, SHARDS, nodes, watermark=watermark, copies=copies)

    def node_log(self, name: str) -> dict[int, list[Seen]]:
        """A node's own log, past every watermark, straight from its server."""
        engine = MySqlEngine(MySqlServer(self.servers[name].url), DATASTORE, SHARDS)
        try:
            return {
                shard: [seen_stored(cell) for cell in engine.scan(shard, 0, 100_000)]
                for shard in engine.heads()
            }
        finally:
            engine.close()

    def unguarded(self) -> list[str]:
        """Writes that a server committed without the guard, read from its general log. A server on
        the small disk writes none."""
        found = [
            (name, told)
            for name, server in self.servers.items()
            if not self.disk
            for told in general_log.unguarded_in(server.directory)
        ]
        return [f"{name} committed without the guard: {told}" for name, told in found]

    def written(self, name: str) -> int:
        """Cells that a node has committed."""
        [(cells,)] = self.servers[name].sql(
            "SELECT SUM(next_added_id) FROM trips_meta.shard_counter"
        )
        return int(str(cells))

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        for cluster in self.admin.values():
            cluster.close()
        for proxy in self.proxies.values():
            proxy.close()


def _open_node(url: str, timeout_s: float) -> MySqlEngine:
    return MySqlEngine(MySqlServer(parse_mysql_url(url), timeout_s), DATASTORE, SHARDS)


def seen_stored(cell: StoredCell) -> Seen:
    return Seen(
        cell.added_id,
        UUID(bytes=cell.row_key),
        cell.column_name,
        cell.ref_key,
        decode_body(cell.body),
    )


@contextmanager
def cluster_system(
    *,
    semi_sync: bool = True,
    clusters: int = 1,
    supervised: bool = False,
    with_small_disk: bool = False,
) -> Iterator[ClusterSystem]:
    """Servers, proxies and clusters; all gone at the end. Raises NoSmallDisk where one is asked for
    and there is none."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(SMALL_DISK_BYTES)) if with_small_disk else None
        servers = stack.enter_context(
            bare_servers(
                3 * clusters,
                SMALL_FILES if disk else general_log.OPTIONS,
                {1: disk} if disk else {},
            )
        )
        system = ClusterSystem(
            servers, semi_sync=semi_sync, clusters=clusters, supervised=supervised, disk=disk
        )
        try:
            yield system
        finally:
            system.close()


@dataclass
class Work:
    """The work that continues beside a fault. ``tailers``: a fault may add some, over engines of
    their own. ``indexed``: the datastore whose ``indexes`` a worker keeps; a fault may make more of
    them."""

    writers: DirectWriters
    tailers: list[Tailer]
    state: StateWork
    ledger: Ledger
    indexed: Datastore
    indexes: list[IndexVersion]


class DirectWriters:
    """So many threads for each datastore that put cells, ``cells`` at a time, and write down the
    answers; each put is tried until it is acknowledged or the run ends. ``pause`` ends between two
    puts, when every put is acknowledged. ``more``: the members that every body has beside."""

    def __init__(
        self,
        datastores: Sequence[Datastore],
        ledger: Ledger,
        threads: int = 4,
        cells: int = 1,
        pause_s: float = 0.01,
        more: Mapping[str, int] = {},
    ) -> None:
        self._ledger, self._cells, self._pause_s = ledger, cells, pause_s
        self._more = more
        self._stop, self._may_go = threading.Event(), threading.Event()
        self._may_go.set()
        self._shards: frozenset[int] = frozenset()
        self._at_rest = threading.Semaphore(0)
        self.longest_call_s = 0.0
        self.errors: list[str] = []
        """The answers that no put of theirs may get."""
        each = [datastore for datastore in datastores for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._write, args=(datastore, number), daemon=True)
            for number, datastore in enumerate(each)
        ]
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Waits until every put under way is acknowledged; none is begun until :meth:`resume`.
        Raises RuntimeError after a minute."""
        self._may_go.clear()
        for _ in self._threads:
            if not self._at_rest.acquire(timeout=60):
                raise RuntimeError("not within 60 s: the puts under way are acknowledged")

    def resume(self, shards: Iterable[int] = ()) -> None:
        """``shards``: cells of these alone are put from now on; of all, when none is given."""
        self._shards = frozenset(shards)
        self._may_go.set()

    def stop(self) -> None:
        self._stop.set()
        self._may_go.set()
        for thread in self._threads:
            thread.join(60)

    def _write(self, datastore: Datastore, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            if not self._may_go.is_set():
                self._at_rest.release()
                self._may_go.wait()
            waiting: list[tuple[Put, dict[str, int]]] = []
            for _ in range(self._cells):
                number += 1
                while (
                    self._shards
                    and datastore.shard_of(uuid5(NAMESPACE, f"{writer}-{number}"))
                    not in self._shards
                ):
                    number += 1
                body = {"writer": writer, "n": number, **self._more}
                waiting.append(
                    (
                        self._ledger.begin(
                            uuid5(NAMESPACE, f"{writer}-{number}"),
                            "BASE",
                            1,
                            canonical_json.canonical(body),
                        ),
                        body,
                    )
                )
            while waiting and not self._stop.is_set():
                began_s = time.monotonic()
                try:
                    results = datastore.put_cells(
                        [(put.row_key, "BASE", 1, body) for put, body in waiting]
                    )
                except ALLOWED_ERRORS:
                    results = []
                except Exception as error:
                    results = []
                    self.errors.append(f"a put was answered {error!r}")
                for (put, _), result in zip(waiting, results, strict=bool(results)):
                    if result.acknowledged:
                        self._ledger.answer(
                            put, result.outcome.value, result.shard, result.added_id
                        )
                    elif not isinstance(result.error, ALLOWED_ERRORS):
                        self.errors.append(f"the put of {put.triple} was answered {result}")
                self.longest_call_s = max(self.longest_call_s, time.monotonic() - began_s)
                if waiting := [each for each in waiting if not each[0].acknowledged]:
                    time.sleep(0.05)
            time.sleep(self._pause_s)


class Tailer(threading.Thread):
    """Follows every shard from 0 below its watermark, as a gateway or a trigger does, over an
    engine of its own."""

    def __init__(self, engine: ClusteredEngine) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self._ended = threading.Event()
        self.read: dict[int, list[Seen]] = {shard: [] for shard in range(SHARDS)}
        self.heads: list[dict[int, Head]] = []
        self.errors: list[str] = []
        """The answers that no reader may get."""
        self.start()

    def run(self) -> None:
        next_ids = dict.fromkeys(range(SHARDS), 0)
        while not self._ended.wait(0.01):
            for cluster in self.engine.clusters.values():
                try:
                    self._look(cluster.shards, next_ids)
                except ALLOWED_ERRORS:
                    pass
                except Exception as error:
                    self.errors.append(f"a tailer was answered {error!r}")

    def _look(self, shards: Sequence[int], next_ids: dict[int, int]) -> None:
        heads = self.engine.heads(shards)
        self.heads.append(heads)
        for shard, head in heads.items():
            while next_ids[shard] < head.watermark and (
                cells := self.engine.scan(shard, next_ids[shard], 500)
            ):
                self.read[shard] += map(seen_stored, cells)
                next_ids[shard] = cells[-1].added_id + 1

    def at(self) -> int:
        return sum(len(cells) for cells in self.read.values())

    def stop(self) -> None:
        self._ended.set()
        self.join(30)


def put_again(datastore: Datastore, beyond: NeverReplicated) -> None:
    """As ``cellfeed cluster rejoin --put-again`` does."""
    for row_key in beyond.erased:
        datastore.erase_row(UUID(bytes=row_key))
    results = datastore.put_new_cells([*beyond.cells, *beyond.buffered])
    assert all(result.acknowledged for result in results), results
