"""Puts: their requests, and results that are checked against the cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.cells.sharding import shard_of, shards_of
from cellfeed.store.commit.put_batches import results_from_failure
from cellfeed.store.errors import (
    CellfeedError,
    OutcomeUnknown,
    error_from_code,
)
from cellfeed.store.http.calls.attempts import pause
from cellfeed.store.http.calls.fields import decoded, put_json
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.messages import (
    PutResultMessage,
    PutResultsMessage,
)


def put_one(
    requests: Requests,
    cell: NewCell,
    deadline: float,
    shards: int | None,
    opened: list[Exception] | None = None,
) -> Steps[PutResult]:
    """One cell, until the deadline. Raises an error that is not its result. ``opened``: the errors
    that leave open whether an earlier request wrote it."""
    content = yield from requests.call(
        "POST", "/cell", put_json(cell), deadline, writes=True, opened=opened
    )
    result = put_result(decoded(content, PutResultMessage, OutcomeUnknown))
    check_shards([cell], [result], shards)
    return result


def put_batches(
    batches: Sequence[Sequence[NewCell]],
    put: Callable[[Sequence[NewCell]], Steps[list[PutResult]]],
    shards: int,
) -> Steps[list[PutResult]]:
    """As :func:`cellfeed.store.commit.put_batches.put_in_batches`."""
    cells = [cell for batch in batches for cell in batch]
    results: list[PutResult] = []
    for batch in batches:
        try:
            results += yield from put(batch)
        except CellfeedError as error:
            if not results:
                raise
            return results + results_from_failure(
                cells[len(results) :],
                len(batch),
                error,
                lambda cell: shard_of(cell.row_key, shards),
            )
    return results


def put_batch(
    requests: Requests, batch: Sequence[NewCell], deadline: float, shards: int | None
) -> Steps[list[PutResult]]:
    """One request; then once more its cells that may still succeed, until the deadline.

    A cell that one attempt may have stored has not failed, even where another attempt was refused.
    """
    opened: list[Exception] = []
    results = yield from _send_batch(requests, batch, shards, deadline, opened)
    unsure = set(range(len(batch))) if opened else set()
    for round_no in itertools.count():
        again = [
            index
            for index, result in enumerate(results)
            if result.error is not None and result.error.retriable
        ]
        if not again or not (yield from pause(round_no, deadline, str(results[again[0]].error))):
            break
        opened.clear()
        try:
            answers = yield from _send_batch(
                requests, [batch[index] for index in again], shards, deadline, opened
            )
        except CellfeedError as error:
            if not error.definite:
                unsure.update(again)
            break
        if opened:
            unsure.update(again)
        for index, answer in zip(again, answers, strict=True):
            if (
                results[index].outcome is not Outcome.UNKNOWN
                or answer.outcome is not Outcome.FAILED
            ):
                results[index] = answer
    return [_unsure(each) if index in unsure else each for index, each in enumerate(results)]


def _unsure(result: PutResult) -> PutResult:
    """The result of a cell that another attempt may have stored."""
    if result.outcome is not Outcome.FAILED:
        return result
    error = OutcomeUnknown(
        f"not known whether an earlier attempt stored it ({result.error}); put it again to learn"
    )
    return PutResult.of_error(error, result.shard)


def _send_batch(
    requests: Requests,
    batch: Sequence[NewCell],
    shards: int | None,
    deadline: float,
    opened: list[Exception],
) -> Steps[list[PutResult]]:
    content = b'{"cells":[' + b",".join(map(put_json, batch)) + b"]}"
    answer = decoded(
        (yield from requests.call("POST", "/cells", content, deadline, writes=True, opened=opened)),
        PutResultsMessage,
        OutcomeUnknown,
    )
    if len(answer.results) != len(batch):
        raise OutcomeUnknown(
            f"a worker answered {len(answer.results)} results to a put of {len(batch)} cells"
        )
    results = [put_result(result) for result in answer.results]
    check_shards(batch, results, shards)
    return results


def check_shards(
    cells: Sequence[NewCell], results: Sequence[PutResult], shards: int | None
) -> None:
    """Raises OutcomeUnknown for results of other cells, as far as their shards show that; before
    the datastore's shards are known, nothing does."""
    if shards is None:
        return
    for shard, result in zip(
        shards_of([cell.row_key for cell in cells], shards), results, strict=True
    ):
        if result.shard not in (None, shard):
            raise OutcomeUnknown(
                f"a worker answered a put to shard {shard} with a result of shard"
                f" {result.shard}; put the same cells again to learn more"
            )


def put_result(message: PutResultMessage) -> PutResult:
    error = message.error and error_from_code(message.error.error, message.error.message)
    try:
        outcome = Outcome(message.outcome)
    except ValueError:
        raise OutcomeUnknown(
            f"a worker answered the outcome {ascii(message.outcome)[:80]}, which this client does"
            " not know"
        ) from None
    place = f":{message.shard}.{message.added_id}"
    if message.token is not None and not message.token.endswith(place):
        raise OutcomeUnknown(
            f"a worker answered a put at {place[1:]} with the token"
            f" {ascii(message.token)[:80]}; put the same cell again to learn more"
        )
    return PutResult(outcome, message.shard, message.added_id, error or None, message.token)
