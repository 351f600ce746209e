"""The conditions that every state must meet."""

from __future__ import annotations

from docs.inside.cluster_model.logs import View
from docs.inside.cluster_model.state import Job, Model, Own, State


def violation(model: Model, state: State) -> str:
    """The fault of this state; empty when nothing is."""
    if state.violation:
        return state.violation
    if state.job is Job.FAILED and state.own in (Own.ON_MASTER, Own.ON_MINION):
        return 'a put was answered "nothing was written", and its cell is stored'
    roles = [model.view(node).role for node in state.nodes]
    highest = max(role.epoch for role in roles)
    masters = [
        number
        for number, node in enumerate(state.nodes)
        if node.open and roles[number].epoch == highest and roles[number].master == number
    ]
    if len(masters) > 1:
        return f"nodes {masters} are both masters in epoch {highest}"
    if not masters:
        return ""
    missing = lost(model, state, model.view(state.nodes[masters[0]]))
    return f"node {masters[0]} is master, and {missing}" if missing else ""


def lost(model: Model, state: State, view: View) -> str:
    """The transactions that a log lacks, or has otherwise, although somebody was promised them;
    empty when nothing."""
    if view.cells[: len(state.shown)] != state.shown:
        return f"has cells {list(view.cells)} where {list(state.shown)} were shown"
    commits = {
        model.logs.views[log].last[1]
        for log in view.path
        if model.logs.views[log].last[0] == "state"
    }
    for fact in sorted(state.acknowledged):
        kind = fact[0]
        if kind == "put" and view.cells[fact[2] : fact[2] + 1] != (fact[1],):
            return (
                f"has cells {list(view.cells)} where cell {fact[1]} was acknowledged as id"
                f" {fact[2]}"
            )
        if kind == "state" and fact[1] not in commits:
            return f"lacks state commit {fact[1]}, which was acknowledged"
        if kind == "erased" and not view.erased:
            return "lacks the erasure, which was answered"
        if kind == "buffered" and not view.accepted and state.own is not Own.ON_MINION:
            return "lacks the copy of a put that was answered buffered, as does its own cluster"
    return ""
