"""``@latest``: the newest cell of each row and column is never left out; every cell left out has a
newer one in the log; from "now" on every cell is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import inf
from random import Random
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.limits import NEWEST_CELLS
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.log.newest import LatestReads, Newest, Reader, encode_newest
from cellfeed.bridge.gateway.topics.topics import make_topic
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head
from tests.support.log_of_cells import LogOfCells, log_cell

LATEST = make_topic("trips@latest", View(), JsonFormat(), latest=True)
READER = Reader(1, LATEST.name, 0)

Key = tuple[bytes, str]
triples = st.tuples(st.integers(0, 2), st.sampled_from(["BASE", "NOTES"]), st.integers(0, 30))
"""Few rows and many ref keys, so that most cells have a newer one, which often came before."""


def head(watermark: int, log_start: int = 0) -> Head:
    return Head(log_start, watermark, watermark, 0, 0)


def key_of(cell: StoredCell) -> Key:
    return cell.row_key, cell.column_name


def newest_of(cells: Sequence[StoredCell]) -> dict[Key, int]:
    """Where the newest cell of each row and column is."""
    found: dict[Key, StoredCell] = {}
    for cell in cells:
        if key_of(cell) not in found or cell.ref_key > found[key_of(cell)].ref_key:
            found[key_of(cell)] = cell
    return {key: cell.added_id for key, cell in found.items()}


def offsets(batches: Sequence[Batch]) -> list[int]:
    return [
        record.offset for record in decode_record_batches(b"".join(batch.data for batch in batches))
    ]


def log_of(written: Sequence[tuple[int, str, int]]) -> list[StoredCell]:
    """Each triple once, as a store has it."""
    return [log_cell(added_id, *triple) for added_id, triple in enumerate(dict.fromkeys(written))]


@given(st.lists(triples, max_size=60), st.data())
def test_a_read_of_latest_shows_each_newest_cell_and_none_with_a_newer_one_in_the_shown_log(
    written: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    cells = log_of(written)
    log_start, start, end, watermark = sorted(
        data.draw(st.lists(st.integers(0, len(cells)), min_size=4, max_size=4))
    )
    if start == end:
        return
    batches = encode_newest(LogOfCells(cells), LATEST, 0, start, end, head(watermark, log_start))  # type: ignore[arg-type]
    assert (batches[0].start, batches[-1].end) == (start, end)
    assert all(before.end == after.start for before, after in pairwise(batches))
    newest = set(newest_of(cells[log_start:watermark]).values())
    assert offsets(batches) == [offset for offset in range(start, end) if offset in newest]


class Client:
    """Reads as a Kafka client does: from a position, in answers of any size, over connections that
    break and gateways that have not seen the newest cells."""

    def __init__(self, log: LogOfCells, position: int) -> None:
        self._log = log
        self._connection = 0
        self.position = position
        self.seen: list[int] = []
        self.reads = LatestReads(reads_max=1)

    def reconnect(self) -> None:
        self._connection += 1

    def fetch(self, known_watermark: int, cells: int) -> None:
        """One answer of up to ``cells`` offsets, from a gateway that knows of the log up to
        there."""
        engine = cast("Engine", self._log)
        reader = Reader(self._connection, LATEST.name, 0)
        live_from = self.reads.live_from(reader, self.position, known_watermark)
        end = min(self.position + cells, known_watermark)
        if self.position < live_from:
            end = min(end, live_from)
            batches = (
                encode_newest(engine, LATEST, 0, self.position, end, head(known_watermark))
                if end > self.position
                else []
            )
        else:
            batches = (
                encode_range(engine, LATEST, 0, self.position, end, 0)
                if end > self.position
                else []
            )
        self.reads.answered(reader, self.position, max(end, self.position))
        self.seen += offsets(batches)
        self.position = max(end, self.position)


steps = st.one_of(
    st.tuples(st.just("put"), triples),
    st.tuples(st.just("fetch"), st.tuples(st.integers(1, 8), st.integers(0, 5))),
    st.tuples(st.just("reconnect"), st.none()),
)


@given(st.integers(0, 10), st.lists(triples, max_size=20), st.lists(steps, max_size=50))
@example(
    0,
    [(0, "BASE", 1), (0, "BASE", 0)],
    [("fetch", (1, 0)), ("put", (0, "BASE", 2)), ("fetch", (8, 0))],
)
def test_a_reader_of_latest_from_an_offset_to_the_end_has_the_newest_of_each_row_and_column(
    begin: int, before: list[tuple[int, str, int]], then: list[tuple[str, Any]]
) -> None:
    written = dict.fromkeys(before)
    log = LogOfCells(log_of(list(written)))
    client = Client(log, min(begin, len(log.cells)))
    start = client.position
    for step, value in then:
        if step == "put":
            written[value] = None
            log.cells = log_of(list(written))
        elif step == "fetch":
            cells, behind = value
            client.fetch(max(client.position, len(log.cells) - behind), cells)
        else:
            client.reconnect()
    while client.position < len(log.cells):
        client.fetch(len(log.cells), 3)
    assert client.seen == sorted(set(client.seen)), "in order, none twice"
    missing = {offset for offset in newest_of(log.cells).values() if offset >= start} - set(
        client.seen
    )
    assert not missing


@given(st.lists(triples, max_size=20), st.lists(triples, max_size=20), st.integers(1, 7))
def test_one_connection_sees_the_newest_cells_at_its_start_and_every_later_one(
    before: list[tuple[int, str, int]], after: list[tuple[int, str, int]], cells: int
) -> None:
    log = LogOfCells(log_of(before))
    now = len(log.cells)
    client = Client(log, 0)
    client.fetch(now, cells)
    while client.position < now:
        client.fetch(now, cells)
    assert client.seen == sorted(newest_of(log.cells).values())
    log.cells = log_of([*before, *after])
    while client.position < len(log.cells):
        client.fetch(len(log.cells), cells)
    assert client.seen[len(newest_of(log.cells[:now])) :] == list(range(now, len(log.cells)))


def test_a_fetch_continues_a_read_only_where_its_last_answer_ended() -> None:
    reads = LatestReads()
    assert reads.live_from(READER, 10, 100) == 100
    reads.answered(READER, 10, 40)
    for offset in (
        10,
        25,
        40,
    ):  # an answer that was lost, or that the client dropped in part, is asked for again
        assert reads.live_from(READER, offset, 200) == 100
    reads.answered(READER, 40, 60)
    assert reads.live_from(READER, 10, 300) == 300, (
        "the client went back to the beginning: a read of its own"
    )
    assert reads.live_from(READER, 900, 1_000) == 1_000
    assert reads.live_from(READER._replace(connection=2), 10, 400) == 400
    assert reads.live_from(READER._replace(shard=1), 10, 500) == 500


def test_at_most_the_limit_of_reads_is_remembered_and_continued_ones_stay() -> None:
    reads = LatestReads(reads_max=2)
    for shard in range(5):
        assert reads.live_from(READER._replace(shard=0), 0, shard + 1) == 1
        reads.live_from(READER._replace(shard=shard + 1), 0, 9)
        assert len(reads) <= 2
    assert not reads.continues(READER._replace(shard=4), 0)


def read(log: LogOfCells, live_from: int, bytes_max: int, until_s: float) -> list[Batch]:
    async def run(executor: ThreadPoolExecutor) -> list[Batch]:
        return await Newest(cast("Engine", log), executor).read(
            LATEST, 0, 0, live_from, head(live_from), bytes_max, until_s
        )

    with ThreadPoolExecutor(1) as executor:
        return asyncio.run(run(executor))


@pytest.mark.parametrize(
    ("bytes_max", "until_s", "pieces"), [(1 << 30, inf, 4), (1, inf, 1), (1 << 30, 0.0, 1)]
)
def test_an_answer_ends_at_now_or_when_bytes_or_time_are_used_up_but_always_advances(
    bytes_max: int, until_s: float, pieces: int
) -> None:
    end = 4 * NEWEST_CELLS - 5
    rows = [Random(1).randrange(50) for _ in range(end)]
    log = LogOfCells(
        [log_cell(added_id, row, ref_key=added_id) for added_id, row in enumerate(rows)]
    )
    batches = read(log, end, bytes_max, until_s)
    assert len(batches) == pieces
    assert batches[-1].end == min(end, pieces * NEWEST_CELLS)
    assert not set(offsets(batches)) - set(newest_of(log.cells).values())


def test_no_cell_is_read_of_a_piece_without_newest_cells() -> None:
    log = LogOfCells(
        [log_cell(added_id, 0, ref_key=added_id) for added_id in range(3 * NEWEST_CELLS)]
    )
    assert offsets(read(log, 3 * NEWEST_CELLS, 1 << 30, inf)) == [3 * NEWEST_CELLS - 1]
    assert log.scanned == NEWEST_CELLS


def test_the_now_of_a_read_stays_where_it_began() -> None:
    """A client that fetches a part of its last answer again is shown the same."""
    reads = LatestReads()
    assert reads.live_from(READER, 0, 10) == 10
    reads.answered(READER, 0, 20)
    assert reads.live_from(READER, 5, 30) == 10
