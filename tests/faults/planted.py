"""For each kind of fault on clusters, a defect that is planted in the product while it runs; and
the violations by which the run must find it: so no kind is a run that cannot fail.
``make faults-all`` runs them all, the suite some (``test_planted.py``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from cellfeed.store.backups import create
from cellfeed.store.cells.body_codec import decode_body, encode_bodies
from cellfeed.store.cells.cell import NewCell, Outcome, PutResult, StoredCell
from cellfeed.store.clusters.operating import rejoin
from cellfeed.store.clusters.serving.buffer import BufferedWriter
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.indexes import ClusteredIndexes
from cellfeed.store.clusters.serving.puts import ClusteredPuts
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head, LocatedCell
from cellfeed.store.engines.mysql.buffer import MySqlBuffer
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.state import MySqlState
from tests.faults.cluster_system import ClusterSystem
from tests.faults.run import FaultRun

Wrapped = Callable[..., Any]


class Plant(NamedTuple):
    """``what`` is wrong while ``where`` (a class or a module, and a name in it) is replaced by
    ``wrap(the real method)``; the run ``finds`` one of these."""

    what: str
    where: tuple[Any, str]
    wrap: Callable[[Wrapped], Wrapped]
    finds: frozenset[str]


def _every(count: int, wrong: Wrapped) -> Callable[[Wrapped], Wrapped]:
    """Every so many calls are answered by ``wrong(real, *call)``."""

    def wrap(real: Wrapped) -> Wrapped:
        numbers = itertools.count(1)

        def call(*given: Any, **how: Any) -> Any:
            return wrong(real, *given, **how) if next(numbers) % count == 0 else real(*given, **how)

        return call

    return wrap


def _instead(other: Wrapped) -> Callable[[Wrapped], Wrapped]:
    return lambda _: other


def _false(cell: StoredCell) -> StoredCell:
    [body] = encode_bodies([decode_body(cell.body).replace(b'"n":', b'"n":9')])
    return cell._replace(body=body)


def _false_located(found: LocatedCell | None) -> LocatedCell | None:
    return found and found._replace(cell=_false(found.cell))


def _false_cells(real: Wrapped, *given: Any, **how: Any) -> list[LocatedCell | None]:
    return [_false_located(each) for each in real(*given, **how)]


def _false_rows(real: Wrapped, *given: Any, **how: Any) -> list[list[LocatedCell | None]]:
    return [[_false_located(each) for each in row] for row in real(*given, **how)]


def _false_log(real: Wrapped, *given: Any, **how: Any) -> list[StoredCell]:
    return [_false(cell) for cell in real(*given, **how)]


def _absent(real: Wrapped, *given: Any, **how: Any) -> list[None]:
    return [None for _ in real(*given, **how)]


def _lower_watermarks(real: Wrapped, *given: Any, **how: Any) -> dict[int, Head]:
    return {
        shard: head._replace(watermark=max(0, head.watermark - 1))
        for shard, head in real(*given, **how).items()
    }


def _lower_epochs(real: Wrapped, *given: Any, **how: Any) -> dict[int, Head]:
    return {
        shard: head._replace(leader_epoch=head.leader_epoch - 1)
        for shard, head in real(*given, **how).items()
    }


def _not_written(real: Wrapped, puts: ClusteredPuts, cells: Sequence[NewCell]) -> list[PutResult]:
    return [PutResult(Outcome.STORED, puts._shard_of(cell), 1_000_000) for cell in cells]


def _next_id(real: Wrapped, puts: ClusteredPuts, cells: Sequence[NewCell]) -> list[PutResult]:
    return [
        PutResult(each.outcome, each.shard, (each.added_id or 0) + 1) if each.acknowledged else each
        for each in real(puts, cells)
    ]


def _false_page(real: Wrapped, *given: Any, **how: Any) -> Any:
    page = real(*given, **how)
    return type(page)(
        [type(row)(row.row_key, dict.fromkeys(row.fields, -1), row.cells) for row in page.rows],
        page.cursor,
        page.version,
        page.stale,
    )


def _without_expectation(real: Wrapped) -> Wrapped:
    return lambda state, write, expect=None, *terms: real(state, write, None, *terms)


def _without_acceptance(
    buffer: MySqlBuffer, owner: str, cells: Sequence[NewCell], *_: object
) -> list[bool]:
    return [True for _ in cells]


def _once_an_epoch(real: Wrapped) -> Wrapped:
    """Of each epoch the role counts that a process heard of first."""
    first: dict[tuple[int, int], Any] = {}

    def seen(cluster: Cluster) -> Any:
        role, views = real(cluster)
        return first.setdefault((id(cluster), role.epoch), role), views

    return seen


def _committed(real: Wrapped) -> Wrapped:
    return lambda system, copies, *_: real(system, copies, Watermark.COMMITTED)


def _plant(
    what: str, owner: Any, name: str, wrap: Callable[[Wrapped], Wrapped], *finds: str
) -> Plant:
    return Plant(what, (owner, name), wrap, frozenset(finds))


def _unguarded(guard: Guard, _terms: object) -> str:
    """Neither the condition before the COMMIT nor the one behind it."""
    guard.after_commit = lambda _: []  # type: ignore[method-assign, assignment]
    return "1 = 1"


_UNGUARDED: Final = _plant("no guard", Guard, "condition", _instead(_unguarded), "I1", "I20", "E11")
_FALSE_LOG: Final = _plant(
    "a false body in the log", ClusteredEngine, "scan", _every(20, _false_log), "I3"
)

PLANTS: Final[dict[str, Plant]] = {
    "master": _plant(
        "an acknowledged put that is not written",
        ClusteredPuts,
        "put",
        _every(30, _not_written),
        "I1",
    ),
    "minion": _plant("a false body by key", ClusteredEngine, "get", _every(5, _false_cells), "I3"),
    "both-minions": _plant(
        "a watermark that falls", Cluster, "heads", _every(50, _lower_watermarks), "I9"
    ),
    "master-paused": _plant(
        "a leader epoch that falls", Cluster, "heads", _every(50, _lower_epochs), "I10"
    ),
    "promote": _plant(
        "a state commit on any version", MySqlState, "commit", _without_expectation, "E11", "I20"
    ),
    "promote-twice": _plant(
        "a false body of a row", ClusteredEngine, "row", _every(5, _false_rows), "I3"
    ),
    "lost-tail": _plant(
        "no copy in the buffers", BufferedWriter, "_copy", _instead(lambda *_: []), "I1"
    ),
    "lost-tail-semi-sync": _plant(
        "a cell told to be absent", ClusteredEngine, "get", _every(5, _absent), "I1"
    ),
    "buffered": _plant(
        "a copy that is answered for, and not accepted",
        MySqlBuffer,
        "accept",
        _instead(_without_acceptance),
        "I19",
    ),
    "replication": _plant(
        "another added_id in the answer", ClusteredPuts, "put", _every(20, _next_id), "I4"
    ),
    "commit-reset": _plant(
        "a false latest cell", ClusteredEngine, "latest", _every(5, _false_cells), "I3"
    ),
    "commits-held": _FALSE_LOG,
    "delayed": _plant(
        "index entries that are not written",
        ClusteredIndexes,
        "apply",
        _every(10, lambda *_, **__: None),
        "I18",
    ),
    "read-only": _plant(
        "false fields in an index", Datastore, "query_index", _every(3, _false_page), "I18"
    ),
    "disk-full": _FALSE_LOG,
    "supervised": _plant(
        "a row told to be empty",
        ClusteredEngine,
        "row",
        _every(5, lambda real, *given: [[] for _ in real(*given)]),
        "I1",
    ),
    "shard-moves": _FALSE_LOG,
    "shard-moves-mover-killed": _FALSE_LOG,
    "shard-moves-master-killed": _FALSE_LOG,
    "shard-moves-back-killed": _FALSE_LOG,
    "shard-moves-promoted": _FALSE_LOG,
    "master-restarts-then-dies": _UNGUARDED,
    "minions-join": _plant(
        "minions that join within an epoch are not heard of",
        Cluster,
        "_seen",
        _once_an_epoch,
        "I3",
        "I6",
    ),
    "server-settings": _UNGUARDED,
    "backup-behind": _plant(
        "a backup of what minions show, whatever was acknowledged",
        create,
        "acknowledged_heads",
        _instead(lambda engine: engine.heads()),
        "I1",
    ),
    "restore-twice": _plant(
        "a return that compares no histories",
        rejoin,
        "refuse_other_history",
        _instead(lambda *_: None),
        "joins",
    ),
    "foreign-node": _plant(
        "connections to whichever server has a node's address",
        Guard,
        "check_server",
        _instead(lambda *_, **__: None),
        "I1",
        "I2",
        "I3",
    ),
}
"""By kind. ``lost-tail`` also finds what shows cells that no minion has:
:data:`SHOWN_TOO_EARLY`."""

SHOWN_TOO_EARLY: Final = _plant(
    "cells shown before a minion has them", ClusterSystem, "engine", _committed, "I3"
)


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """The product has the defect until the context ends."""
    owner, name = plant.where
    with ExitStack() as stack:
        stack.enter_context(patch.object(owner, name, plant.wrap(getattr(owner, name))))
        yield


def found_by(run: Callable[[], FaultRun], plant: Plant) -> str | None:
    """Why a run with the plant has not found it; None when it has."""
    with planted(plant):
        result = run()
    found = {name for name, told in result.violations.items() if told}
    if not result.witnessed or not found & plant.finds:
        return (
            f"{plant.what}: the run found {found or 'nothing'}, not one of {set(plant.finds)}:"
            f" {result.as_json()}"
        )
    return None
