"""When a supervisor promotes, and how it treats a node that does not follow: with a clock and nodes
as values."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating import auto_failover, background_copy
from cellfeed.store.clusters.operating.auto_failover import AGAIN_S, DETECT_S, FailoverSupervisor
from cellfeed.store.clusters.operating.never_replicated import NeverReplicated
from cellfeed.store.engines.mysql.replication import Gtid
from cellfeed.store.errors import ProtectData
from tests.support.rides import rides


class Following:
    """The status of a minion."""

    def __init__(self, hears: bool = True, stopped: bool = False) -> None:
        self.io_running = "Yes" if hears else "Connecting"
        self.is_stopped, self.error = stopped, ""
        self.master = "a"

    def follows(self, master: str) -> bool:
        return self.master == master


class Watched:
    """A cluster of four nodes; a is master. ``silent``: the nodes that do not answer;
    ``promotions`` by the epoch that each replaces; ``refuses``: promotions are."""

    name = "c1"

    def __init__(self) -> None:
        self.servers = {name: name for name in "abcd"}
        self.role = Role("c1", "a", 1, ["b", "c", "d"])
        self.silent: dict[str, str] = {}
        self.statuses: dict[str, Following | None] = {name: Following() for name in "bcd"}
        self.read_only = False
        self.refuses = False
        self.promotions: list[int] = []
        self.copied: list[str] = []
        self.extra: NeverReplicated | None = None
        self.now_s = 100.0

    def with_timeout(self, timeout_s: float) -> Watched:
        return self

    def server(self, name: str) -> str:
        return name

    def close(self) -> None: ...

    def promote(self, _: object, *, gone_in: int) -> str:
        self.promotions.append(gone_in)
        if self.refuses:
            raise ProtectData("nobody may be promoted")
        return "promoted"

    def lose(self, *names: str) -> None:
        """They answer no longer, and minions of a lost master do not hear it."""
        self.silent = dict.fromkeys(names, "away")
        if self.role.master in names:
            self.statuses = {name: Following(hears=False) for name in self.statuses}

    def clone(self, _: object, name: str, *args: object, **options: object) -> int:
        self.copied.append(name)
        return 0


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    for name, stand_in in {
        "cluster_role": lambda _: (watched.role, watched.silent),
        "minion_status": lambda server: watched.statuses.get(server),
        "is_read_only": lambda _: watched.read_only,
        "promote": watched.promote,
        "heard_epoch": lambda *_: 1,
        "come_back": lambda *_: watched.extra,
        "clone": watched.clone,
    }.items():
        module = background_copy if name == "clone" else auto_failover
        monkeypatch.setattr(module, name, stand_in)
    return watched


@pytest.fixture
def supervisor(watched: Watched) -> FailoverSupervisor:
    return FailoverSupervisor(
        cast("ClusterServers", cast("Any", watched)), clock_s=lambda: watched.now_s
    )


def looks(supervisor: FailoverSupervisor, watched: Watched, *waits_s: float) -> list[int]:
    """One look, and one after each wait; the epochs that promotions were to replace."""
    supervisor.look()
    for wait_s in waits_s:
        watched.now_s += wait_s
        supervisor.look()
    return watched.promotions


def test_a_master_is_replaced_once_it_was_gone_long_enough(
    supervisor: FailoverSupervisor, watched: Watched
) -> None:
    watched.lose("a")
    assert looks(supervisor, watched, DETECT_S - 0.01) == []
    assert looks(supervisor, watched, 0.02) == [1]


def test_an_absence_with_a_return_in_between_begins_again(
    supervisor: FailoverSupervisor, watched: Watched
) -> None:
    watched.lose("a")
    looks(supervisor, watched, 1.0)
    watched.silent = {}
    looks(supervisor, watched)
    watched.lose("a")
    assert looks(supervisor, watched, DETECT_S - 0.01) == []


def test_half_of_the_nodes_are_no_majority(
    supervisor: FailoverSupervisor, watched: Watched
) -> None:
    watched.lose("a", "b")
    assert looks(supervisor, watched, DETECT_S, AGAIN_S) == []
    watched.lose("a")
    assert looks(supervisor, watched) == [1]


def test_no_minion_is_promoted_while_one_hears_the_master(
    supervisor: FailoverSupervisor, watched: Watched
) -> None:
    watched.lose("a")
    watched.statuses["d"] = Following(hears=True)
    assert looks(supervisor, watched, DETECT_S, AGAIN_S) == []
    watched.statuses["d"] = None
    assert looks(supervisor, watched) == [1], "one that follows nobody hears nobody"


def test_the_next_master_is_given_its_own_time(
    supervisor: FailoverSupervisor, watched: Watched
) -> None:
    watched.lose("a")
    looks(supervisor, watched, DETECT_S - 0.1)
    watched.role = Role("c1", "b", 2, ["a", "c", "d"])  # somebody else has promoted b
    watched.lose("b")
    assert looks(supervisor, watched, DETECT_S - 0.1) == []
    assert looks(supervisor, watched, 0.2) == [2]


def test_a_promotion_that_was_refused_is_tried_again_after_a_while(
    supervisor: FailoverSupervisor, watched: Watched
) -> None:
    watched.refuses = True
    watched.lose("a")
    assert looks(supervisor, watched, DETECT_S, AGAIN_S - 0.1) == [1]
    assert looks(supervisor, watched, 0.2) == [1, 1]


def test_a_promotion_that_was_cut_off_half_way_is_finished(
    supervisor: FailoverSupervisor, watched: Watched
) -> None:
    watched.read_only = True
    assert looks(supervisor, watched, DETECT_S) == [1]
    watched.statuses["a"] = Following()  # it is a minion of another one by now
    assert looks(supervisor, watched, AGAIN_S, DETECT_S) == [1]


@pytest.mark.parametrize("what", ["cells", "buffered", "erased", "nothing"])
def test_a_node_with_cells_or_erasures_of_its_own_is_never_made_a_copy(
    supervisor: FailoverSupervisor, watched: Watched, what: str
) -> None:
    watched.statuses["c"] = None
    cells = rides(0, 1)
    watched.extra = NeverReplicated(
        cells if what == "cells" else [],
        cells if what == "buffered" else [],
        [cells[0].row_key] if what == "erased" else [],
        cast("Gtid", None),
        {},
    )
    looks(supervisor, watched)
    supervisor.close()
    assert watched.copied == (["c"] if what == "nothing" else [])
