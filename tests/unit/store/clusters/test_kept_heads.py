"""A cluster that keeps its shards' heads gives those of one that works all of them out each time.
Nodes are values here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.kept_heads import Reports
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.limits import ADDED_ID_MAX
from tests.support.stand_in_nodes import Node, head

SHARDS = range(4)
ROLES = (
    Role("c1", "a", 1, ["b"]),
    Role("c1", "a", 1, ["b", "c"]),
    Role("c1", "b", 2, ["c"]),
)
NODES = ("a", "b", "c")

on_a_shard = st.tuples(st.sampled_from(NODES), st.sampled_from(SHARDS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "trim", "erase", "leave"]), on_a_shard),
        st.tuples(st.just("role"), st.tuples(st.sampled_from(NODES), st.sampled_from(ROLES))),
        st.tuples(
            st.sampled_from(["away", "back", "unsure", "nothing"]),
            st.tuples(st.sampled_from(NODES), st.just(0)),
        ),
        st.tuples(
            st.just("assign"), st.tuples(st.just("a"), st.sampled_from([(0, 1), (0, 1, 2, 3)]))
        ),
        st.tuples(st.just("read"), st.tuples(st.just("a"), st.integers(0, 2))),
    ),
    max_size=30,
)


def made() -> tuple[Cluster, dict[str, Node]]:
    nodes = {name: Node(name) for name in NODES}
    cluster = Cluster("c1", [cast("StorageNode", node) for node in nodes.values()], SHARDS)
    for node in nodes.values():
        node.view = NodeView(ROLES[0], {shard: head(3) for shard in SHARDS})
        node.on_role(ROLES[0])
    return cluster, nodes


def step_on(cluster: Cluster, nodes: dict[str, Node], what: str, name: str, given_to: Any) -> None:
    node = nodes[name]
    view = node.view or NodeView(ROLES[0], {})
    there = view.heads.get(given_to) if isinstance(given_to, int) else None
    if what == "assign":
        cluster.assign(given_to)
    elif what == "role":
        node.view = replace(view, role=given_to)
        node.on_role(given_to)
    elif what == "away":
        node.view = None
    elif what == "back":
        node.view = view
    elif what == "unsure":
        node.why_not = None if node.why_not else "it does not answer"
    elif what == "leave":
        node.view = replace(view, heads={s: h for s, h in view.heads.items() if s != given_to})
    elif what in ("put", "trim", "erase"):
        now = there or head(0)
        changed = {
            "put": now._replace(watermark=now.watermark + 1, next_added_id=now.next_added_id + 1),
            "trim": now._replace(log_start=now.log_start + 1),
            "erase": now._replace(erasures=now.erasures + 1),
        }[what]
        node.view = replace(view, heads={**view.heads, given_to: changed})


def without_numbers(heads: dict[int, Head]) -> dict[int, Head]:
    """Numbers of erasures are drawn in the process: they differ between two clusters."""
    return {shard: each._replace(erasures=each.erasures > 0) for shard, each in heads.items()}


@given(STEPS)
def test_kept_heads_equal_those_of_a_cluster_that_keeps_none(
    steps: list[tuple[str, tuple[str, Any]]],
) -> None:
    (keeping, its_nodes), (forgetting, others) = made(), made()
    readers: list[tuple[dict[int, Head], int]] = [({}, 0)] * 3
    for what, (name, given_to) in steps:
        if what == "read":
            heads, change = readers[given_to]
            with suppress(StorageUnavailable):
                forgetting.update(fresh=False)
                found, now = keeping.heads_since(change, fresh=False)
                readers[given_to] = {**heads, **found}, now
            continue
        for cluster, nodes in ((keeping, its_nodes), (forgetting, others)):
            step_on(cluster, nodes, what, name, given_to)
        forgetting._used = None
        try:
            expected = forgetting.heads(fresh=False)
        except StorageUnavailable:
            with pytest.raises(StorageUnavailable):
                keeping.update(fresh=False)
            continue
        erased = {s: h.erasures for s, h in keeping.heads(fresh=False).items()}
        assert without_numbers(keeping.heads(fresh=False)) == without_numbers(expected)
        assert keeping.lacks() == forgetting.lacks()
        assert {s: h.erasures for s, h in keeping.heads(fresh=False).items()} == erased
    try:
        last = keeping.heads(fresh=False)
    except StorageUnavailable:
        return
    for heads, change in readers:
        assert {
            shard: each
            for shard, each in {**heads, **keeping.heads_since(change)[0]}.items()
            if shard in keeping.shards
        } == last


def test_only_shards_whose_report_changed_are_worked_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, nodes = made()
    _, change = cluster.heads_since(0)
    worked_out: list[int] = []
    work_out: Callable[..., None] = Cluster._work_out

    def count(self: Cluster, shard: int, reports: Reports) -> None:
        worked_out.append(shard)
        work_out(self, shard, reports)

    monkeypatch.setattr(Cluster, "_work_out", count)
    assert cluster.heads_since(change)[0] == {}
    step_on(cluster, nodes, "put", "b", 2)
    found, change = cluster.heads_since(change)
    assert found.keys() == {2}
    assert found[2].watermark == 4
    assert worked_out == [2]
    step_on(cluster, nodes, "role", "a", ROLES[1])
    cluster.update()
    assert sorted(worked_out) == [0, 1, 2, 2, 3]


def test_a_node_that_becomes_a_minion_raises_the_watermark_without_a_new_counter() -> None:
    cluster, nodes = made()
    step_on(cluster, nodes, "put", "c", 2)
    step_on(cluster, nodes, "role", "a", ROLES[1])
    found, change = cluster.heads_since(0)
    assert found[2].watermark == 3, "c has not heard yet that it is a minion"
    step_on(cluster, nodes, "role", "c", ROLES[1])
    found, _ = cluster.heads_since(change)
    assert {shard: each.watermark for shard, each in found.items()} == {2: 4}


def test_a_shard_that_has_left_its_master_is_lacked_until_it_returns() -> None:
    cluster, nodes = made()
    cluster.update()
    view = nodes["a"].view
    step_on(cluster, nodes, "leave", "a", 2)
    found, change = cluster.heads_since(0)
    assert cluster.lacks()
    assert found[2].next_added_id == ADDED_ID_MAX
    nodes["a"].view = view
    assert cluster.heads_since(change)[0].keys() == {2}
    assert not cluster.lacks()


def test_heads_are_worked_out_again_after_an_error_half_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, nodes = made()
    _, change = cluster.heads_since(0)
    for shard in (1, 2):
        step_on(cluster, nodes, "put", "b", shard)
    work_out: Callable[..., None] = Cluster._work_out

    def fail(self: Cluster, shard: int, reports: Reports) -> None:
        if shard == 2:
            raise MemoryError
        work_out(self, shard, reports)

    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "_work_out", fail)
        with pytest.raises(MemoryError):
            cluster.update()
    assert cluster.heads_since(change)[0].keys() == {1, 2}
