"""A process's view by its nodes' words: the watermark, the master, which commits and absences may
be reported. Nodes are values here."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import msgspec
import pytest

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving import known_role, master_calls
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.errors import OutcomeUnknown, ProtectData, StorageUnavailable
from tests.support.stand_in_nodes import ROLE, Node, head, named


def test_the_watermark_is_the_position_of_the_most_advanced_minion(cluster: Cluster) -> None:
    assert cluster.heads()[0].watermark == 9
    assert cluster.replicated() == {0: 9}


def test_a_cluster_without_minions_shows_its_masters_commits(nodes: dict[str, Node]) -> None:
    alone = Cluster("c1", [cast("StorageNode", nodes["a"])], [0], Watermark.REPLICATED)
    nodes["a"].says(10, Role("c1", "a", 1))
    assert alone.heads()[0].watermark == 10
    assert alone.replicated() == {0: 10}


def test_the_watermark_never_falls_when_the_most_advanced_minion_is_gone(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    assert cluster.heads()[0].watermark == 9
    nodes["b"].view = None
    assert cluster.heads()[0].watermark == 9
    nodes["c"].says(8)
    assert cluster.heads()[0].watermark == 9


def test_a_minion_of_another_epoch_raises_no_watermark(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["b"].view = NodeView(Role("c1", "b", 0), {0: head(50)})
    assert cluster.heads()[0].watermark == 7


def test_a_node_that_follows_and_is_no_minion_raises_no_watermark(nodes: dict[str, Node]) -> None:
    role = Role("c1", "a", 1, ["b"])
    made = Cluster("c1", [cast("StorageNode", node) for node in nodes.values()], [0])
    for name, held in (("a", 10), ("b", 7), ("c", 9)):
        nodes[name].says(held, role)
    assert made.heads()[0].watermark == 7, "a promotion may choose b, and leave c out"
    assert made.replicated() == {0: 7}


def test_the_first_look_waits_for_watchers_that_a_busy_machine_delays(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait(_ticket: int, slow_s: float = 0.1) -> None:
        waited.append(slow_s)
        if slow_s > 5:  # how long the look takes
            nodes["a"].says(10, ROLE)

    monkeypatch.setattr(nodes["a"], "wait", wait)
    made = Cluster("c1", [cast("StorageNode", nodes["a"])], [0])
    assert made.role() == ROLE
    made.look()
    assert waited[-1] < 1, "later looks go by what the node said before"


def test_a_slow_commit_is_unknown_when_another_master_was_promoted_meanwhile(
    cluster: Cluster, nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_calls, "ROLE_FRESH_S", 0.0)
    nodes["a"].after_call = lambda: nodes["b"].says(11, ROLE.promoted("b", ["c"], "", 2))
    with pytest.raises(OutcomeUnknown, match="b has become master meanwhile"):
        cluster.write(lambda engine, _: engine)
    nodes["a"].after_call = lambda: None
    assert cluster.write(lambda engine, _: named(engine)) == "b"


def test_a_role_of_a_lower_epoch_is_not_believed_and_a_higher_one_cuts_the_old_master_off(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    promoted = ROLE.promoted("b", ["c"], "", 2)
    nodes["c"].says(9, promoted)
    assert cluster.role() == promoted
    assert nodes["a"].aborted == 1
    nodes["a"].says(12, ROLE)
    assert cluster.role() == promoted


def test_a_master_is_sure_only_while_too_few_nodes_are_silent_to_have_promoted_another(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    assert cluster.read(named) == ("a", False)
    nodes["b"].heard_at_s -= 60
    assert cluster.read(named) == ("a", False)
    nodes["c"].heard_at_s -= 60
    assert cluster.read(named) == ("a", True)


def absent(engine: Any) -> list[Any]:
    """The answer of a node that lacks a cell; the new master b has it."""
    return ["there"] if engine == "b" else [None]


def in_the_past(nodes: dict[str, Node], seconds: float = 1.0) -> None:
    for node in nodes.values():
        node.heard_at_s -= seconds


def test_a_master_reports_absence_only_when_no_node_knows_of_another_master(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    in_the_past(nodes)
    nodes["b"].on_look = lambda: nodes["b"].says(11, ROLE.promoted("b", ["c"], "", 2))
    assert cluster.read(absent, enough=all, lasting=all) == (["there"], False)


def test_a_cell_that_is_found_needs_no_other_nodes_word(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    in_the_past(nodes)
    assert cluster.read(lambda _: [1], enough=all, lasting=all) == ([1], False)
    assert [node.asked for node in nodes.values()] == [0, 0, 0]
    nodes["b"].on_look = partial(nodes["b"].says, 9)
    nodes["c"].on_look = partial(nodes["c"].says, 7)
    assert cluster.read(lambda _: [None], enough=all, lasting=all) == ([None], False)
    assert cluster.read(lambda _: ["the newest"]) == (["the newest"], False)
    assert [node.asked for node in nodes.values()] == [0, 1, 1], "one look serves both"


def test_a_silent_node_that_a_majority_promised_an_epoch_to_may_be_master(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    in_the_past(nodes)
    nodes["c"].on_look = partial(nodes["c"].says, 7)
    assert cluster.read(lambda _: [None], enough=all, lasting=all) == ([None], False)
    nodes["c"].promised = 2
    assert cluster.read(lambda _: [None], enough=all, lasting=all) == ([None], True)
    nodes["c"].promised, nodes["a"].promised = 1, 2
    assert cluster.read(lambda _: [None], enough=all, lasting=all) == ([None], True)
    nodes["a"].promised = 1
    assert cluster.read(lambda _: [None], enough=all, lasting=all) == ([None], False)
    in_the_past(nodes, known_role.CONFIRM_S - 0.3)
    nodes["c"].on_look = lambda: None
    assert cluster.read(lambda _: [None], enough=all, lasting=all) == ([None], True), (
        "a majority is silent"
    )


def test_a_node_that_does_not_follow_the_master_is_not_read(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["a"].view = None

    def only_minions(engine: Any) -> Any:
        if engine == "a":
            raise StorageUnavailable("away")
        return engine

    nodes["b"].view = NodeView(Role("c1", "b", 0), {0: head(50)})
    assert cluster.read(only_minions) == ("c", True)


def test_the_count_of_erasures_changes_for_each_node_that_reaches_one(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    seen = [cluster.heads()[0].erasures]
    for name in ("a", "b", "c"):
        nodes[name].says(11, erasures=1)  # an erasure adds a cell that reports it
        seen.append(cluster.heads()[0].erasures)
    assert len(set(seen)) == 4
    assert cluster.heads()[0].erasures == seen[-1]


def test_a_trim_stops_at_the_slowest_member_and_waits_for_a_silent_one(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    assert cluster.trim_limits() == {0: 7}
    nodes["c"].view = None
    with pytest.raises(StorageUnavailable, match="node c has not reported its counters"):
        cluster.trim_limits()


def test_no_read_starts_below_the_highest_log_start_of_a_node(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["a"].says(10, log_start=4)
    assert cluster.heads()[0].log_start == 4
    nodes["a"].view = None
    assert cluster.heads()[0].log_start == 4


def test_a_node_of_another_history_takes_no_part_in_any_epoch(
    nodes: dict[str, Node],
) -> None:
    ours, theirs = (
        msgspec.structs.replace(ROLE, history_id="1" * 32),
        Role("c1", "c", 900, ["a", "b"], history_id="2" * 32),
    )
    cluster = Cluster("c1", [cast("StorageNode", node) for node in nodes.values()], [0])
    nodes["c"].says(50, theirs)
    nodes["a"].says(7, ours)
    nodes["b"].says(7, ours)
    assert cluster.role() == ours
    assert nodes["c"].is_foreign
    assert "2" * 32 in (nodes["c"].why_not or "")
    # And one that is replaced later, under a running process.
    assert nodes["b"].on_role(theirs) is not None
    assert cluster.role() == ours
    assert cluster.heads()[0].watermark == 7


def test_a_process_that_meets_equally_many_nodes_of_two_histories_serves_neither(
    nodes: dict[str, Node],
) -> None:
    del nodes["c"]
    cluster = Cluster("c1", [cast("StorageNode", node) for node in nodes.values()], [0])
    nodes["a"].says(7, msgspec.structs.replace(ROLE, history_id="1" * 32))
    nodes["b"].says(7, msgspec.structs.replace(ROLE, history_id="2" * 32))
    with pytest.raises(ProtectData, match="two histories"):
        cluster.role()


def test_a_history_that_gets_its_identity_meanwhile_stays_the_clusters(
    nodes: dict[str, Node],
) -> None:
    cluster = Cluster("c1", [cast("StorageNode", node) for node in nodes.values()], [0])
    for node in nodes.values():
        node.says(7)
    assert cluster.role() == ROLE
    assert nodes["a"].on_role(msgspec.structs.replace(ROLE, history_id="1" * 32)) is None
    assert nodes["b"].on_role(msgspec.structs.replace(ROLE, history_id="2" * 32)) is not None


def test_acknowledged_ends_are_read_after_the_call_from_the_master_and_a_majority(
    nodes: dict[str, Node], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_while_answer(*names: str) -> dict[int, tuple[int, int]]:
        for name, node in nodes.items():
            told = partial(node.says, 12) if name in names else lambda: None
            monkeypatch.setattr(node, "wait", lambda *_, told=told: told())
        return cluster.acknowledged_ends()

    assert cluster.heads()[0].next_added_id == 10
    assert ends_while_answer() == {}, "others may have put cells since the nodes said so"
    assert ends_while_answer("b", "c") == {}
    assert ends_while_answer("a") == {}, "the others may have promoted one of them"
    assert ends_while_answer("a", "c") == {0: (1, 12)}
