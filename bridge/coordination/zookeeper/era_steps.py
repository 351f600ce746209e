"""Reading the era that ZooKeeper has, comparing it with the recorded one, and completing the
declaration of a new one. ``history.py`` says when.

**A new era.** The process that finds a break declares a new era. One transaction then voids every
claim, session and birth of before, for everybody. Lineages carry the era. So each group that goes
by its offsets stands still, and says why, until somebody accepts them
(``bridge/triggers/offsets/lineage.py``).

Crash points. The state table first has it as ``next``; then ZooKeeper has it; then the state table
has it as ``era``. Another process that compares finishes the declaration.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cellfeed.bridge.coordination.zookeeper.client import (
    Create,
    Delete,
    Operation,
    Set,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.era import (
    ERA_KEY,
    WITNESSES,
    Era,
    KeptEra,
    KnownEra,
    encode_json,
)
from cellfeed.bridge.coordination.zookeeper.paths import Paths
from cellfeed.bridge.coordination.zookeeper.witness import ABSENT
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.failpoints import declare, failpoint

declare("zookeeper.era_written")


def read_era(base: ZooKeeperClient, paths: Paths) -> tuple[Era, int] | None:
    """The era that ZooKeeper has, and the version of its node. Raises Unavailable."""
    found = base.get(paths.era, newest=True)
    return (
        (msgspec.json.decode(found[0], type=Era), found[1].version) if found is not None else None
    )


def why_broken(
    base: ZooKeeperClient,
    paths: Paths,
    era: Era,
    found: tuple[Era, int] | None,
    witnesses: Mapping[str, StateEntry],
) -> str | None:
    """Why ZooKeeper is not the one that the state table knows; None where it is. ``found``: as
    :func:`read_era` gives it. ``witnesses``: the marks that it may have. Raises Unavailable."""
    if found is None:
        return "it came back empty, is another one, or somebody deleted cellfeed's nodes in it"
    if found[0] != era:
        return "it went back in time, or is another one: it has the history of another time"
    nodes = [
        paths.fence_of_era(era.identity),
        *(paths.witness(era.identity, process) for process in witnesses),
    ]
    fence, *marks = [
        each[0].decode() if each is not None else None for each in base.get_many(nodes, newest=True)
    ]
    if fence is None:
        return "it went back in time, or somebody deleted cellfeed's nodes in it"
    allowed = [msgspec.json.decode(entry.value, type=list[str]) for entry in witnesses.values()]
    missing = sum((mark or ABSENT) not in each for mark, each in zip(marks, allowed, strict=True))
    return (
        f"it went back in time: it lacks the last writes of {missing} of {len(allowed)} processes"
        if missing
        else None
    )


def finish_era(base: ZooKeeperClient, state: StateTable, paths: Paths, known: KnownEra) -> None:
    """Completes the declaration of an era, also of another process's."""
    era = known.kept.next
    assert era is not None  # noqa: S101 (the caller looked)
    found = read_era(base, paths)
    if found is None or found[0] != era:
        base.ensure(paths.eras)
        base.ensure(paths.witnesses)
        value = encode_json(era)
        ended: list[Operation] = [
            Delete(paths.fence_of_era(name)) for name in base.children(paths.eras, newest=True)
        ]
        try:
            base.commit(
                [
                    (
                        Create(paths.era, value)
                        if found is None
                        else Set(paths.era, value, found[1])
                    ),
                    *ended,
                ]
            )
            failpoint("zookeeper.era_written")
        except TransactionRefused:
            return  # another process is faster
    base.ensure(paths.fence_of_era(era.identity))
    old = {entry.key: None for entry in state.list(WITNESSES)}
    state.commit(
        {ERA_KEY: encode_json(KeptEra(era=era, because=known.kept.because)), **old},
        expect={ERA_KEY: known.version},
    )
    for name in base.children(paths.witnesses):
        if not name.startswith(f"{era.identity}@"):
            base.discard([f"{paths.witnesses}/{name}"])
