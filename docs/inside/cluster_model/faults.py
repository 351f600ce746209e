"""Crashes, restarts, cut links and replication: the faults of nodes by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from docs.inside.cluster_model.state import (
    NOBODY,
    NODES,
    Model,
    State,
    Step,
    cut_off_clients,
    spend,
    with_node,
)


def faults(model: Model, state: State) -> Iterator[Step]:
    for number in NODES:
        node = state.nodes[number]
        if not node.up:
            # The log of a server is there again, answered or not. Its configuration says
            # nothing of ``read_only``, and decides about semi-synchronous replication.
            again = node._replace(
                up=True, open=True, semi_sync=model.scenario.restarts_with, stopped=False
            )
            yield f"node {number} restarts", with_node(state, number, again)
        elif (crashed := spend(state, "crashes")) is not None:
            crashed = with_node(cut_off_clients(crashed, number), number, node._replace(up=False))
            yield f"node {number} dies", crashed
        if node.cut:
            yield (
                f"node {number} is connected again",
                with_node(state, number, node._replace(cut=False)),
            )
        elif node.up and (cut := spend(state, "cuts")) is not None:
            yield (
                f"node {number} is cut off from the other nodes",
                with_node(cut, number, node._replace(cut=True)),
            )


def replication(model: Model, state: State) -> Iterator[Step]:
    """A minion receives and applies the next transaction. It goes by its position alone: the model
    has servers that do not compare histories themselves."""
    for number in NODES:
        node = state.nodes[number]
        if node.follows == NOBODY or node.stopped or not node.up or node.cut:
            continue
        master = state.nodes[node.follows]
        path, length = model.view(master).path, model.view(node).length
        if master.up and not master.cut and length < len(path):
            transaction = model.logs.views[path[length]].last
            received = node._replace(log=model.logs.append(node.log, transaction))
            yield (
                f"node {number} receives {describe(transaction)} from node {node.follows}",
                with_node(state, number, received),
            )


def describe(transaction: tuple[object, ...]) -> str:
    """A transaction in few words."""
    kind = transaction[0]
    if kind == "raise":
        return f"the role of epoch {transaction[1]}"
    if kind == "join":
        return f"node {transaction[1]} as a minion"
    return f"{kind} {transaction[1]}" if len(transaction) > 1 else str(kind)
