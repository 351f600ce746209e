"""Two clusters of real MariaDB servers for races: c1 has three nodes, c2 one. They are made once;
after each order :meth:`Place.verify` heals them, puts something and looks at everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from cellfeed.store.cells.body_codec import decode_body, is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.clusters.model.promises import promised_epoch
from cellfeed.store.clusters.model.roles import Role, read_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.moves.underway import underway
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.clusters.operating.rejoin import come_back
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.mysql.connection import TIMEOUT_S
from cellfeed.store.engines.mysql.read_only import is_read_only
from cellfeed.store.engines.mysql.replication import minion_status, position
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import NotFound, OutcomeUnknown, StorageUnavailable, Unavailable
from tests.races.scheduler import Run
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import (
    DATASTORE,
    SHARDS,
    TestCluster,
    cells_of_shard,
    make_cluster,
)
from tests.support.move_steps import open_engine
from tests.support.waiting import wait_until

T = TypeVar("T")

SHARD: Final = 1
"""On c1 when the clusters are made: the one that moves."""

RACED: Final = "c1"
"""The cluster with minions."""


@dataclass
class Place:
    """See the module. ``acknowledged``: by row key the cell and its id, None where the caller heard
    no id; ``erased``: row keys whose erasure was answered; ``masters``: by epoch of c1."""

    clusters: dict[str, TestCluster]
    engine: ClusteredEngine
    acknowledged: dict[bytes, tuple[NewCell, int | None]] = field(default_factory=dict)
    erased: set[bytes] = field(default_factory=set)
    masters: dict[int, str] = field(default_factory=dict)
    revisions: list[int] = field(default_factory=list)
    log_start: int = 0
    _number: int = 0

    @property
    def admin(self) -> ClusterServers:
        return self.clusters[RACED].admin

    def role(self) -> Role:
        return cluster_role(self.admin)[0]

    def operator(self, name: str = RACED) -> ClusterServers:
        """The servers over connections of one process of its own; closed by the caller."""
        return self.clusters[name].admin.with_timeout(TIMEOUT_S)

    def operators(self) -> dict[str, ClusterServers]:
        return {name: self.operator(name) for name in self.clusters}

    def new_cells(self, count: int = 1) -> list[NewCell]:
        self._number += 1
        return cells_of_shard(SHARD, self._number, count)

    def put(self, count: int = 1) -> list[NewCell]:
        """So many new cells, once they are stored."""
        wanted = self.new_cells(count)
        results: list[PutResult] = []

        def stored() -> bool:
            with suppress(Unavailable):
                results[:] = self.engine.put(wanted)
                return all(each.outcome in (Outcome.STORED, Outcome.EXISTS) for each in results)
            return False

        wait_until(stored, "puts are stored")
        self.note(wanted, results)
        return wanted

    def answer(self, ask: Callable[[], T]) -> T:
        """The engine's first answer. The fence of a promotion cuts connections, so the breaker of a
        node may refuse calls for a moment. That refusal is no answer; a false answer is returned,
        and fails the race at once."""
        answers: list[T] = []

        def answered() -> bool:
            with suppress(StorageUnavailable, OutcomeUnknown):
                answers.append(ask())
            return bool(answers)

        wait_until(answered, "the engine answers")
        return answers[0]

    def note(self, cells: list[NewCell], results: list[PutResult]) -> None:
        """The acknowledged cells, to be looked for ever after."""
        for cell, result in zip(cells, results, strict=True):
            if result.acknowledged:
                self.acknowledged[cell.row_key] = (cell, result.added_id)

    # --- after a race -----------------------------------------------------------------------------

    def verify(self, done: Run) -> None:
        """I1-I5, I10 and the promises of a promotion, a move and an erasure, for all that was ever
        acknowledged here."""
        for ended in done.ended:
            if isinstance(ended.result, Promotion) and ended.result.old_master:
                told = self.masters.setdefault(ended.result.epoch, ended.result.master)
                assert told == ended.result.master, f"epoch {ended.result.epoch} was given twice"
        self._one_master_each_epoch()
        self.heal()
        self._end_moves()
        self._one_master_each_epoch()
        self.put()
        self._commit_entry()
        self._look_for_cells()
        self._look_for_bodies()

    def _told(self) -> dict[str, Role]:
        return {
            name: told
            for name, server in self.admin.servers.items()
            if (told := read_role(MySqlState(server, self.admin.meta))) is not None
        }

    def _one_master_each_epoch(self) -> None:
        told = self._told()
        for name, each in told.items():
            master = self.masters.setdefault(each.epoch, each.master)
            assert master == each.master, (
                f"{name} tells {each.master} as master of epoch {each.epoch}, which was {master}'s"
            )
        newest = max(told.values(), key=lambda each: each.epoch)
        assert newest.epoch == max(self.masters), "the epoch has gone back"
        opened = [name for name, server in self.admin.servers.items() if not is_read_only(server)]
        assert opened in ([], [newest.master]), f"{opened} take writes, {newest.master} is master"

    def heal(self) -> None:
        """As an operator or a supervisor does: moves and erasures under way are ended, every node
        follows."""
        role = self.role()
        if (
            is_read_only(self.admin.server(role.master))
            or promised_epoch(self.admin, role.history_id) > role.epoch
        ):
            promote(self.admin)
        role = self.role()
        master = self.admin.server(role.master)
        for name, server in self.admin.servers.items():
            status = minion_status(server)
            follows = status is not None and status.follows(master) and not status.is_stopped
            if name == role.master or (follows and name in role.minions):
                continue
            if (extra := come_back(self.admin, name)) is not None:
                self._put_again(extra.cells)
                clone(self.admin, name, listed=extra)
        wait_until(self._all_follow, "all nodes have what the master has")

    def _put_again(self, cells: list[NewCell]) -> None:
        for cell in cells:
            assert cell.row_key not in self.acknowledged, "an acknowledged cell was on no minion"
        if cells:
            self.engine.put(cells)

    def _all_follow(self) -> bool:
        role = self.role()
        wanted = position(self.admin.server(role.master)).sequence
        told = self._told()
        return len(told) == len(self.admin.servers) and all(
            each.epoch == role.epoch and position(self.admin.server(name)).sequence >= wanted
            for name, each in told.items()
        )

    def _end_moves(self) -> None:
        admins = {name: each.admin for name, each in self.clusters.items()}
        for each in underway(admins):
            if each.stage in ("fenced", "switched"):
                mover.resume(admins, each, self.engine.dictionaries.complete)
            elif each.stage == "copying":
                mover.roll_back(admins, each.shard)
        with suppress(NotFound):
            mover.clean(admins, SHARD, self.engine.dictionaries.complete)

    def owners(self) -> list[str]:
        """The clusters whose master has the shard's counter."""
        found = []
        for name, cluster in self.clusters.items():
            master = cluster_role(cluster.admin)[0].master
            if cluster.servers[master].sql(
                f"SELECT shard FROM trips_meta.shard_counter WHERE shard = {SHARD}"
            ):
                found.append(name)
        return found

    def _commit_entry(self) -> None:
        revision = self.answer(lambda: self.engine.state.commit({"race": b"%d" % self._number}))
        assert revision is not None
        assert revision > max(self.revisions, default=0), f"revision {revision} was given before"
        self.revisions.append(revision)

    def _look_for_cells(self) -> None:
        assert len(self.owners()) == 1, f"{self.owners()} serve the shard"
        head = self.answer(lambda: self.engine.heads([SHARD])[SHARD])
        assert head.log_start == self.log_start, (
            f"the log starts at {head.log_start}, it was trimmed to {self.log_start}"
        )
        end = head.next_added_id
        wait_until(
            lambda: self.answer(lambda: self.engine.heads([SHARD]))[SHARD].watermark >= end,
            "the last cell is shown",
        )
        log = self.answer(lambda: self.engine.scan(SHARD, self.log_start, 100_000))
        assert [each.added_id for each in log] == list(range(self.log_start, end)), "a hole"
        in_log = {each.row_key: each for each in log if each.column_name != ERASED_COLUMN}
        paged = [
            each
            for start in range(self.log_start, end, 7)
            for each in self.answer(partial(self.engine.scan, SHARD, start, min(7, end - start)))
        ]
        assert paged == log, "the log read in small pieces is another one"
        triples = [cell.triple for cell, _ in self.acknowledged.values()]
        by_key = self.answer(lambda: self.engine.get(triples))
        for (cell, added_id), found in zip(self.acknowledged.values(), by_key, strict=True):
            if added_id is not None and added_id < self.log_start:
                continue
            there = in_log.get(cell.row_key)
            assert there is not None, f"acknowledged cell {cell.row_key.hex()} is not in the log"
            assert found is not None, f"acknowledged cell {cell.row_key.hex()} is not there by key"
            assert found.cell == there, f"by key {found}, in the log {there}"
            assert added_id in (None, there.added_id), f"it was acknowledged as {added_id}"
            if cell.row_key in self.erased:
                assert is_erased(there.body), "an erased body is back"
            elif not is_erased(there.body):
                assert decode_body(there.body) == cell.body_json, "another body"

    def _look_for_bodies(self) -> None:
        """No node of a cluster has a body of an erased row, under any name of the table."""
        for cluster in self.clusters.values():
            for server in cluster.servers.values():
                for (table,) in server.sql(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema ="
                    f" '{DATASTORE}_{SHARD:04d}' AND table_name LIKE '%cell'"
                ):
                    rows: Any = server.sql(
                        f"SELECT row_key, body FROM {DATASTORE}_{SHARD:04d}.{table} WHERE"
                        " column_name <> '$erased'"
                    )
                    for row_key, body in rows:
                        assert not (row_key in self.erased and not is_erased(body)), (
                            f"a body of an erased row is left in {table}"
                        )


@contextmanager
def made_place(servers: list[MariaDB]) -> Iterator[Place]:
    """Over four bare servers."""
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    clusters = {
        "c1": make_cluster("c1", servers[:3], divided),
        "c2": make_cluster("c2", servers[3:], divided),
    }
    engine = open_engine(clusters)
    place = Place(clusters, engine)
    try:
        place.put(5)
        yield place
    finally:
        engine.close()
        for each in clusters.values():
            each.admin.close()
