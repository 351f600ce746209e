"""``bit-flips`` on clusters: bits of one node's files change while it is stopped, in pages whose
own checksum fits again; as where a page was damaged in memory before it was written. So only a
cell's own checksum tells.

The other nodes have good copies: every read of every path is right, whichever node is asked first.
A check names the damage, with the node. ``cellfeed check --repair`` takes the bodies from another
node. Where keys have changed, in the cells or in the index of keys, it changes nothing and says so:
such a node is made a copy of the master. In the end all nodes have the same rows again.

MariaDB finds a cell by its key in an index of its own. Where a bit of that index has changed on the
master, the cell is not found by its key. Nor may its neighbours be: a search steps from entry to
entry, and an entry in the wrong order leads it astray. As in an embedded store, such an answer is
reported as ``hidden`` beside the evidence of the fault, and a check must name the damage.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from crc32c import crc32c

from cellfeed.cli.checking import check_storage, repair_storage
from cellfeed.config.model import ClusterConfig, Config, DatastoreConfig, NodeConfig
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.contract.values import LocatedCell, LogRange, Replica
from cellfeed.store.engines.mysql.connections import MySqlServer
from tests.faults.invariants import Violations
from tests.faults.run import FaultRun
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import (
    DATASTORE,
    SHARDS,
    bare_servers,
    cells_of_shard,
    node_opener,
)
from tests.support.waiting import wait_until

SHARD: Final = 1
CELLS: Final = 120
NODES: Final = "abc"
ROUNDS: Final = 3
ROUNDS_BRIEF: Final = 1
FLIPS: Final = 4
"""Cells of one node that change in a round."""

BODY, KEY, KEYS = PARTS = "a body", "the key of a cell", "the index of keys"
"""Where the bits of a round are."""

_BODY_BYTES: Final = 12
"""Of a stored body; those of these cells are longer."""

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
"""The bytes at the begin of a stored body, behind its codec."""

_PAGE_BYTES: Final = 16_384
_KEY_BYTES: Final = 16 + len("BASE") + 8
"""Of a row key, a column name and a ref key, as they lie in both indexes."""


class Nodes:
    """A cluster of three nodes with cells in one shard, and the cells that every node should
    have."""

    def __init__(self, servers: Sequence[MariaDB]) -> None:
        self.servers = dict(zip(NODES, servers, strict=True))
        urls = {name: server.url for name, server in self.servers.items()}
        nodes = {name: MySqlServer(url) for name, url in urls.items()}
        self.admin = ClusterServers("c1", DATASTORE, SHARDS, nodes, semi_sync=True)
        init_cluster(self.admin, even_map(DATASTORE, SHARDS, ["c1"]))
        self.cells = cells_of_shard(SHARD, 0, CELLS)
        with closing(self.engine(Replica.MASTER)) as engine:
            engine.put(self.cells)
            wait_until(lambda: self.differing() == [], "all nodes have all cells")
            self.log = [(*cell[:5], decode_body(cell.body)) for cell in engine.scan(SHARD, 0, 999)]
        configured = [NodeConfig(name, url) for name, url in urls.items()]
        self.config = Config(
            datastore=DatastoreConfig(
                name=DATASTORE, shards=SHARDS, clusters=[ClusterConfig("c1", configured)]
            )
        )

    def engine(self, first: Replica) -> ClusteredEngine:
        """The connections of one process."""
        nodes = {name: node_opener(server.url) for name, server in self.servers.items()}
        return ClusteredEngine(DATASTORE, SHARDS, {"c1": nodes}, read_first=first)

    def rows(self, node: str) -> list[tuple[object, ...]]:
        """A node's own cells, by place and by key, as they are stored."""
        table = f"{DATASTORE}_{SHARD:04d}.cell"
        return [
            each
            for index in ("PRIMARY", "triple")
            for each in self.servers[node].sql(
                f"SELECT * FROM {table} FORCE INDEX ({index}) WHERE row_key >= '' ORDER BY added_id"
            )
        ]

    def differing(self) -> list[str]:
        """Nodes whose rows are not the master's."""
        master = cluster_role(self.admin)[0].master
        wanted = self.rows(master)
        return [node for node in NODES if len(wanted) < 2 * CELLS or self.rows(node) != wanted]


def run_node_flips(kind: str, seed: int, rounds: int = ROUNDS) -> FaultRun:
    """Runs and checks. The seed chooses the node and its bits."""
    chance, result = random.Random(f"{kind}-nodes-{seed}"), FaultRun(kind, seed)
    result.violations = {name: [] for name in ("I1", "I3", "I7", "errors", "check", "repair")}
    with ExitStack() as stack:
        nodes = Nodes(stack.enter_context(bare_servers(len(NODES))))
        stack.callback(nodes.admin.close)
        for where in (BODY, *chance.choices(PARTS, k=rounds - 1)):
            node = chance.choice(NODES)
            bits = _flipped(nodes, node, where, chance)
            told = f"{node}: {where}: bits {', '.join(str(bit) for bit in bits)}"
            _round(nodes, node, told, result)
    return result


def _round(nodes: Nodes, node: str, told: str, result: FaultRun) -> None:
    master = cluster_role(nodes.admin)[0].master
    in_keys = f": {KEYS}: " in told
    may_hide = {cell.row_key for cell in nodes.cells if in_keys and node == master}
    hidden = list[str]()
    for first in Replica:
        with closing(nodes.engine(first)) as engine:
            wait_until(lambda: engine.heads()[SHARD].watermark == CELLS, "all cells are shown")
            for _ in range(2):
                result.operations_inside += _read_all(
                    nodes, engine, told, may_hide, hidden, result.violations
                )
    found = _checked(nodes)
    wrong = [each for each in found.found if each.place == f"c1/{node}"]
    if not wrong or len(wrong) < len(found.found):
        result.violations["check"].append(f"{told}: a check found {found.found}")
    result.witnessed.append(told)
    if hidden:
        result.witnessed.append(f"{len(hidden)} answers were hidden, and a check named it")
    repair_storage(nodes.config, Path(), None, found)
    if found.well:
        again = _checked(nodes)
        if again.found or nodes.differing():
            result.violations["repair"].append(f"{told}: mended, and found: {again.found}")
        result.witnessed.append("mended from another node")
        return
    if f": {BODY}: " in told:
        result.violations["repair"].append(f"{told}: not mended: {found.found}")
    if node == master:
        promote(nodes.admin)
    clone(nodes.admin, node)
    result.witnessed.append(f"{node} was made a copy")
    wait_until(lambda: nodes.differing() == [], "the copy is one")
    if (left := _checked(nodes)).found:
        result.violations["repair"].append(f"{told}: a copy, and found: {left.found}")


def _flipped(nodes: Nodes, node: str, where: str, chance: random.Random) -> list[int]:
    """Stops the server, flips a bit in each of some cells, and starts it again; the bits."""
    server = nodes.servers[node]
    server.sql("SET GLOBAL innodb_fast_shutdown = 0")
    server.stop()
    path = server.directory / "data" / f"{DATASTORE}_{SHARD:04d}" / "cell.ibd"
    data = bytearray(path.read_bytes())
    bits = [_flip(data, cell, where, chance) for cell in chance.sample(nodes.cells, FLIPS)]
    path.write_bytes(data)
    server.start()
    master = cluster_role(nodes.admin)[0].master
    wait_until(
        lambda: all(
            row[10:12] == ("Yes", "Yes")
            for name in NODES
            if name != master
            for row in nodes.servers[name].sql("SHOW SLAVE STATUS")
        ),
        "the minions follow",
    )
    return bits


def _flip(data: bytearray, cell: NewCell, where: str, chance: random.Random) -> int:
    """In one of the places where the file has the cell's row key. The page's checksum fits again:
    the CRC32C of all but its last four bytes (``full_crc32``)."""
    places = {
        at: ZSTD_MAGIC not in data[at + _KEY_BYTES : at + _KEY_BYTES + 8]
        for at in _found(data, cell.row_key)
        if data[at + 16 :].startswith(b"BASE")
    }
    at = chance.choice([at for at, in_keys in places.items() if in_keys == (where == KEYS)])
    if where == BODY:
        byte = at + _KEY_BYTES + chance.randrange(_BODY_BYTES)
    else:
        byte = at + chance.randrange(_KEY_BYTES)
    bit = byte * 8 + chance.randrange(8)
    page = bit // 8 // _PAGE_BYTES * _PAGE_BYTES
    end = page + _PAGE_BYTES
    if int.from_bytes(data[end - 4 : end]) != crc32c(bytes(data[page : end - 4])):
        raise RuntimeError("the file's pages have another checksum than full_crc32")
    data[bit // 8] ^= 1 << bit % 8
    data[end - 4 : end] = crc32c(bytes(data[page : end - 4])).to_bytes(4)
    return bit


def _found(data: bytes | bytearray, wanted: bytes) -> list[int]:
    places, at = list[int](), data.find(wanted)
    while at >= 0:
        places.append(at)
        at = data.find(wanted, at + 1)
    return places


def _read_all(
    nodes: Nodes,
    engine: ClusteredEngine,
    told: str,
    may_hide: set[bytes],
    hidden: list[str],
    violations: Violations,
) -> int:
    """Every path; how many calls were made."""
    calls = 0

    def ask(invariant: str, what: str, answer: Sequence[object], right: Sequence[object]) -> None:
        if list(answer) != list(right):
            violations[invariant].append(f"{told}: {what} is another answer")

    def ask_key(what: str, cell: NewCell, found: LocatedCell | None) -> None:
        body = found and decode_body(found.cell.body)
        if found is None and cell.row_key in may_hide:
            hidden.append(f"{told}: {what} of {cell.row_key.hex()}")
        elif body != cell.body_json:
            violations["I1" if found is None else "I3"].append(
                f"{told}: {what} of {cell.row_key.hex()} is {body!r}"
            )

    try:
        logs = [
            engine.scan(SHARD, 0, 999),
            engine.scan_many([LogRange(SHARD, 0, 999)])[0],
        ]
        for cells in logs:
            ask("I7", "the log", [(*cell[:5], decode_body(cell.body)) for cell in cells], nodes.log)
        calls += len(logs)
        for replica in Replica:
            for cell in nodes.cells:
                by_key = {
                    "get": engine.get([cell.triple], replica)[0],
                    "latest": engine.latest([(cell.row_key, cell.column_name)], replica)[0],
                    "row": next(iter(engine.row([cell.row_key], replica)[0]), None),
                }
                for what, found in by_key.items():
                    ask_key(f"{what} from a {replica.value}", cell, found)
                calls += len(by_key)
    except Exception as error:
        violations["errors"].append(f"{told}: {error!r}")
    return calls


def _checked(nodes: Nodes) -> Findings:
    found = Findings()
    check_storage(nodes.config, Path(), found)
    return found
