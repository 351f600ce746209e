"""A fetch's answer: the answer of each partition, and the response around it.

An answer without records is kept with its partition, so a fetch of thousands of partitions at their
ends joins bytes that are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.fetch.partitions import AskedPartition, Run, by_topic
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.wire.fetch_answer import write_fetch, write_partition
from cellfeed.bridge.gateway.wire.fetch_request import FetchRequest
from cellfeed.bridge.gateway.wire.protocol import RequestHead


class PartitionAnswer(NamedTuple):
    error: ErrorCode
    watermark: int
    log_start: int
    batches: Sequence[Batch]


def response_of(
    head: RequestHead,
    request: FetchRequest,
    answers: Mapping[AskedPartition, PartitionAnswer],
    runs: Sequence[Run] | None,
    session_id: int,
) -> list[bytes]:
    """``runs``: the partitions of a full fetch, which are all answered. Of a session that continues
    those are that have records, an error, or another watermark or log start than the client was
    given."""
    pieces = {
        each: _partition(each, answer, request)
        for each, answer in answers.items()
        if runs is not None or answer.batches or each.last_ends != _ends(answer)
    }
    for each, piece in pieces.items():
        answer = answers[each]
        each.last_ends = None if answer.error is not ErrorCode.none else _ends(answer)
        each.piece = b"".join(piece) if not answer.batches else None
    if runs is None:
        runs = by_topic(pieces)
    topics = [(topic, len(run), _joined(run, pieces)) for topic, run in runs]
    return write_fetch(head, topics, session_id=session_id)


def _ends(answer: PartitionAnswer) -> tuple[int, int]:
    return answer.watermark, answer.log_start


def _joined(
    run: Sequence[AskedPartition], pieces: Mapping[AskedPartition, Sequence[bytes]]
) -> list[bytes]:
    """Answers without records in few pieces, however many there are."""
    kept = [each.piece for each in run]
    parts: list[bytes] = []
    start = 0
    for _ in range(kept.count(None)):
        at = kept.index(None, start)
        parts.append(b"".join(kept[start:at]))  # type: ignore[arg-type]
        parts += pieces[run[at]]
        start = at + 1
    parts.append(b"".join(kept[start:]))  # type: ignore[arg-type]
    return parts


def _partition(
    asked: AskedPartition, answer: PartitionAnswer, request: FetchRequest
) -> list[bytes]:
    return write_partition(
        request.version,
        asked.partition,
        answer.error,
        answer.watermark,
        answer.log_start,
        [batch.data for batch in answer.batches],
        is_committed=request.is_committed,
    )
