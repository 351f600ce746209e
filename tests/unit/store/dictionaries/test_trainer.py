"""The trainer over a store that fails: which cells it trains on, and whose turn counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.dictionaries import trainer
from cellfeed.store.dictionaries.trainer import SAMPLED_COLUMNS_MAX, DictionaryTrainer, publish
from cellfeed.store.dictionaries.training import SAMPLES_WANTED, Sample, train
from cellfeed.store.engines.contract.dictionaries import KeptDictionary, Stopped, Turn
from cellfeed.store.engines.contract.dictionaries_of_puts import REFRESH_S, DictionariesOfPuts
from cellfeed.store.errors import InvalidRequest, StorageUnavailable
from cellfeed.store.limits import DICTIONARIES_MAX
from tests.support.dictionaries_known import first, second
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_other_stores")


class FakeStore:
    """:class:`cellfeed.store.engines.contract.dictionaries.DictionaryTable` in memory, that fails
    when told to."""

    def __init__(self) -> None:
        self.contents: dict[int, Dictionary] = {}
        self.turns: list[Turn] = []
        self.away = 0
        self.others_first: Dictionary | None = None

    def _ask(self) -> None:
        if self.away:
            self.away -= 1
            raise StorageUnavailable("away")

    def find(self, dictionary_id: int) -> Dictionary | None:
        self._ask()
        return self.contents.get(dictionary_id)

    def current(self) -> dict[str, Turn]:
        self._ask()
        return {
            turn.column_name: turn for turn in self.turns if turn.dictionary_id in self.contents
        }

    def count(self) -> int:
        return len(self.contents)

    def add(self, dictionary: Dictionary) -> None:
        self._ask()
        self.contents[dictionary.dictionary_id] = dictionary
        if self.others_first is not None:
            other, self.others_first = self.others_first, None
            self.add(other)
            self.use(other, 0)

    def use(self, dictionary: Dictionary, turn: int) -> bool:
        if any(
            (each.column_name, each.turn) == (dictionary.column_name, turn) for each in self.turns
        ):
            return False
        self.turns.append(Turn(dictionary.column_name, turn, dictionary.dictionary_id))
        return True

    def complete(self) -> None:
        self._ask()

    def kept(self) -> list[KeptDictionary]:
        return []

    def stop_using(self, dictionary_id: int) -> Stopped:
        raise NotImplementedError

    def take_away(self, dictionary_id: int, stopped: Stopped) -> None:
        raise NotImplementedError

    def restore(self, dictionary: Dictionary) -> None: ...

    def check(self) -> None: ...


def test_puts_use_the_current_dictionary_under_its_epoch_and_never_a_lost_one() -> None:
    store, now_s = FakeStore(), [0.0]
    puts = DictionariesOfPuts(store, lambda: now_s[0])
    assert puts.under(1) == {}
    publish(store, first(), 0)
    assert puts.under(1) == {}  # looked at a moment ago
    now_s[0] += REFRESH_S
    assert puts.under(1)["BASE"].dictionary == first()
    del store.contents[first().dictionary_id]  # a promotion of a minion without it
    assert puts.under(1)["BASE"].dictionary == first()
    assert puts.under(2) == {}
    store.contents[first().dictionary_id] = first()
    assert puts.under(3)["BASE"].dictionary == first()
    store.away = 1
    with pytest.raises(StorageUnavailable):  # as the put would: nothing is written
        puts.under(4)
    assert puts.under(4)["BASE"].dictionary == first()


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FakeStore], DictionaryTrainer]]:
    monkeypatch.setattr(trainer, "RETRY_S", 0.01)
    started: list[DictionaryTrainer] = []

    def start(store: FakeStore) -> DictionaryTrainer:
        started.append(DictionaryTrainer(store))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.close()


def offer(to: DictionaryTrainer, cells: list[NewCell], outcome: Outcome = Outcome.STORED) -> None:
    for start in range(0, len(cells), 500):
        some = cells[start : start + 500]
        to.offer(some, [PutResult(outcome, 0, 0) for _ in some])


def test_the_first_cells_become_a_dictionary_though_the_store_is_away_for_a_while(
    training: Callable[[FakeStore], DictionaryTrainer],
) -> None:
    store = FakeStore()
    store.away = 6
    offer(training(store), rides(0, SAMPLES_WANTED))
    wait_until(lambda: bool(store.turns), "a dictionary in use")
    assert [(turn.column_name, turn.turn) for turn in store.turns] == [("BASE", 0)]
    assert store.away == 0
    assert len(store.contents) == 1  # tried again with the same one


def test_cells_that_were_not_stored_are_not_trained_on(
    training: Callable[[FakeStore], DictionaryTrainer],
) -> None:
    store = FakeStore()
    at_work = training(store)
    for outcome in (
        Outcome.EXISTS,
        Outcome.CONFLICT,
        Outcome.FAILED,
        Outcome.UNKNOWN,
        Outcome.BUFFERED,
    ):
        offer(at_work, rides(0, SAMPLES_WANTED), outcome)
    offer(at_work, rides(0, SAMPLES_WANTED, "STATUS"))
    wait_until(lambda: bool(store.turns), "a dictionary in use")
    assert {turn.column_name for turn in store.turns} == {"STATUS"}


def test_of_two_processes_the_first_ones_turn_counts(
    training: Callable[[FakeStore], DictionaryTrainer],
) -> None:
    store = FakeStore()
    store.others_first = second()
    at_work = training(store)
    offer(at_work, rides(0, SAMPLES_WANTED))
    wait_until(lambda: len(store.contents) == 2, "both are kept")
    wait_until(lambda: "BASE" in at_work._settled, "the column is settled")
    assert [turn.dictionary_id for turn in store.turns] == [second().dictionary_id]


def test_a_defect_in_one_column_keeps_no_other_one_from_a_dictionary(
    training: Callable[[FakeStore], DictionaryTrainer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail_for_one(name: str, samples: Sequence[Sample]) -> object:
        if name == "BROKEN":
            raise ValueError("a defect")
        return train(name, samples)

    monkeypatch.setattr(trainer, "train", fail_for_one)
    store = FakeStore()
    at_work = training(store)
    offer(at_work, rides(0, SAMPLES_WANTED, "BROKEN"))
    wait_until(lambda: "BROKEN" in at_work._settled, "the column is settled")
    offer(at_work, rides(0, SAMPLES_WANTED))
    wait_until(lambda: bool(store.turns), "a dictionary in use")
    assert [turn.column_name for turn in store.turns] == ["BASE"]
    assert "a defect" in caplog.text


def test_a_trainer_that_a_defect_of_the_store_ends_runs_again(
    training: Callable[[FakeStore], DictionaryTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, complete, calls = FakeStore(), FakeStore.complete, iter(range(100))

    def fail_once(self: FakeStore) -> None:
        if next(calls) == 0:
            raise KeyError("a defect")
        complete(self)

    monkeypatch.setattr(FakeStore, "complete", fail_once)
    offer(training(store), rides(0, SAMPLES_WANTED))
    wait_until(lambda: bool(store.turns), "a dictionary in use")


def test_columns_with_few_writes_keep_no_other_one_out(
    training: Callable[[FakeStore], DictionaryTrainer],
) -> None:
    store = FakeStore()
    at_work = training(store)
    for number in range(2 * SAMPLED_COLUMNS_MAX):
        offer(at_work, rides(0, 2, f"RARE{number}"))
    assert len(at_work._sampled) == SAMPLED_COLUMNS_MAX
    offer(at_work, rides(0, SAMPLES_WANTED))
    wait_until(lambda: bool(store.turns), "a dictionary in use")
    assert [turn.column_name for turn in store.turns] == ["BASE"]


def test_a_store_has_at_most_the_limit_of_dictionaries() -> None:
    store = FakeStore()
    store.contents = dict.fromkeys(range(DICTIONARIES_MAX), first())
    with pytest.raises(InvalidRequest, match=f"has {DICTIONARIES_MAX} dictionaries"):
        publish(store, second(), 0)
    assert not store.turns
