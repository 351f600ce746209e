"""CPU of turning stored cells into Kafka record batches, and back, beside the libraries that do the
same.

Taxi bodies, one process, CPU time; runs of both sides are interleaved and the figures are medians.
``avro values`` stands beside fastavro writing the same schema; ``record batch`` beside aiokafka's
builder (Cython) appending the same keys and values; ``cells to batch`` is all of it from decoded
bodies: keys, envelopes, framing, checksum. ``first read`` adds the decompression of the stored
bodies. ``typed values`` are the shipped trips as column BASE has them, by the shipped schema, from
canonical JSON: beside the envelope with the same bodies, and beside fastavro writing the same
records from the same JSON.
"""

from __future__ import annotations

import io
import json
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict
from uuid import UUID

import fastavro
from aiokafka.record.default_records import DefaultRecordBatchBuilder

import cellfeed.schemas
from benchmarks import Figure
from benchmarks.put_http import taxi_cells
from cellfeed.bridge.events.envelope import AvroFormat, JsonFormat, decode_envelope
from cellfeed.bridge.events.formats import WIRE_HEAD
from cellfeed.bridge.events.record_batch import encode_record_batch, frame_records
from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.bridge.events.record_keys import record_keys
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.stored_columns import Settings, Version
from cellfeed.bridge.typed.typed_column import TypedColumn
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import register
from cellfeed.loading.records import FileFormat, read_records
from cellfeed.loading.taxi import cells_of_trip, shipped_csv
from cellfeed.store.api import CellToPut
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore

CELLS = 5_000
RUNS = 9
SHARD = 3
FIRST_ID = 100_000
FIRST_US = 1_790_000_000_000_000
GROUP_CELLS = 50
"""Cells that one group commit wrote: they share their moment."""


class Place(TypedDict):
    """Where a record batch lies in its partition."""

    base_offset: int
    next_offset: int
    leader_epoch: int


def figures(runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    cells, bodies = _cells()
    keys, avro, as_json = record_keys([cell.row_key for cell in cells]), AvroFormat(1), JsonFormat()
    values, json_values = (
        avro.encode_many(SHARD, cells, keys, bodies),
        as_json.encode_many(SHARD, cells, keys, bodies),
    )
    place: Place = {"base_offset": FIRST_ID, "next_offset": FIRST_ID + CELLS, "leader_epoch": 0}

    def cells_to_batch() -> bytes:
        texts = record_keys([cell.row_key for cell in cells])
        return frame_records(cells, texts, avro.encode_many(SHARD, cells, texts, bodies), **place)

    batch = cells_to_batch()
    ours, theirs = _interleaved(
        runs,
        lambda: avro.encode_many(SHARD, cells, keys, bodies),
        lambda: _by_fastavro(cells, bodies),
    )
    yield _rate("encoding avro values", ours, "fastavro, same schema", theirs)
    ours, theirs = _interleaved(
        runs,
        lambda: frame_records(cells, keys, values, **place),
        lambda: _by_aiokafka(cells, keys, values),
    )
    yield _rate("encoding record batch", ours, "aiokafka's builder", theirs)
    yield from _typed(runs)
    measured = _interleaved(
        runs,
        cells_to_batch,
        lambda: encode_record_batch(avro, SHARD, cells, **place),
        lambda: encode_record_batch(as_json, SHARD, cells, **place),
        lambda: list(decode_record_batches(batch)),
        lambda: [decode_envelope(value) for value in values],
        lambda: [decode_envelope(value) for value in json_values],
    )
    names = [
        "cells to batch avro",
        "first read avro",
        "first read json",
        "read batch",
        "decode avro",
        "decode json",
    ]
    for name, seconds in zip(names, measured, strict=True):
        yield Figure(f"encoding {name}", seconds / CELLS * 1e6, "µs CPU/cell")


def _typed(runs: int) -> Iterator[Figure]:
    bodies = [canonical_json.canonical(cell.body) for cell in _trips()]
    cells = [
        StoredCell(FIRST_ID + n, row_key.bytes, "BASE", 1, FIRST_US, b"")
        for n, (row_key, _, _, _) in enumerate(taxi_cells(CELLS))
    ]
    keys = record_keys([cell.row_key for cell in cells])
    with (
        TemporaryDirectory() as directory,
        Datastore.open_embedded(Path(directory), shards=1) as datastore,
    ):
        version = register(
            datastore.state,
            "BASE",
            body_schema(cellfeed.schemas.avro_text("taxi_trip")),
            Settings(),
        )
        typed, envelope = TypedFormat(TypedColumn(datastore.state, "BASE")), AvroFormat(1)
        by_us, by_envelope, by_fastavro = _interleaved(
            runs,
            lambda: typed.encode_many(SHARD, cells, keys, bodies),
            lambda: envelope.encode_many(SHARD, cells, keys, bodies),
            lambda: _typed_by_fastavro(version, cells, bodies),
        )
        if typed.encode_many(SHARD, cells, keys, bodies) != _typed_by_fastavro(
            version, cells, bodies
        ):
            raise AssertionError("fastavro writes other records than these")
    yield _rate("encoding typed values", by_us, "the envelope, same bodies", by_envelope)
    yield _rate("encoding typed values from JSON", by_us, "fastavro, same schema", by_fastavro)


def _trips() -> list[CellToPut]:
    """The shipped trips as column BASE has them."""
    trips = [
        cells_of_trip(record.fields)[0]
        for record in read_records(shipped_csv(), FileFormat.CSV)
        if record.fields is not None
    ]
    return trips[:CELLS]


def _typed_by_fastavro(
    version: Version, cells: list[StoredCell], bodies: list[bytes]
) -> list[bytes]:
    schema = fastavro.parse_schema(json.loads(version.cell))
    values = []
    for cell, body_json in zip(cells, bodies, strict=True):
        out = io.BytesIO(WIRE_HEAD.pack(0, version.schema_id))
        out.seek(WIRE_HEAD.size)
        body = json.loads(body_json)
        body["pickup"], body["dropoff"] = (
            datetime.fromisoformat(body["pickup"]),
            datetime.fromisoformat(body["dropoff"]),
        )
        record = _record(cell, ("cellfeed.taxi.TaxiTrip", body))
        fastavro.schemaless_writer(out, schema, record)
        values.append(out.getvalue())
    return values


def _cells() -> tuple[list[StoredCell], list[bytes]]:
    bodies = [canonical_json.canonical(body) for _, _, _, body in taxi_cells(CELLS)]
    row_keys = [row_key for row_key, _, _, _ in taxi_cells(CELLS)]
    moments = [FIRST_US + n // GROUP_CELLS * 2_345 for n in range(CELLS)]
    return [
        StoredCell(FIRST_ID + n, row_key.bytes, "BASE", 1, moment_us, encode_body(body))
        for n, (row_key, body, moment_us) in enumerate(zip(row_keys, bodies, moments, strict=True))
    ], bodies


def _rate(name: str, seconds: float, beside: str, beside_seconds: float) -> Figure:
    return Figure(name, CELLS / seconds, "records/s CPU", beside, CELLS / beside_seconds)


def _interleaved(runs: int, *cases: Callable[[], object]) -> list[float]:
    """Median CPU seconds of each case."""
    seconds: list[list[float]] = [[] for _ in cases]
    for _ in range(runs):
        for case, taken in zip(cases, seconds, strict=True):
            started = time.process_time()
            case()
            taken.append(time.process_time() - started)
    return [statistics.median(taken) for taken in seconds]


def _record(cell: StoredCell, body: object) -> dict[str, object]:
    return {
        "row_key": UUID(bytes=cell.row_key),
        "column_name": cell.column_name,
        "ref_key": cell.ref_key,
        "added_id": cell.added_id,
        "shard": SHARD,
        "created_at": cell.created_at_us,
        "body": body,
    }


def _by_fastavro(cells: list[StoredCell], bodies: list[bytes]) -> list[bytes]:
    schema = fastavro.parse_schema(cellfeed.schemas.load_avro("cell_envelope"))
    values = []
    for cell, body in zip(cells, bodies, strict=True):
        out = io.BytesIO(b"\x00\x00\x00\x00\x01")
        out.seek(5)
        record = _record(cell, body.decode())
        fastavro.schemaless_writer(out, schema, record)
        values.append(out.getvalue())
    return values


def _by_aiokafka(cells: list[StoredCell], keys: list[bytes], values: list[bytes]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for offset, (cell, key, value) in enumerate(zip(cells, keys, values, strict=True)):
        builder.append(offset, cell.created_at_us // 1000, key, value, [])
    return bytes(builder.build())
