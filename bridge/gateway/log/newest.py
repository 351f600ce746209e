"""``trips@latest``: the newest cell of each row and column up to now, then every new cell. A
consumer has a table as it stands without reading its history.

The newest cell of a row and column is the one with the highest ref key, wherever in the log it
lies.

**The rule**, for every reader, from any offset, as often as it likes, through any gateway: consider
the log from its start up to the watermark. A cell of it is left out only if a newer one of the same
row and column is in it. Offsets are those of the full log. Batches cover the cells left out, so a
reader passes these as it passes records that compaction removed.

So nobody who reads from an offset s on misses a row and column whose newest cell lies at s or
behind it. Let N be the newest cell of its row and column among those from s up to the reader's
position. Let the log have no newer one in front of s. When the reader passed N, either N was shown,
or a newer cell M was in the log already. M does not lie between s and the reader, where N is the
newest, nor in front of s. So the reader has yet to reach M, and the same argument holds for M. At
the end of the log no cell is left to reach, so the newest cell was shown. The argument needs no
memory: each fetch is judged by itself, with the watermark that its gateway knows. An older
watermark only leaves out less. A cell that is below a watermark once stays there (E7), so no
promotion takes back a newer cell on which this relies. A cell that is put late with a lower ref key
is never the newest. A reader that began behind the newer one sees neither: beginning in the middle
of any log leaves out the cells before. A newer cell that is trimmed away no longer counts, for
reads that begin afterwards.

**When a read goes live.** By the rule alone, a reader at the end would get only the newer of two
cells that arrived together. So a gateway remembers of each connection where "now" was: the
watermark when it began to read a partition. Below it only the newest cells are shown, from there on
every cell. A fetch from where the last answer ended, or from within that answer, continues the
read. A fetch from elsewhere, another connection or another gateway begins a read of its own, with a
"now" of its own. The memory of a read may be dropped at any moment (``LATEST_READS_MAX``). Then a
read begins again, and is shown the newest of the cells that it had not reached. The memory decides
how many more cells than the rule asks for are shown, never fewer.

**Costs.** Per ``NEWEST_CELLS`` offsets below "now" one scan, and one query that searches the index
by key once for each of those cells; nothing of it is kept, since the newest cells change with the
log. From "now" on it costs nothing: the kept blocks of the topic with all cells are sent.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Executor
from time import monotonic
from typing import NamedTuple

from cellfeed.bridge.gateway.limits import LATEST_READS_MAX, NEWEST_CELLS
from cellfeed.bridge.gateway.log.batch import Batch, Block
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head


class Reader(NamedTuple):
    """A reader of a shard: a connection's number, a topic's name, the shard."""

    connection: int
    topic: str
    shard: int


class _Read(NamedTuple):
    """The last answer of a read began at ``offset`` and ended before ``end``; from ``live_from`` on
    every cell is shown."""

    offset: int
    end: int
    live_from: int


class LatestReads:
    """Where "now" was for each read that may continue; the least recently used is forgotten first.
    A value of the event loop: no clock, no store."""

    def __init__(self, reads_max: int = LATEST_READS_MAX) -> None:
        self._reads: OrderedDict[Reader, _Read] = OrderedDict()
        self._reads_max = reads_max

    def continues(self, reader: Reader, offset: int) -> bool:
        """Whether a fetch from ``offset`` continues the reader's last one."""
        read = self._reads.get(reader)
        return read is not None and read.offset <= offset <= read.end

    def live_from(self, reader: Reader, offset: int, watermark: int) -> int:
        """The first offset from which every cell is shown to this fetch. ``watermark`` is the "now"
        of a read that begins."""
        if not self.continues(reader, offset):
            self._reads[reader] = _Read(offset, offset, watermark)
            if len(self._reads) > self._reads_max:
                self._reads.popitem(last=False)
        self._reads.move_to_end(reader)
        return self._reads[reader].live_from

    def answered(self, reader: Reader, offset: int, end: int) -> None:
        """A fetch from ``offset`` was given the cells before ``end``."""
        read = self._reads.get(reader)
        if read is not None:
            self._reads[reader] = _Read(offset, end, read.live_from)

    def __len__(self) -> int:
        return len(self._reads)


class Newest:
    """Reads the cells below the "now" of reads. Used on the event loop; scans and encoding run on
    ``executor``."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine = engine
        self._executor = executor
        self.reads = LatestReads()

    async def read(
        self,
        topic: Topic,
        shard: int,
        offset: int,
        live_from: int,
        head: Head,
        bytes_max: int,
        until_s: float,
    ) -> list[Batch]:
        """Batches from ``offset`` up to ``live_from``, until ``bytes_max`` would be exceeded or the
        moment ``until_s`` has come; at least one."""
        taken: list[Batch] = []
        taken_bytes = 0
        while offset < live_from and not (taken and monotonic() >= until_s):
            end = min(offset + NEWEST_CELLS, live_from)
            block = await asyncio.get_running_loop().run_in_executor(
                self._executor, encode_newest, self._engine, topic, shard, offset, end, head
            )
            for batch in block:
                if taken and taken_bytes + len(batch.data) > bytes_max:
                    return taken
                taken.append(batch)
                taken_bytes += len(batch.data)
            offset = block[-1].end
        return taken


def encode_newest(
    engine: Engine, topic: Topic, shard: int, start: int, end: int, head: Head
) -> Block:
    """As :func:`cellfeed.bridge.gateway.log.encode.encode_range`, without the cells that have a
    newer one in the log that ``head`` shows."""
    superseded = engine.superseded(shard, start, end, head.log_start, head.watermark)
    # Where all of them are, nothing is read.
    first: list[StoredCell] | None = [] if len(superseded) == end - start else None
    return encode_range(engine, topic, shard, start, end, head.leader_epoch, first, superseded)
