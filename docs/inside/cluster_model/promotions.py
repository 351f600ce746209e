"""Promotion and rejoin, step by step; after each step the process that runs it may be killed."""

from __future__ import annotations

from collections.abc import Iterator

from docs.inside.cluster_model.clients import commit
from docs.inside.cluster_model.invariants import lost
from docs.inside.cluster_model.logs import Role
from docs.inside.cluster_model.state import (
    NOBODY,
    NODES,
    Model,
    Promotion,
    SemiSync,
    State,
    Step,
    cut_off_clients,
    newest,
    reachable,
    spend,
    with_node,
)


def promotions(model: Model, state: State) -> Iterator[Step]:
    if (promotion := state.promotion) is None:
        yield from _begin(model, state)
        return
    if state.budget.kills:
        killed = state._replace(
            promotion=None, budget=state.budget._replace(kills=state.budget.kills - 1)
        )
        yield f"the promotion is killed before: {promotion.phase}", killed
    yield from _STEPS[promotion.phase](model, state, promotion)


def _begin(model: Model, state: State) -> Iterator[Step]:
    """Locks a majority, and asks for the master and for the nodes that share its history.

    A node that answers may have promised an epoch that no node tells: that promotion may have
    happened on a node that is away. Then only another promotion, above it, settles who is master.
    """
    there = reachable(state)
    if 2 * len(there) <= len(NODES):
        return
    role = newest(model.view(state.nodes[node]).role for node in there)
    master = state.nodes[role.master]
    promised = max(state.nodes[node].promised for node in there)
    is_unsettled = promised > role.epoch
    if role.master in there and not is_unsettled:
        if not master.open and master.follows == NOBODY:
            finish = Promotion("re-point", role, (), (), False, role.epoch)
            yield (
                f"a promotion finishes what was begun: node {role.master}",
                state._replace(promotion=finish),
            )
            return
        if not model.scenario.planned:
            return
    if (spent := spend(state, "promotions")) is None:
        return
    candidates = tuple(
        node
        for node in there
        if (node != role.master or is_unsettled) and _shares_history(model, state, node, role)
    )
    if set(role.minions) & set(there) - set(candidates):
        return
    gave_up = tuple(sorted(set(role.minions) - set(there)))
    if gave_up:
        # Cells that only given up nodes have are lost by the operator's word: the model looks at
        # the others.
        if len(gave_up) > spent.budget.give_ups or all(
            lost(model, state, model.view(state.nodes[node])) for node in candidates
        ):
            return
        spent = spent._replace(
            budget=spent.budget._replace(give_ups=spent.budget.give_ups - len(gave_up))
        )
    named = f", giving up {list(gave_up)}" if gave_up else ""
    phase = "fence" if role.master in there else "collect"
    epoch = max(role.epoch, promised) + 1
    begun = Promotion(
        phase, role, candidates, gave_up, role.master in there and not is_unsettled, epoch
    )
    yield f"a promotion to epoch {epoch} begins{named}", spent._replace(promotion=begun)


def _shares_history(model: Model, state: State, node: int, role: Role) -> bool:
    return (
        model.view(state.nodes[node]).role.epoch == role.epoch
        or state.nodes[node].follows == role.master
    )


def _fence(_: Model, state: State, promotion: Promotion) -> Iterator[Step]:
    master = promotion.role.master
    if master not in reachable(state):
        yield "the promotion is refused", state._replace(promotion=None)
        return
    fenced = with_node(
        cut_off_clients(state, master), master, state.nodes[master]._replace(open=False)
    )
    yield f"node {master} is fenced", fenced._replace(promotion=promotion._replace(phase="collect"))


def _collect(model: Model, state: State, promotion: Promotion) -> Iterator[Step]:
    if not set(promotion.candidates) <= set(reachable(state)):
        yield "the promotion is refused", state._replace(promotion=None)
        return
    if promotion.planned and model.rules.switch_waits:
        # The fenced master takes no further commits: a minion has all of it after some time.
        log = state.nodes[promotion.role.master].log
        if not any(model.has(state, node, log) for node in promotion.candidates):
            return
    for number in reachable(state):
        node = state.nodes[number]
        if model.rules.promotion_is_promised:
            node = node._replace(promised=promotion.epoch)
        if number in promotion.candidates:
            node = (
                node._replace(follows=NOBODY)
                if model.rules.collected_stay_stopped
                else node._replace(stopped=True)
            )
        state = with_node(state, number, node)
    yield "the minions stop receiving", state._replace(promotion=promotion._replace(phase="raise"))


def _raise(model: Model, state: State, promotion: Promotion) -> Iterator[Step]:
    told = {node: model.view(state.nodes[node]).role for node in promotion.candidates}
    heard = {node: role for node, role in told.items() if role.epoch == promotion.role.epoch}
    role = newest(iter((promotion.role, *heard.values())))
    lengths = {node: model.view(state.nodes[node]).length for node in heard}
    is_missing = bool(set(role.minions) - set(promotion.candidates) - set(promotion.gave_up))
    # Without minions commits were answered that only the master has. They come before the first
    # minion in the log: a node that has not heard of a minion may lack them.
    alone = {node for node, role in heard.items() if not role.minions and node != role.master}
    if model.rules.promoted_has_heard_of_a_minion and alone:
        heard = {node: role for node, role in heard.items() if node not in alone}
    # A node that was given up may have come back meanwhile, and have been followed.
    is_overtaken = model.rules.raise_asks_for_newer and any(
        role.epoch > promotion.role.epoch for role in told.values()
    )
    if (
        is_missing
        or is_overtaken
        or not heard
        or not set(promotion.candidates) <= set(reachable(state))
    ):
        yield "the promotion is refused", state._replace(promotion=None)
        return
    for chosen in (node for node in heard if lengths[node] == max(lengths.values())):
        minions = tuple(node for node in promotion.candidates if node != chosen)
        view = model.view(state.nodes[chosen])
        epoch, gap = promotion.epoch, model.rules.revision_gap
        raised = Role(epoch, chosen, minions, role.semi_sync)
        log = model.logs.append(
            state.nodes[chosen].log,
            ("raise", *raised, view.revision + (gap if gap == 1 else gap * epoch)),
        )
        after = with_node(
            state,
            chosen,
            state.nodes[chosen]._replace(log=log, follows=NOBODY, stopped=False, open=False),
        )
        yield (
            f"node {chosen} raises the epoch to {epoch}",
            after._replace(promotion=promotion._replace(phase="re-point", role=raised)),
        )


def _repoint(_: Model, state: State, promotion: Promotion) -> Iterator[Step]:
    role = promotion.role
    if not {role.master, *role.minions} - set(promotion.gave_up) <= set(reachable(state)):
        yield "the promotion is not finished", state._replace(promotion=None)
        return
    for node in role.minions:
        state = with_node(
            cut_off_clients(state, node),
            node,
            state.nodes[node]._replace(follows=role.master, stopped=False, open=False),
        )
    yield (
        f"the minions follow node {role.master}",
        state._replace(promotion=promotion._replace(phase="open")),
    )


def _open(_: Model, state: State, promotion: Promotion) -> Iterator[Step]:
    master = promotion.role.master
    if master not in reachable(state):
        yield "the promotion is not finished", state._replace(promotion=None)
        return
    semi_sync = SemiSync.WAITS if promotion.role.semi_sync else SemiSync.OFF
    node = state.nodes[master]._replace(open=True, semi_sync=semi_sync)
    yield f"node {master} takes writes", with_node(state, master, node)._replace(promotion=None)


_STEPS = {
    "fence": _fence,
    "collect": _collect,
    "raise": _raise,
    "re-point": _repoint,
    "open": _open,
}


def rejoins(model: Model, state: State) -> Iterator[Step]:
    """A node returns under the lock of promotions: fenced, compared, recorded, following."""
    there = reachable(state)
    if state.promotion is not None or 2 * len(there) <= len(NODES):
        return
    role = newest(model.view(state.nodes[node]).role for node in there)
    if (
        role.master not in there
        or not state.nodes[role.master].open
        or any(state.nodes[node].promised > role.epoch for node in there)
    ):
        return
    for number in there:
        node = state.nodes[number]
        if number == role.master or (
            node.follows == role.master and not node.stopped and number in role.minions
        ):
            continue
        if (spent := spend(state, "rejoins")) is None:
            return
        fenced = with_node(cut_off_clients(spent, number), number, node._replace(open=False))
        if _is_prefix(model, fenced, number, role):
            yield from _follow(model, fenced, number, role)
        else:
            yield from _clone(model, fenced, number, role)


def _is_prefix(model: Model, state: State, number: int, role: Role) -> bool:
    """As ``cellfeed.store.clusters.operating.rejoin.is_prefix``: by the first promotion that the
    node has not heard of."""
    view = model.view(state.nodes[number])
    if state.nodes[number].follows == role.master or not model.rules.rejoin_asks_prefix:
        return True
    master = model.view(state.nodes[role.master])
    if model.rules.rejoin_asks_lineage and view.role.epoch not in {
        epoch for epoch, _ in master.raises
    }:
        return False
    later = [length for epoch, length in master.raises if epoch > view.role.epoch]
    return view.length <= (min(later) if later else master.length)


def _follow(model: Model, state: State, number: int, role: Role) -> Iterator[Step]:
    """Recorded as a minion before it follows. A kill between the two leaves it recorded."""
    if number not in role.minions:
        semi_sync = (
            model.scenario.semi_sync if model.rules.semi_sync_with_first_minion else role.semi_sync
        )
        recorded = commit(model, state, role.master, ("join", number, semi_sync))
        if recorded is None:
            return
        state = recorded[0]
        if semi_sync:
            state = with_node(
                state, role.master, state.nodes[role.master]._replace(semi_sync=SemiSync.WAITS)
            )
        if (killed := spend(state, "kills")) is not None:
            yield f"node {number} is recorded as a minion, and the rejoin is killed", killed
    yield (
        f"node {number} follows node {role.master}",
        with_node(state, number, state.nodes[number]._replace(follows=role.master, stopped=False)),
    )


def _clone(model: Model, state: State, number: int, role: Role) -> Iterator[Step]:
    """Cells that only this node has are put again; when that is answered the node becomes a
    copy."""
    own, master = model.view(state.nodes[number]), model.view(state.nodes[role.master])
    extra = [cell for cell in own.cells if cell not in master.cells]
    if extra:
        done = commit(model, state, role.master, ("put", extra[0]))
        if done is not None:
            yield f"cell {extra[0]}, which only node {number} has, is put again", done[0]
        return
    seen = model.visible(state, role.master)
    if [cell for cell in own.cells if cell not in seen.cells]:
        return
    if (
        role.minions
        and role.semi_sync
        and not any(
            model.has(state, node, seen.path[-1])
            for node in NODES
            if node not in (number, role.master)
        )
    ):
        return
    copied = state.nodes[number]._replace(log=seen.path[-1], follows=NOBODY, stopped=False)
    yield f"node {number} becomes a copy of node {role.master}", with_node(state, number, copied)
