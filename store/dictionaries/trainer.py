"""The first cells of a column become its dictionary, in the background of the process that writes
them.

The group commit hands over the cells that it has stored (:meth:`DictionaryTrainer.offer`); of
columns without a dictionary some are kept until they make a sample. A thread of its own does the
rest: it trains, publishes, and reads the changes of other processes. Puts continue without a
dictionary until it is in use; nothing that fails here fails a put.

Two processes that train the same column at once each add a dictionary; the turn of one is first
(C2), and the other one lies unused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cellfeed.store.background import SupervisedThread
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.dictionaries.training import (
    SAMPLE_BYTES_MAX,
    SAMPLES_WANTED,
    NotWorthIt,
    Sample,
    is_sampled,
    train,
)
from cellfeed.store.engines.contract.dictionaries import DictionaryStore
from cellfeed.store.errors import CellfeedError, InvalidRequest, Unavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import DICTIONARIES_MAX

declare(
    "dictionary.before_train",
    "dictionary.before_add",
    "dictionary.before_use",
    "dictionary.after_use",
)

SAMPLED_COLUMNS_MAX: Final = 16
"""Columns that are sampled at a time: with their samples full, 64 MiB. When full, a new column
evicts the one with the fewest samples, so idle columns block no active ones."""

RETRY_S: Final = 5.0
"""After how long a storage that did not answer is asked again, in seconds."""

CLOSE_TIMEOUT_S: Final = 5.0
"""How long ``close`` waits for the thread. A training takes less; a publication that still waits
for a minion ends with the process, and is completed later."""

_log = logging.getLogger("cellfeed.dictionaries")


def publish(store: DictionaryStore, dictionary: Dictionary, turn: int) -> bool:
    """The content everywhere, then the turn (C1, C2). False when another process has given the
    column this turn. Raises InvalidRequest when the datastore has as many as it may, Unavailable:
    it may be called again."""
    if (count := store.count()) >= DICTIONARIES_MAX:
        raise InvalidRequest(
            f"the datastore has {count} dictionaries; at most {DICTIONARIES_MAX} are kept, for each"
            " is kept for ever"
        )
    failpoint("dictionary.before_add")
    store.add(dictionary)
    failpoint("dictionary.before_use")
    used = store.use(dictionary, turn)
    failpoint("dictionary.after_use")
    return used


@dataclass
class _Sampled:
    samples: list[Sample] = field(default_factory=list)
    sample_bytes: int = 0

    def is_full(self) -> bool:
        return len(self.samples) >= SAMPLES_WANTED or self.sample_bytes >= SAMPLE_BYTES_MAX


class DictionaryTrainer:
    """See the module. ``close`` ends the thread, which ``start`` has begun."""

    def __init__(self, store: DictionaryStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._sampled: dict[str, _Sampled] = {}
        self._settled: set[str] = set()
        """Columns that have a dictionary, or are not worth one as far as this process has seen."""
        self._trained: dict[str, Dictionary] = {}
        """Not published yet."""
        self._completed = False
        self._closed = False
        self._thread = SupervisedThread("dictionary-trainer", self._run)

    def start(self) -> None:
        """Begins to train."""
        self._thread.start()

    def offer(self, cells: Sequence[NewCell], results: Sequence[PutResult]) -> None:
        """Cells of one commit. Called by the group commit's thread, so it does no more than keep
        some of them."""
        if self._closed or {cell.column_name for cell in cells} <= self._settled:
            return
        with self._changed:
            for cell, result in zip(cells, results, strict=True):
                if (
                    result.outcome is Outcome.STORED
                    and cell.column_name not in self._settled
                    and is_sampled(cell.body_json)
                ):
                    self._keep(cell)

    def _keep(self, cell: NewCell) -> None:
        sampled = self._sampled.get(cell.column_name)
        if sampled is None:
            if len(self._sampled) >= SAMPLED_COLUMNS_MAX:
                least = min(self._sampled, key=lambda name: len(self._sampled[name].samples))
                if self._sampled[least].is_full():
                    return  # all of them are being trained on
                del self._sampled[least]
            sampled = self._sampled[cell.column_name] = _Sampled()
        if not sampled.is_full():
            sampled.samples.append(Sample(cell.row_key, cell.body_json))
            sampled.sample_bytes += len(cell.body_json)
            if sampled.is_full():
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread; the next process trains the columns that it has not trained."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or not self._completed or self._trained or self._full()
                )
                if self._closed:
                    return
            try:
                self.work()
            except Unavailable as error:
                _log.warning("dictionaries wait for their storage: %s", error)
                with self._changed:
                    self._completed = False  # it may have been cut off between two clusters
                    self._changed.wait_for(lambda: self._closed, RETRY_S)
            except CellfeedError as error:
                _log.error("no dictionary is trained any more by this process: %s", error)
                with self._changed:
                    self._closed = True
                    self._sampled.clear()

    def _full(self) -> list[str]:
        return [name for name, sampled in self._sampled.items() if sampled.is_full()]

    def work(self) -> None:
        """One round: completes changes that others have left, trains the samples that are full,
        publishes. Raises Unavailable: the next round resumes."""
        if not self._completed:
            self._store.complete()
            self._settled |= self._store.current().keys()
            self._completed = True
        with self._changed:
            full = {name: self._sampled[name].samples for name in self._full()}
        for name, samples in full.items():
            if name not in self._trained and name not in self._store.current():
                self._train(name, samples)
            if name not in self._trained:
                self._settle(name)
        for name, dictionary in list(self._trained.items()):
            if name not in self._store.current():
                publish(self._store, dictionary, turn=0)
            turn = self._store.current().get(name)
            won = turn is not None and turn.dictionary_id == dictionary.dictionary_id
            _log.info(
                "column %r: %s",
                name,
                f"dictionary {dictionary.name} is in use" if won else "another process was first",
            )
            del self._trained[name]
            self._settle(name)

    def _train(self, name: str, samples: Sequence[Sample]) -> None:
        failpoint("dictionary.before_train")
        try:
            trained = train(name, samples)
        except NotWorthIt as reason:
            _log.info("column %r continues without a dictionary: %s", name, reason)
            return
        except Exception:
            # A defect in one column is none of the others', and no reason to train it again and
            # again.
            _log.exception(
                "column %r continues without a dictionary: its training failed by a defect", name
            )
            return
        _log.info(
            "column %r: a body of %.0f bytes becomes %.0f",
            name,
            trained.bytes_before,
            trained.bytes_after,
        )
        self._trained[name] = trained.dictionary

    def _settle(self, name: str) -> None:
        with self._changed:
            self._settled.add(name)
            self._sampled.pop(name, None)
