"""The acts of processes: write, repeat a write, read.

The model has no memory of the beliefs of each process: at any moment some process may still believe
in any role that was ever reported; so every node that was ever master is written to and read from.
Two steps happen as soon as they can, because waiting could only promise less: a commit is answered,
and a cell below the watermark is shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from docs.inside.cluster_model.faults import describe
from docs.inside.cluster_model.logs import Role, Transaction, View
from docs.inside.cluster_model.state import (
    NODES,
    Job,
    Model,
    Own,
    Pending,
    SemiSync,
    State,
    Step,
    spend,
    with_node,
    with_process,
)

_BUFFER = frozenset({"copy", "accept", "drop"})


def masters(model: Model, state: State) -> list[int]:
    """The nodes that are up and that some process may take for the master."""
    return [
        number
        for number in NODES
        if state.nodes[number].up and number in model.view(state.nodes[number]).masters
    ]


def commit(
    model: Model, state: State, number: int, transaction: Transaction, believed: Role | None = None
) -> tuple[State, Pending] | None:
    """One guarded transaction on a node: leader epoch, ``read_only`` and semi-synchronous
    replication are asked inside it. None when it is refused: nothing was written. ``believed``: the
    role that the caller goes by, where that decides."""
    rules, kind, node = model.rules, transaction[0], state.nodes[number]
    role = model.view(node).role
    is_guarded = (
        rules.buffer_is_guarded
        if kind in _BUFFER
        else rules.state_is_guarded
        if kind == "state"
        else True
    )
    semi_sync = node.semi_sync
    if is_guarded:
        # The epoch: only the role's own master has counters of the epoch that its writers believe.
        if role.master != number or (
            not node.open and (rules.state_asks_read_only or kind != "state")
        ):
            return None
        asked = role if rules.guard_asks_the_masters_role or believed is None else believed
        if asked.semi_sync and not (
            semi_sync is SemiSync.WAITS or (semi_sync and not rules.guard_asks_how_it_waits)
        ):
            semi_sync = SemiSync.WAITS
    log = model.logs.append(node.log, transaction)
    needs_minion = semi_sync is SemiSync.WAITS or (
        kind == "erase" and bool(role.minions) and rules.erasure_waits
    )
    return with_node(state, number, node._replace(log=log, semi_sync=semi_sync)), Pending(
        number, log, needs_minion, kind
    )


def believed_roles(model: Model, view: View) -> list[Role]:
    """The roles of a log's epoch that a process may know: the newest, and those before it."""
    roles = {model.logs.views[log].role for log in view.path}
    return sorted(
        (role for role in roles if role.epoch == view.role.epoch), key=lambda role: role.age
    )


def writes(model: Model, state: State) -> Iterator[Step]:
    for number, process in enumerate(state.processes):
        if process.pending is not None:
            continue
        for master in masters(model, state):
            for kind in ("put", "state", "erase"):
                if kind in model.scenario.kinds and not _is_locked(model, state, master, kind):
                    yield from _write(model, state, number, master, kind)


def _write(model: Model, state: State, number: int, master: int, kind: str) -> Iterator[Step]:
    process, view = state.processes[number], model.view(state.nodes[master])
    if (spent := spend(state, "writes")) is None:
        return
    transaction: Transaction = (kind,)
    if kind == "put":
        # Each process puts one cell, and puts it again until it is answered.
        transaction = ("put", number)
        if any(fact[:2] == transaction for fact in state.acknowledged):
            return
    elif kind == "state":
        if view.lease[0] != process.seen[0]:
            return  # the compare-and-set finds another version
        transaction = ("state", state.commits + 1)
        spent = spent._replace(commits=state.commits + 1)
        if view.lease != process.seen:
            spent = spent._replace(
                violation=f"process {number} lost its lease, and its compare-and-set succeeded"
            )
    if (kind == "put" and number in view.cells) or (kind == "erase" and view.erased):
        yield from _unchanged(model, spent, number, master, kind)
        return
    stale = [] if model.rules.guard_asks_the_masters_role else believed_roles(model, view)[:-1]
    for believed in (None, *stale):
        if (done := commit(model, spent, master, transaction, believed)) is not None:
            after, pending = done
            mode = "" if pending.needs_minion else ", which waits for no minion"
            label = f"process {number} commits {describe(transaction)} on node {master}{mode}"
            yield label, with_process(after, number, process._replace(pending=pending))


def _is_locked(model: Model, state: State, node: int, kind: str) -> bool:
    """A commit that waits for a minion holds the row that every write of its kind locks first."""
    pendings = (process.pending for process in state.processes)
    return any(
        each
        and each.node == node
        and each.kind == kind
        and each.needs_minion
        and not model.is_received(state, each)
        for each in pendings
    )


def _unchanged(model: Model, state: State, number: int, master: int, kind: str) -> Iterator[Step]:
    """The repeated write of something that the master has already: no commit, so no wait for a
    minion. ``unchanged_answers_wait``: it is answered only when a minion has the cells that it
    found."""
    node = state.nodes[master]
    role = model.view(node).role
    if node.open and role.master == master:
        needs_minion = (
            model.rules.unchanged_answers_wait
            and bool(role.minions)
            and (role.semi_sync or kind == "erase")
        )
        held = Pending(master, node.log, needs_minion, kind)
        after = with_process(state, number, state.processes[number]._replace(pending=held))
        yield f"process {number} finds its {kind} on node {master}", after


def settle(model: Model, state: State) -> State:
    """Answers the puts that can be answered, and shows the cells that can be shown."""
    for number, process in enumerate(state.processes):
        pending = process.pending
        if (
            pending is not None
            and state.nodes[pending.node].up
            and (not pending.needs_minion or model.is_received(state, pending))
        ):
            state = _answered(model, state, number, pending)
    if "read" in model.scenario.kinds:
        for number in NODES:
            if state.nodes[number].up:
                state = _shown(model, state, number)
    return state


def _answered(model: Model, state: State, number: int, pending: Pending) -> State:
    view = model.logs.views[pending.log]
    state = with_process(state, number, state.processes[number]._replace(pending=None))
    counts = model.scenario.semi_sync or model.scenario.keeps_all
    facts = set(state.acknowledged)
    if pending.kind == "put" and counts:
        facts.add(("put", number, view.cells.index(number)))
    elif pending.kind == "state":
        if any(
            fact[0] == "version" and fact[1] == view.lease[0] and fact[2] != view.lease[1]
            for fact in facts
        ):
            state = state._replace(violation=f"version {view.lease[0]} was given to two commits")
        facts.add(("version", *view.lease))
        if counts:
            facts.add(("state", view.lease[1]))
        state = with_process(state, number, state.processes[number]._replace(seen=view.lease))
    elif pending.kind == "erase":
        facts.add(("erased",))
    elif pending.kind == "copy":
        state = state._replace(job=Job.ADDED)
    elif pending.kind == "accept":
        state = state._replace(job=Job.BUFFERED)
        facts.add(("buffered",))
    return state._replace(acknowledged=frozenset(facts))


def _shown(model: Model, state: State, number: int) -> State:
    """Cells of a node below the watermark. Role and counters of a node come in one look, so the
    role that it tells counts before its counters do: ``role_is_live``."""
    view = model.visible(state, number)
    for role in [view.role] if model.rules.role_is_live else believed_roles(model, view):
        if (number == role.master) != (not role.minions):
            continue
        common = min(len(state.shown), len(view.cells))
        if view.cells[:common] != state.shown[:common]:
            return state._replace(
                violation=f"an id that was shown has another body on node {number}"
            )
        if len(view.cells) > common:
            state = state._replace(shown=view.cells)
    return state


def leases(model: Model, state: State) -> Iterator[Step]:
    """A process reads the lease on a node that it takes for the master."""
    if "state" not in model.scenario.kinds:
        return
    for number, process in enumerate(state.processes):
        if process.pending is not None:
            continue
        for master in masters(model, state):
            lease = model.visible(state, master).lease
            if lease != process.seen:
                yield (
                    f"process {number} reads lease version {lease[0]} on node {master}",
                    with_process(state, number, process._replace(seen=lease)),
                )


def buffered_puts(model: Model, state: State) -> Iterator[Step]:
    """Process 0 puts a cell whose own cluster is away: a copy here, then its acceptance."""
    if state.processes[0].pending is not None:
        return
    may_accept = state.job is Job.ADDED or (
        state.job is Job.MAYBE_ADDED and model.rules.maybe_added_counts
    )
    for master in masters(model, state):
        view = model.view(state.nodes[master])
        if state.job in (Job.IDLE, Job.ENDED) and (spent := spend(state, "writes")) is not None:
            refused = Job.REFUSED if state.job is Job.IDLE else Job.ENDED
            yield from _buffer_step(
                model,
                spent,
                master,
                "copy",
                is_there=view.copy,
                under_way=Job.ADDING,
                refused=refused,
            )
        if may_accept and view.copy:
            yield from _buffer_step(
                model,
                state,
                master,
                "accept",
                is_there=view.accepted,
                under_way=Job.ACCEPTING,
                refused=state.job,
            )
    if state.job in (Job.ADDED, Job.MAYBE_ADDED, Job.REFUSED):
        maybe = state.job is not Job.REFUSED and model.rules.maybe_added_counts
        answer = "unknown" if maybe else "failed, nothing was written"
        yield (
            f"process 0 is answered: {answer}",
            state._replace(job=Job.ENDED if maybe else Job.FAILED),
        )


def _buffer_step(
    model: Model,
    state: State,
    master: int,
    kind: str,
    *,
    is_there: bool,
    under_way: Job,
    refused: Job,
) -> Iterator[Step]:
    if is_there:
        for label, found in _unchanged(model, state, 0, master, kind):
            yield label, found._replace(job=under_way)
    elif (done := commit(model, state, master, (kind,))) is None:
        yield f"process 0: the {kind} is refused", state._replace(job=refused)
    else:
        after, pending = done
        mode = "" if pending.needs_minion else ", which waits for no minion"
        after = with_process(after, 0, state.processes[0]._replace(pending=pending))
        yield f"process 0 commits {kind} on node {master}{mode}", after._replace(job=under_way)


def drain(model: Model, state: State) -> Iterator[Step]:
    """A drain puts the cell in its own cluster, and removes the copy."""
    rules = model.rules
    for master in masters(model, state):
        view, full = model.visible(state, master), model.view(state.nodes[master])
        if view.copy and (
            state.own is Own.ABSENT or (state.own is Own.OTHER_BODY and state.drained is None)
        ):
            own = Own.ON_MASTER if state.own is Own.ABSENT else state.own
            yield (
                f"the drain reads the copy on node {master}, and puts the cell",
                state._replace(own=own, drained=view.accepted),
            )
        if state.drained is None or not full.copy:
            continue
        is_safe = state.own is Own.ON_MINION or (
            state.own is Own.ON_MASTER and not rules.drain_waits
        )
        accepted = full.accepted if rules.drain_asks_again else state.drained
        is_refused = state.own is Own.OTHER_BODY and not accepted
        if (is_safe or is_refused) and (
            done := commit(model, state, master, ("drop",))
        ) is not None:
            yield f"the drain removes the copy on node {master}", done[0]


def own_cluster(state: State) -> Iterator[Step]:
    """The buffered cell's own cluster: its minions, a promotion there, another caller's put."""
    if state.own is Own.ON_MASTER:
        yield "the own cluster's minion has the cell", state._replace(own=Own.ON_MINION)
        if (lost := spend(state, "own_losses")) is not None:
            yield (
                "the own cluster's master dies, a minion without the cell is promoted",
                lost._replace(own=Own.ABSENT),
            )
    if state.own is Own.ABSENT and (lost := spend(state, "own_losses")) is not None:
        yield (
            "another body of the triple is stored in the own cluster",
            lost._replace(own=Own.OTHER_BODY),
        )
