"""For each kind of fault, a defect that is planted in the product while it runs; and the violations
by which the run must find it: so no kind is a run that cannot fail. ``make faults-all`` runs them
all, the suite some (``test_planted.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cellfeed.store.backups import create
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.body_encoding import encode_bodies
from cellfeed.store.cells.cell import NewCell, StoredCell
from cellfeed.store.cells.put_result import Outcome, PutResult
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
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from tests.faults.cluster_system import ClusterSystem
from tests.faults.planting import Plant, Wrapped, every, instead, plant_of, planted
from tests.faults.process_plants import PROCESS_PLANTS
from tests.faults.run import FaultRun


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


def _absent_always(real: Wrapped) -> Wrapped:
    return lambda *given, **how: _absent(real, *given, **how)


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


def _unguarded(guard: Guard, _terms: object) -> str:
    """Neither the condition before the COMMIT nor the one behind it."""
    guard.after_commit = lambda _: []  # type: ignore[method-assign, assignment]
    return "1 = 1"


_UNGUARDED: Final = plant_of(
    "no guard", Guard, "condition", instead(_unguarded), "I1", "I20", "E11"
)
_FALSE_LOG: Final = plant_of(
    "a false body in the log", ClusteredEngine, "scan", every(20, _false_log), "I3"
)

PLANTS: Final[dict[str, Plant]] = {
    **PROCESS_PLANTS,
    "bit-flips": plant_of(
        "a damaged cell told to be absent", SqliteEngine, "get", _absent_always, "I1"
    ),
    "master": plant_of(
        "an acknowledged put that is not written",
        ClusteredPuts,
        "put",
        every(30, _not_written),
        "I1",
    ),
    "minion": plant_of("a false body by key", ClusteredEngine, "get", every(5, _false_cells), "I3"),
    "both-minions": plant_of(
        "a watermark that falls", Cluster, "heads", every(50, _lower_watermarks), "I9"
    ),
    "master-paused": plant_of(
        "a leader epoch that falls", Cluster, "heads", every(50, _lower_epochs), "I10"
    ),
    "promote": plant_of(
        "a state commit on any version", MySqlState, "commit", _without_expectation, "E11", "I20"
    ),
    "promote-twice": plant_of(
        "a false body of a row", ClusteredEngine, "row", every(5, _false_rows), "I3"
    ),
    "lost-tail": plant_of(
        "no copy in the buffers", BufferedWriter, "_copy", instead(lambda *_: []), "I1"
    ),
    "lost-tail-semi-sync": plant_of(
        "a cell told to be absent", ClusteredEngine, "get", every(5, _absent), "I1"
    ),
    "buffered": plant_of(
        "a copy that is answered for, and not accepted",
        MySqlBuffer,
        "accept",
        instead(_without_acceptance),
        "I19",
    ),
    "replication": plant_of(
        "another added_id in the answer", ClusteredPuts, "put", every(20, _next_id), "I4"
    ),
    "commit-reset": plant_of(
        "a false latest cell", ClusteredEngine, "latest", every(5, _false_cells), "I3"
    ),
    "commits-held": _FALSE_LOG,
    "delayed": plant_of(
        "index entries that are not written",
        ClusteredIndexes,
        "apply",
        every(10, lambda *_, **__: None),
        "I18",
    ),
    "read-only": plant_of(
        "false fields in an index", Datastore, "query_index", every(3, _false_page), "I18"
    ),
    "disk-full": _FALSE_LOG,
    "supervised": plant_of(
        "a row told to be empty",
        ClusteredEngine,
        "row",
        every(5, lambda real, *given: [[] for _ in real(*given)]),
        "I1",
    ),
    "shard-moves": _FALSE_LOG,
    "shard-moves-mover-killed": _FALSE_LOG,
    "shard-moves-master-killed": _FALSE_LOG,
    "shard-moves-back-killed": _FALSE_LOG,
    "shard-moves-promoted": _FALSE_LOG,
    "master-restarts-then-dies": _UNGUARDED,
    "minions-join": plant_of(
        "minions that join within an epoch are not heard of",
        Cluster,
        "_seen",
        _once_an_epoch,
        "I3",
        "I6",
    ),
    "server-settings": _UNGUARDED,
    "backup-behind": plant_of(
        "a backup of what minions show, whatever was acknowledged",
        create,
        "acknowledged_heads",
        instead(lambda engine: engine.heads()),
        "I1",
    ),
    "restore-twice": plant_of(
        "a return that compares no histories",
        rejoin,
        "refuse_other_history",
        instead(lambda *_: None),
        "joins",
    ),
    "foreign-node": plant_of(
        "connections to whichever server has a node's address",
        Guard,
        "check_server",
        instead(lambda *_, **__: None),
        "I1",
        "I2",
        "I3",
    ),
}
"""By kind. ``lost-tail`` also finds a bug that shows cells that no minion has:
:data:`SHOWN_TOO_EARLY`."""

SHOWN_TOO_EARLY: Final = plant_of(
    "cells shown before a minion has them", ClusterSystem, "engine", _committed, "I3"
)


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
