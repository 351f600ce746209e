"""Where a kept block comes from: a topic's contents, and the store as it was then.

A block's name and CRC prove its key and its bytes (``block_file.py``). Its witness proves that the
*store* is still the one that it comes from: the store must have that very cell at the id ``KNOWN -
1``. That is one look at one cell, and files that were written while the log was as long share it.
Two histories of one shard have a common beginning and differ in every cell behind it: ids are given
out in order, and a cell that was put again has another moment. So a store that has the witness has
all that the log showed below KNOWN when the block was encoded, the block among it. A store that was
restored from a backup, replaced by another one or made again under the same name lacks that cell.
While no cell has that id the file is not read; when another cell has it the file is dropped.
"""

from __future__ import annotations

from typing import Final

from cellfeed.bridge.gateway.log.block_file import contents_fingerprint, witness_of
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import Trimmed

_WITNESSES_MAX: Final = 100_000
"""Witnesses that are remembered, some 200 bytes each."""


class BlockOrigin:
    """One engine. Safe to use from several threads; may wait for the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._witnesses: dict[tuple[int, int], bytes] = {}
        """By shard and KNOWN: cells never change."""
        self._fingerprints: dict[str, str] = {}

    def contents_of(self, topic: Topic) -> str:
        """The fingerprint that stands for the topic's records in keys."""
        contents = self._fingerprints.get(topic.content)
        if contents is None:
            contents = self._fingerprints[topic.content] = contents_fingerprint(self._engine, topic)
        return contents

    def witness(self, shard: int, known: int) -> bytes | None:
        """Of the store's cell ``known - 1``; None when it has none there."""
        witness = self._witnesses.get((shard, known))
        if witness is None:
            try:
                found = self._engine.scan(shard, known - 1, 1)
            except Trimmed:
                return None
            if not found or found[0].added_id != known - 1:
                return None
            if len(self._witnesses) >= _WITNESSES_MAX:
                self._witnesses.clear()
            witness = self._witnesses[shard, known] = witness_of(found[0])
        return witness
