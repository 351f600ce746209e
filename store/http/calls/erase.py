"""An erasure of a row: its request, and an answer that is checked against the row."""

from __future__ import annotations

from cellfeed.store.api import ErasedRow, RowKey
from cellfeed.store.cells.cell import check_row_key
from cellfeed.store.errors import OutcomeUnknown
from cellfeed.store.http.calls.fields import decoded, key_text
from cellfeed.store.http.calls.requests import Requests
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.http.messages import ErasedRowMessage


def erase_row(requests: Requests, row_key: RowKey) -> Steps[ErasedRow]:
    """As the contract's. Raises OutcomeUnknown, too, for an answer about another row."""
    answer = yield from requests.call(
        "DELETE", f"/rows/{key_text(row_key)}", b"", requests.deadline(), writes=True
    )
    erased = decoded(answer, ErasedRowMessage, OutcomeUnknown)
    if erased.row_key.bytes != check_row_key(row_key):
        raise OutcomeUnknown(
            f"a worker answered an erasure of row {key_text(row_key)} with one of row"
            f" {erased.row_key}; erase it again to know"
        )
    return ErasedRow(erased.shard, erased.added_id, erased.cells, erased.kept)
