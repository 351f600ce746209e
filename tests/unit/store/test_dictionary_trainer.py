"""A trainer keeps, evicts and tries again; some dictionaries are not worth keeping."""

from __future__ import annotations

import random
from collections.abc import Sequence
from threading import Event

import pytest

from cellfeed.store.cells import body_codec, canonical_json
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.dictionaries import trainer, training
from cellfeed.store.dictionaries.trainer import SAMPLED_COLUMNS_MAX, DictionaryTrainer
from cellfeed.store.dictionaries.training import NotWorthIt, Sample, Trained, train
from cellfeed.store.engines.contract.dictionaries import Turn
from cellfeed.store.errors import ProtectData, StorageUnavailable
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_other_stores")

FULL = 20
"""Bodies of a full sample in these tests."""


class Store:
    """The calls of a :class:`DictionaryStore` that a trainer makes, counted. ``fails``: the error
    of each next ``add``."""

    def __init__(self, *fails: Exception) -> None:
        self.fails = list(fails)
        self.completed = self.added = 0
        self.turns: dict[str, Turn] = {}

    def complete(self) -> None:
        self.completed += 1

    def current(self) -> dict[str, Turn]:
        return self.turns

    def count(self) -> int:
        return 0

    def add(self, dictionary: Dictionary) -> None:
        self.added += 1
        if self.fails:
            raise self.fails.pop(0)

    def use(self, dictionary: Dictionary, turn: int) -> bool:
        self.turns[dictionary.column_name] = Turn(
            dictionary.column_name, turn, dictionary.dictionary_id
        )
        return True


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The columns that are trained, each to a small content of its own."""
    columns = list[str]()

    def small(column: str, samples: Sequence[Sample]) -> Trained:
        columns.append(column)
        return Trained(Dictionary(column, column.encode(), 1, len(samples)), 2.0, 1.0)

    monkeypatch.setattr(trainer, "train", small)
    monkeypatch.setattr(trainer, "SAMPLES_WANTED", FULL)
    monkeypatch.setattr(trainer, "RETRY_S", 0.01)
    return columns


def of_store(store: Store) -> DictionaryTrainer:
    return DictionaryTrainer(store)  # type: ignore[arg-type]


def offer(to: DictionaryTrainer, cells: list[NewCell]) -> None:
    to.offer(cells, [PutResult(Outcome.STORED, 0, 0) for _ in cells])


def test_a_full_sample_is_never_evicted(trained: list[str]) -> None:
    at_work = of_store(Store())
    columns = {f"FULL{number}" for number in range(SAMPLED_COLUMNS_MAX)}
    for column in sorted(columns):
        offer(at_work, rides(0, FULL, column))
    offer(at_work, rides(0, FULL, "LATE"))
    at_work.work()
    assert set(trained) == columns
    offer(at_work, rides(0, FULL, "LATE"))
    at_work.work()
    assert trained[-1] == "LATE", "there was room again"


def test_the_column_with_the_fewest_samples_is_evicted(trained: list[str]) -> None:
    at_work = of_store(Store())
    for number in range(SAMPLED_COLUMNS_MAX):
        offer(at_work, rides(0, FULL - 1 if number else 1, f"COLUMN{number}"))
    offer(at_work, rides(0, 1, "LATE"))
    for number in range(SAMPLED_COLUMNS_MAX):
        offer(at_work, rides(FULL, 1, f"COLUMN{number}"))
    at_work.work()
    assert set(trained) == {f"COLUMN{number}" for number in range(1, SAMPLED_COLUMNS_MAX)}


def test_a_column_that_another_process_has_given_a_dictionary_is_not_trained(
    trained: list[str],
) -> None:
    store = Store()
    at_work = of_store(store)
    at_work.work()
    store.turns["BASE"] = Turn("BASE", 0, 7)
    offer(at_work, rides(0, FULL))
    at_work.work()
    assert (trained, store.added) == ([], 0)


def test_after_a_storage_was_away_its_dictionaries_are_completed_again(trained: list[str]) -> None:
    store = Store(StorageUnavailable("away"))
    at_work = of_store(store)
    at_work.start()
    try:
        offer(at_work, rides(0, FULL))
        wait_until(lambda: "BASE" in store.turns, "a dictionary in use")
    finally:
        at_work.close()
    assert (store.completed, store.added, trained) == (2, 2, ["BASE"])


def test_a_trainer_that_a_store_has_refused_ends_and_keeps_no_more_samples(
    trained: list[str],
) -> None:
    store = Store(*[ProtectData("another dictionary has the id")] * 50)
    at_work = of_store(store)
    at_work.start()
    try:
        offer(at_work, rides(0, FULL))
        wait_until(lambda: not at_work._thread.is_alive(), "the thread ends")
        offer(at_work, rides(0, FULL, "STATUS"))
        assert (at_work._sampled, store.added) == ({}, 1)
    finally:
        at_work.close()


def samples(count: int, shared: bool) -> list[Sample]:
    """Rides. Unless ``shared``, every second body has nothing in common with any other."""
    chance, found = random.Random(5), list[Sample]()
    for number, cell in enumerate(rides(0, count)):
        odd = canonical_json.canonical({"x": chance.randbytes(90).hex()})
        found.append(Sample(cell.row_key, cell.body_json if shared or not number % 2 else odd))
    return found


def test_the_saving_is_measured_on_bodies_that_were_not_trained_on() -> None:
    assert train("BASE", samples(800, shared=True)).bytes_after > 0
    with pytest.raises(NotWorthIt, match="less than 10% saved"):
        train("BASE", samples(800, shared=False))


@pytest.mark.parametrize(("part", "worth"), [(0.89, True), (0.91, False)])
def test_a_dictionary_that_saves_little_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, part: float, worth: bool
) -> None:
    monkeypatch.setattr(training, "encode_bodies", lambda bodies: [b"x" * 1000 for _ in bodies])
    monkeypatch.setattr(
        training, "encode_with", lambda _, bodies: [b"x" * int(1000 * part)] * len(bodies)
    )
    bodies = samples(800, shared=True)
    unseen = iter([sample.body_json for sample in bodies[1::2]])
    monkeypatch.setattr(training, "decode_body", lambda _: next(unseen))
    if worth:
        assert train("BASE", bodies).bytes_after == 890
    else:
        with pytest.raises(NotWorthIt, match="less than 10% saved"):
            train("BASE", bodies)


def test_a_dictionary_that_decodes_one_body_wrongly_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened = Event()

    def wrong_once(body: bytes) -> bytes:
        if happened.is_set():
            return body_codec.decode_body(body)
        happened.set()
        return b"{}"

    monkeypatch.setattr(training, "decode_body", wrong_once)
    with pytest.raises(NotWorthIt, match="do not come back as they were"):
        train("BASE", samples(800, shared=True))
    assert happened.is_set()
