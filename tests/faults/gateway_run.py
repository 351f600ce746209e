"""One fault run on several gateways: members of three clients read and commit in one group, a
reader by assignment, a writer; then all is checked.

I3, I6–I8 of the reader, I7, I14 and I20 of the group
(:func:`tests.faults.group_members.check_group`, and every look at the offsets from outside), I21.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.faults.gateway_faults import FAULTS, FULL, NEED_ZOOKEEPER, Scale
from tests.faults.gateway_system import CHURN_SESSION_S, SESSION_S, SHARDS, GatewaySystem
from tests.faults.group_members import check_group
from tests.faults.invariants import Seen, Violations, check_gapless, check_log, check_reader, merge
from tests.faults.run import FaultRun
from tests.faults.trigger_system import FaultDidNotHappen, until
from tests.faults.workload import seen_cell
from tests.support.local_zookeeper import ZooKeeper

GATEWAY_KINDS = tuple(FAULTS)
RECOVERY_MAX_S = 10.0
"""I21: everything is going again ten seconds after a fault heals."""

_GUEST_SESSION_S = 6.0
"""The members' own: a guest whose word that it leaves was lost is waited for until then."""

_GIVEN_UP_S = 40.0
_CATCH_UP_S = 90.0


def run_gateway_faults(
    kind: str, seed: int, directory: Path, scale: Scale = FULL, zookeeper: ZooKeeper | None = None
) -> FaultRun:
    """Runs and checks. The target and the moment follow from the seed. ``zookeeper``: one that
    runs, for kinds that leave it alone."""
    chance = random.Random(f"{kind}-{seed}")
    result = FaultRun(kind, seed)
    with ExitStack() as stack:
        if kind in NEED_ZOOKEEPER or (seed % 2 == 0 and zookeeper is None):
            zookeeper = ZooKeeper(directory / "zookeeper")
            zookeeper.start()
            stack.callback(zookeeper.kill)
        on_zookeeper = kind in NEED_ZOOKEEPER or seed % 2 == 0
        try:
            system = stack.enter_context(
                GatewaySystem(
                    directory,
                    3 if on_zookeeper else 2,
                    zookeeper if on_zookeeper else None,
                    CHURN_SESSION_S if kind == "gateways-churn" else SESSION_S,
                    scale.put_every_s,
                )
            )
            for _ in range(1 if kind in NEED_ZOOKEEPER else scale.faults):
                time.sleep(chance.uniform(0.1, 0.5))
                _one_fault(kind, system, chance, scale, result)
            result.violations = merge(result.violations, _check(system))
        except FaultDidNotHappen as error:
            result.witnessed.clear()
            result.violations = merge(result.violations, {"no fault": [str(error)]})
    return result


def _one_fault(
    kind: str, system: GatewaySystem, chance: random.Random, scale: Scale, result: FaultRun
) -> None:
    began_s = time.monotonic()
    healed = FAULTS[kind](system, chance, scale)
    result.witnessed.append(healed.witness)
    result.operations_inside += system.puts.acknowledged_between(began_s, healed.at_s)
    result.recovery_s.append(system.going_again_s(healed.at_s, _GIVEN_UP_S))
    limit_s = RECOVERY_MAX_S + (_GUEST_SESSION_S if kind == "gateways-churn" else 0)
    slow = (
        [f"recovery took {result.recovery_s[-1]:.1f} s"] if result.recovery_s[-1] > limit_s else []
    )
    result.violations = merge(result.violations, {"I21": [*healed.violations, *slow]})


def _places(members: Sequence[threading.Thread]) -> dict[str, list[str]]:
    """The innermost calls of each member's thread: a call of a client that never returns shows
    here."""
    frames = sys._current_frames()
    return {
        each.name: [
            f"{called.name}:{called.lineno}"
            for called in traceback.extract_stack(frames[each.ident])[-4:]
        ]
        for each in members
        if each.ident in frames
    }


def _check(system: GatewaySystem) -> Violations:
    system.writer.stop()
    ends = {shard: end for shard, end in system.heads().items() if end}
    try:
        until(
            lambda: system.group.acknowledged == ends,
            "the group comes to the end of the logs",
            _CATCH_UP_S,
        )
    except FaultDidNotHappen as error:
        group = system.group
        alive = [member.name for member in system.members if member.is_alive()]
        raise FaultDidNotHappen(
            f"{error}: committed {group.acknowledged} of {ends}, tried {group.attempted}, last"
            f" generations { {member: each[-1] for member, each in group.generations.items()} },"
            f" {group.failed_commits} commits failed, alive {alive}, errors {group.errors[-3:]},"
            f" where each stands: {_places(system.members)}"
        ) from error
    if not system.reader.wait_for(ends, _CATCH_UP_S):
        return {"I8": ["the reader by assignment did not come to the end"]}
    log: dict[int, list[Seen]] = {shard: [] for shard in range(SHARDS)}
    for shard, cells in log.items():
        while (piece := system.datastore.get_cells_for_shard(shard, len(cells), 5_000)).cells:
            cells += [seen_cell(cell) for cell in piece.cells]
    logs = {name: (system.directory / f"{name}.log").read_text() for name in system.gateways}
    return merge(
        check_log(system.puts, log),
        check_gapless(log),
        check_reader(log, system.reader.read, "by assignment"),
        check_group(system.group, ends),
        {"I20": list(system.watch.falls())},
        {
            "errors": [
                *system.group.errors,
                *system.reader.errors,
                *(
                    f"{name} has a traceback in its log: {text[text.index('Traceback') :][:4_000]}"
                    for name, text in logs.items()
                    if "Traceback" in text
                ),
            ]
        },
    )
