"""The conclusions that a process may draw from its nodes' words: heads that never fall, reads that
may continue, trims and erasures that wait for a minion. Nodes are values here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving import cluster as cluster_module
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.engines.contract.values import ErasedStep
from cellfeed.store.errors import DataDamaged, OutcomeUnknown, StorageUnavailable
from cellfeed.store.limits import ADDED_ID_MAX
from tests.support.stand_in_nodes import ROLE, Node, head, named


def raising(error: Exception) -> Any:
    def fail() -> None:
        raise error

    return fail


# --- heads ----------------------------------------------------------------------------------------


def test_known_heads_of_an_arriving_shard_never_go_back(cluster: Cluster) -> None:
    before = cluster.heads()[0]
    cluster.assign([0], {0: head(4, log_start=2)})
    assert cluster.shown(0) == before.watermark == 9
    assert cluster.last_head(0).next_added_id == 10
    cluster.assign([0], {0: head(30, log_start=20, epoch=2)})
    after = cluster.heads()[0]
    assert (after.watermark, after.log_start, after.leader_epoch) == (30, 20, 2)


def test_a_head_of_a_higher_epoch_counts_though_its_log_is_shorter(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["a"].says(8, epoch=2)
    assert cluster.heads()[0].leader_epoch == 2


def test_a_log_starts_at_its_watermark_at_the_latest(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["a"].says(20, log_start=15)
    found = cluster.heads()[0]
    assert (found.log_start, found.watermark) == (9, 9)


def test_the_end_of_a_log_is_unknown_while_its_master_is_away(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["a"].why_not = "it does not answer"
    assert cluster.heads()[0].next_added_id == ADDED_ID_MAX


def test_a_cluster_reports_ends_of_its_own_shards_only(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    def look(node: Node) -> None:
        node.says(10)
        node.view = NodeView(ROLE, {0: head(10), 1: head(5)})

    for node in nodes.values():
        node.on_look = partial(look, node)
    assert cluster.acknowledged_ends() == {0: (1, 10)}


# --- writes ---------------------------------------------------------------------------------------


def test_a_write_that_its_master_refuses_is_not_repeated_while_that_is_master(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["a"].after_call = raising(StorageUnavailable("away"))
    with pytest.raises(StorageUnavailable):
        cluster.write(lambda engine, _: engine)
    assert nodes["a"].calls == 1


# --- reads ----------------------------------------------------------------------------------------


def test_a_master_that_is_silent_itself_does_not_count_among_the_silent(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["a"].heard_at_s -= 60
    nodes["b"].heard_at_s -= 60
    assert cluster.read(named) == ("a", False)


def test_a_poor_answer_is_better_than_damage(cluster: Cluster, nodes: dict[str, Node]) -> None:
    nodes["a"].after_call = raising(StorageUnavailable("away"))
    for good, bad in (("b", "c"), ("c", "b")):
        nodes[good].after_call = lambda: None
        nodes[bad].after_call = raising(DataDamaged("a page"))
        assert cluster.read(named, enough=lambda _: False) == (good, True)
    nodes["c"].after_call = nodes["b"].after_call = raising(DataDamaged("a page"))
    with pytest.raises(DataDamaged, match=r"cluster c1, node [bc]: a page"):
        cluster.read(named)


def test_a_shown_cell_is_looked_for_beyond_a_sure_master(cluster: Cluster) -> None:
    assert cluster.read(named, enough=lambda value: value != "a") == ("a", False)
    value, stale = cluster.read(named, enough=lambda v: v != "a", shown=True)
    assert value in ("b", "c")
    assert stale


@pytest.mark.parametrize("turn", range(3))
def test_a_node_that_takes_no_part_is_not_read(
    cluster: Cluster, nodes: dict[str, Node], turn: int
) -> None:
    nodes["a"].after_call = raising(StorageUnavailable("away"))
    nodes["b"].is_foreign = True
    for _ in range(turn + 1):
        assert cluster.read(named) == ("c", True)


def test_a_master_that_no_minion_confirms_is_not_sure(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    role = Role("c1", "a", 1, ["b", "c"], semi_sync=True)
    made = Cluster("c1", [cast("StorageNode", node) for node in nodes.values()], [0])
    for node in nodes.values():
        node.says(10, role)
    monkeypatch.setattr(nodes["a"], "is_confirmed", lambda: False)
    nodes["a"].engine = SimpleNamespace(
        name="a", settle=lambda _terms: raising(OutcomeUnknown("no minion's word"))()
    )
    assert made.read(named)[1]
    nodes["a"].engine = SimpleNamespace(name="a", settle=lambda _terms: None)
    assert not made.read(named)[1]


# --- trims and erasures ---------------------------------------------------------------------------


def test_cells_that_a_member_lacks_or_does_not_report_are_not_trimmed(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["c"].view = NodeView(ROLE, {})
    assert cluster.trim_limits() == {0: 0}
    nodes["c"].view = NodeView(Role("c1", "a", 0, ["b", "c"]), {0: head(10)})
    with pytest.raises(StorageUnavailable, match="node c has not reported its counters"):
        cluster.trim_limits()


STEPS: dict[str, tuple[Callable[[Cluster], object], dict[str, int]]] = {
    "trim": (lambda cluster: cluster.trim(0, 5, 100), {"log_start": 5}),
    "erasure": (lambda cluster: cluster.erase(b"r" * 16, 100), {"erasures": 1}),
}


@pytest.fixture(params=list(STEPS))
def step(
    request: pytest.FixtureRequest, nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[Cluster], object], dict[str, int]]:
    """A master's acts on a shard, and how a node's counters report them."""
    monkeypatch.setattr(cluster_module, "MINION_WAIT_S", 0.05)
    nodes["a"].engine = SimpleNamespace(
        trim=lambda *_: 5, erase=lambda *_: ErasedStep(0, 10, 1, done=True)
    )
    return STEPS[request.param]


def test_a_step_is_answered_when_a_minion_has_the_masters_position_after_it(
    cluster: Cluster, nodes: dict[str, Node], step: Any
) -> None:
    run, told = step
    looks: list[str] = []
    nodes["a"].heard_at_s -= 60

    def look() -> None:
        looks.append("a")
        if len(looks) == 2:
            nodes["a"].says(10, **told)
        if len(looks) == 4:
            nodes["b"].says(9, **told)

    nodes["a"].after_call = lambda: setattr(nodes["a"], "on_look", look)
    run(cluster)
    assert len(looks) >= 4, "an earlier word of the master says nothing of the step"


def test_a_step_that_no_minion_has_is_of_unknown_outcome(
    cluster: Cluster, nodes: dict[str, Node], step: Any
) -> None:
    run, told = step
    nodes["a"].on_look = lambda: nodes["a"].says(10, **told)
    with pytest.raises(OutcomeUnknown, match="no minion has it"):
        run(cluster)


def test_a_step_of_a_master_that_was_replaced_meanwhile_is_of_unknown_outcome(
    cluster: Cluster, nodes: dict[str, Node], step: Any
) -> None:
    run, told = step
    nodes["a"].says(10, **told)
    nodes["c"].says(7, **told)
    nodes["a"].after_call = lambda: setattr(
        nodes["a"], "on_look", lambda: nodes["b"].says(9, ROLE.promoted("b", ["c"], "", 2))
    )
    with pytest.raises(OutcomeUnknown, match="b has become master meanwhile"):
        run(cluster)
