"""For each kind of fault on processes of their own, a defect that is planted in them. Imports
little: each planted process reads this before it begins."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cellfeed.store.cells.body_codec import decode_bodies
from cellfeed.store.cells.body_encoding import encode_bodies
from cellfeed.store.cells.cell import NewCell, StoredCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.errors import CellfeedError
from tests.faults.planting import Plant, Wrapped, every, instead, plant_of

_ENGINE: Final = "cellfeed.store.engines.sqlite.engine:SqliteEngine"
_BATCHES: Final = "cellfeed.bridge.gateway.log.encode:_OpenBatch"


def _false(cell: StoredCell) -> StoredCell:
    [body] = encode_bodies([b'{"false":1}'])
    return cell._replace(body=body)


def _false_cells(real: Wrapped, *given: Any, **how: Any) -> list[LocatedCell | None]:
    found: list[LocatedCell | None] = real(*given, **how)
    return [each and each._replace(cell=_false(each.cell)) for each in found]


def _next_id(real: Wrapped, engine: Any, cells: Sequence[NewCell]) -> list[PutResult]:
    return [
        PutResult(each.outcome, each.shard, (each.added_id or 0) + 1)
        for each in real(engine, cells)
    ]


def _put_regardless(real: Wrapped, engine: Any, cells: Sequence[NewCell]) -> list[PutResult]:
    try:
        found: list[PutResult] = real(engine, cells)
    except CellfeedError:
        return [
            PutResult(Outcome.STORED, shard_of(cell.row_key, engine.shards), 1_000_000)
            for cell in cells
        ]
    return found


def _regardless(real: Wrapped) -> Wrapped:
    return lambda engine, cells: _put_regardless(real, engine, cells)


def _not_run(*_: object, **__: object) -> object:
    from cellfeed.bridge.triggers.shard.attempts import DONE

    return DONE


def _passes_sound_cells(real: Wrapped) -> Wrapped:
    """Every seventh call, but for poison: the run waits until all poison is parked."""
    numbers = itertools.count(1)

    def run(attempts: Any, cells: Sequence[StoredCell], **how: Any) -> object:
        is_poison = any(b'"poison":' in body for body in decode_bodies([c.body for c in cells]))
        return real(attempts, cells, **how) if is_poison or next(numbers) % 7 else _not_run()

    return run


_SKIPPED: Final = plant_of(
    "a cell passed without its run",
    "cellfeed.bridge.triggers.shard.attempts:Attempts",
    "run",
    every(7, _not_run),
    "I14",
)
_FALSE_RECORDS: Final = plant_of(
    "false records in a batch of the gateway",
    _BATCHES,
    "add",
    every(5, lambda real, batch, cells: real(batch, [_false(each) for each in cells])),
    "I3",
)
_FALSE_EXPORT: Final = plant_of(
    "false records in an export",
    "cellfeed.bridge.export.records:RecordEncoder",
    "encode",
    every(
        3,
        lambda real, encoder, shard, cells, epochs: real(
            encoder, shard, [_false(each) for each in cells], epochs
        ),
    ),
    "I15",
    "I17",
)


def _a_few_more(real: Wrapped, *given: Any, **how: Any) -> dict[int, int]:
    return {shard: position + 3 for shard, position in real(*given, **how).items()}


PROCESS_PLANTS: Final[Mapping[str, Plant]] = {
    "waits": plant_of(
        "positions ahead of the work",
        "cellfeed.bridge.outlets.groups:GroupOutlet",
        "positions",
        lambda real: lambda *given, **how: _a_few_more(real, *given, **how),
        "early",
    ),
    "waits-promoted": plant_of(
        "positions ahead of a lake's table",
        "cellfeed.bridge.outlets.lakes:_FromGateway",
        "positions",
        lambda real: lambda *given, **how: _a_few_more(real, *given, **how),
        "early",
    ),
    "worker": plant_of(
        "a cell told to be absent",
        _ENGINE,
        "get",
        every(5, lambda real, engine, triples, *_: [None for _ in triples]),
        "I1",
    ),
    "gateway": _FALSE_RECORDS,
    "triggers": _SKIPPED,
    "index": plant_of(
        "index entries that are not written",
        "cellfeed.store.engines.sqlite.index:SqliteIndexes",
        "apply",
        every(3, lambda *_, **__: None),
        "I18",
    ),
    "warehouse": plant_of(
        "false rows in the warehouse",
        "cellfeed.consumers.warehouse.cell_rows:RowBuffer",
        "add",
        every(20, lambda real, rows, row: real(rows, row._replace(body_json=b"{}"))),
        "I3",
        "I16",
        "I17",
    ),
    "pause": plant_of("a false latest cell", _ENGINE, "latest", every(5, _false_cells), "I3"),
    "all": plant_of(
        "a row told to be empty",
        _ENGINE,
        "row",
        every(5, lambda real, engine, keys, *_, **__: [[] for _ in keys]),
        "I1",
    ),
    "forked-client": plant_of(
        "a client that drops what it was answered",
        "cellfeed.store.http.client:Client",
        "get_cell",
        every(5, lambda *_, **__: None),
        "I1",
    ),
    "descriptor-limit": plant_of(
        "another added_id in the answer", _ENGINE, "put", every(20, _next_id), "I4"
    ),
    "store-disk-full": plant_of(
        "a put that failed and is acknowledged", _ENGINE, "put", _regardless, "I1"
    ),
    "files-replaced": plant_of(
        "open files that are not looked at",
        "cellfeed.store.engines.sqlite.same_files:SameFiles",
        "_compare",
        instead(lambda *_: None),
        "I1",
        "I21",
    ),
    "erase-everywhere": plant_of(
        "an erasure that leaves the notes of a dead trim",
        "cellfeed.store.indexes.trimmed:IndexedTrim",
        "settle",
        instead(lambda *_, **__: None),
        "E20",
    ),
    **dict.fromkeys(
        (
            "trigger-kill",
            "trigger-leader",
            "trigger-all",
            "trigger-pause",
            "trigger-joins",
            "trigger-rolling",
            "zookeeper-killed",
            "zookeeper-empty",
            "zookeeper-cut",
            "zookeeper-one-way",
            "zookeeper-rollback",
            "clock-steps",
        ),
        _SKIPPED,
    ),
    "hosts-power": _FALSE_RECORDS,
    "hosts-cut": _SKIPPED,
    "hosts-slow": _FALSE_RECORDS,
    "trigger-poison": plant_of(
        "a sound cell passed without its run",
        "cellfeed.bridge.triggers.shard.attempts:Attempts",
        "run",
        _passes_sound_cells,
        "I14",
    ),
    **dict.fromkeys(
        (
            "gateways-kill",
            "gateways-pause",
            "gateways-stop",
            "gateways-zookeeper",
            "gateways-churn",
        ),
        _FALSE_RECORDS,
    ),
    **dict.fromkeys(
        (
            "export-kill",
            "export-zombie",
            "export-network",
            "export-store-cut",
            "export-broker",
            "export-zookeeper",
            "export-rollback",
            "export-cluster-away",
            "export-rolling",
        ),
        _FALSE_EXPORT,
    ),
}
"""By kind."""
