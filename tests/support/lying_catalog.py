"""An Iceberg catalog whose answers to commits are wrong or lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from cellfeed.consumers.lake.iceberg_table import IcebergTable

ERRORS = {
    "unknown": CommitStateUnknownException("InternalServerError: 500"),
    "lost": ConnectionError("connection reset by peer"),
    "refused": CommitFailedException("a proxy repeated the request: 409"),
}


class LyingCatalog:
    """``answers``: of the commits in turn, ``"error"`` for one that does not happen and
    ``"error after"`` for one that does; honest ones follow. ``commits``: how many happened."""

    def __init__(self, catalog: Catalog, answers: Iterable[str]) -> None:
        self._catalog = catalog
        self._answers = list(answers)
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        answer = self._answers.pop(0) if self._answers else "honest"
        error, _, after = answer.partition(" ")
        if error != "honest" and not after:
            raise ERRORS[error]
        done = self._catalog.commit_table(table, requirements, updates)
        self.commits += 1
        if error != "honest":
            raise ERRORS[error]
        return done


def lie(table: IcebergTable, *answers: str) -> LyingCatalog:
    table._catalog = liar = LyingCatalog(table._catalog, answers)  # type: ignore[assignment]
    return liar
