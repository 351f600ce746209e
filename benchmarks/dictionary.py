"""Stored bytes of a body, and the cost of encoding and decoding it, with codecs 1 to 3 on the taxi
trips.

One thread, CPU time, bodies in groups of ``GROUP_CELLS`` as a group commit has them; runs of codecs
are interleaved, the figures are medians. The dictionary is trained as a worker trains it, on the
first trips of the data set; it is measured on the others, which it has not seen. Codec 3 stands
beside codec 2, which it takes the place of; ``training`` is the CPU time of one dictionary, in the
background of a worker, once for a column.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks import Figure, Limit, at_most
from benchmarks.put_http import taxi_cells
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_codec import CODEC_JSON_ZSTD, CODEC_MSGPACK_ZLIB, decode_body
from cellfeed.store.cells.body_encoding import encode_bodies, encode_with
from cellfeed.store.cells.known_dictionaries import know
from cellfeed.store.dictionaries.training import SAMPLES_WANTED, Sample, train

TRIPS = 6_433
"""The data set; more would be the same trips again, which a dictionary has seen."""
GROUP_CELLS = 500
RUNS = 15
BYTES = at_most(105)
"""The zones of trips took 17 bytes off when values of 1 % of the row keys were kept. Values as
frequent as those are names of drivers elsewhere."""
ENCODE_US = at_most(3.5)
DECODE_US = at_most(0.8)
"""The figures of a prototype on longer trips, 418 bytes of JSON."""


def figures(runs: int = RUNS, trips: int = TRIPS) -> Iterator[Figure]:
    """Measures; see the module."""
    samples = [
        Sample(row_key.bytes, canonical_json.canonical(body))
        for row_key, _, _, body in taxi_cells(trips)
    ]
    trained_on = min(SAMPLES_WANTED, 2 * trips // 3)
    started_s = time.process_time()
    dictionary = know(train("BASE", samples[:trained_on]).dictionary)
    training_s = time.process_time() - started_s
    bodies = [sample.body_json for sample in samples[trained_on:]]
    groups = [bodies[start : start + GROUP_CELLS] for start in range(0, len(bodies), GROUP_CELLS)]
    encoders: dict[int, Callable[[Sequence[bytes]], list[bytes]]] = {
        1: lambda group: encode_bodies(group, CODEC_MSGPACK_ZLIB),
        2: lambda group: encode_bodies(group, CODEC_JSON_ZSTD),
        3: lambda group: encode_with(dictionary, group),
    }
    stored = {
        codec: [body for group in groups for body in encode(group)]
        for codec, encode in encoders.items()
    }
    encoding: dict[int, list[float]] = {codec: [] for codec in encoders}
    decoding: dict[int, list[float]] = {codec: [] for codec in encoders}
    for _ in range(runs):
        for codec, encode in encoders.items():
            started_s = time.process_time()
            for group in groups:
                encode(group)
            encoding[codec].append((time.process_time() - started_s) / len(bodies) * 1e6)
            started_s = time.process_time()
            for body in stored[codec]:
                decode_body(body)
            decoding[codec].append((time.process_time() - started_s) / len(bodies) * 1e6)
    yield Figure("dictionary bytes json", sum(map(len, bodies)) / len(bodies), "bytes/cell")
    sizes = {codec: sum(map(len, each)) / len(each) for codec, each in stored.items()}
    yield from _by_codec("bytes", sizes, "bytes/cell", BYTES)
    yield from _by_codec(
        "encode",
        {codec: statistics.median(each) for codec, each in encoding.items()},
        "µs CPU/cell",
        ENCODE_US,
    )
    yield from _by_codec(
        "decode",
        {codec: statistics.median(each) for codec, each in decoding.items()},
        "µs CPU/cell",
        DECODE_US,
    )
    yield Figure("dictionary training", training_s, "s CPU")


def _by_codec(what: str, measured: dict[int, float], unit: str, limit: Limit) -> Iterator[Figure]:
    for codec, figure in measured.items():
        if codec == 3:
            yield Figure(f"dictionary {what} codec 3", figure, unit, "codec 2", measured[2], limit)
        else:
            yield Figure(f"dictionary {what} codec {codec}", figure, unit)
