"""Codec 3, what a process knows of dictionaries, exports, and the trainer over a store that
fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellfeed.store.cells import canonical_json, known_dictionaries
from cellfeed.store.cells.body_codec import (
    CODEC_JSON_DICTIONARY,
    CODEC_JSON_ZSTD,
    CODEC_MSGPACK_ZLIB,
    DICTIONARY_BODY_BYTES_MAX,
    ERASED_BODY,
    decode_bodies,
    decode_body,
    decoded_bytes_bound,
    encode_bodies,
    encode_cells,
    encode_with,
    forget_dictionaries,
)
from cellfeed.store.cells.cell import NewCell, Outcome, PutResult
from cellfeed.store.cells.dictionary import Dictionary, from_line, id_of, to_line
from cellfeed.store.cells.known_dictionaries import KnownDictionary
from cellfeed.store.dictionaries import trainer
from cellfeed.store.dictionaries.trainer import SAMPLED_COLUMNS_MAX, DictionaryTrainer, publish
from cellfeed.store.dictionaries.training import SAMPLES_WANTED, Sample, train
from cellfeed.store.engines.contract.dictionaries import (
    REFRESH_S,
    DictionariesOfPuts,
    KeptDictionary,
    Stopped,
    Turn,
)
from cellfeed.store.errors import DataDamaged, InvalidRequest, ProtectData, StorageUnavailable
from cellfeed.store.limits import DICTIONARIES_MAX
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_other_stores")


@cache
def first() -> Dictionary:
    """Trained when a test wants it: every worker of a run imports this file."""
    return _trained(0)


@cache
def second() -> Dictionary:
    return _trained(600)


def _trained(start: int) -> Dictionary:
    samples = [Sample(cell.row_key, cell.body_json) for cell in rides(start, 600)]
    return train("BASE", samples).dictionary


@pytest.fixture(scope="module", autouse=True)
def _trained_before() -> None:
    """Who trains a dictionary knows it: no test begins with what it has trained itself."""
    first(), second()


@pytest.fixture
def source() -> Iterator[dict[int, Dictionary]]:
    """An open store with these dictionaries, and a process that knows none."""
    forget_dictionaries()
    there: dict[int, Dictionary] = {}
    known_dictionaries.add_source(there.get)
    yield there
    known_dictionaries.remove_source(there.get)


def encoded(dictionary: Dictionary | None = None, count: int = 20) -> list[bytes]:
    return encode_with(
        KnownDictionary(dictionary or first()), [cell.body_json for cell in rides(0, count)]
    )


# --- the codec ------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.integers(-5, 5) | st.text(max_size=300)),
        max_size=20,
    )
)
def test_any_bodies_come_back_as_they_were(bodies: list[dict[str, object]]) -> None:
    dictionary = known_dictionaries.know(first())
    texts = [canonical_json.canonical(body) for body in bodies]
    for stored, text in zip(encode_with(dictionary, texts), texts, strict=True):
        assert stored[:5] == bytes([CODEC_JSON_DICTIONARY]) + first().dictionary_id.to_bytes(4)
        assert decode_body(stored) == text
        assert decoded_bytes_bound(stored) == len(text)


def test_only_short_bodies_of_columns_with_a_dictionary_take_it() -> None:
    base, status = rides(0, 30), rides(0, 30, "STATUS")
    long = [
        NewCell(
            b"\0" * 16, "BASE", 1, canonical_json.canonical({"x": "y" * DICTIONARY_BODY_BYTES_MAX})
        )
    ]
    cells = [*base[:10], *status, *long, *base[10:]]
    bodies = encode_cells(cells, {"BASE": known_dictionaries.know(first())})
    assert [body[0] for body in bodies] == [3] * 10 + [2] * 31 + [3] * 20
    assert [decode_body(body) for body in bodies] == [cell.body_json for cell in cells]
    assert {body[0] for body in encode_cells(cells, {})} == {CODEC_JSON_ZSTD}


def test_damaged_bodies_are_refused_and_never_shown_as_something_else(
    source: dict[int, Dictionary],
) -> None:
    source[first().dictionary_id], source[second().dictionary_id] = first(), second()
    [stored] = encoded(count=1)
    text = decode_body(stored)
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 0x55
        with suppress(DataDamaged):
            assert decode_body(bytes(damaged)) == text
    for length in range(1, len(stored)):
        with pytest.raises(DataDamaged):
            decode_body(stored[:length])
    with pytest.raises(DataDamaged):
        decode_body(stored + b"\0")
    with pytest.raises(DataDamaged):
        decode_body(stored[:1] + second().dictionary_id.to_bytes(4) + stored[5:])


def mixed(source: dict[int, Dictionary], each: int) -> tuple[list[bytes], list[bytes]]:
    """Bodies of every codec and of two dictionaries, one behind the other, and what they are."""
    source[first().dictionary_id], source[second().dictionary_id] = first(), second()
    texts = [cell.body_json for cell in rides(0, each)]
    kinds = [
        encoded(first(), each),
        encoded(second(), each),
        encode_bodies(texts),
        encode_bodies(texts, CODEC_MSGPACK_ZLIB)[: each // 100],
        [ERASED_BODY] * each,
    ]
    stored = [
        body for number in range(each) for kind in kinds for body in kind[number : number + 1]
    ]
    return stored, [decode_body(body) for body in stored]


@pytest.mark.parametrize("each", [1, 10, 400])
def test_many_bodies_of_any_codecs_are_decoded_as_each_of_them(
    source: dict[int, Dictionary], each: int
) -> None:
    stored, texts = mixed(source, each)
    forget_dictionaries()
    assert decode_bodies(stored) == texts
    assert decode_bodies(encoded(first(), each)) == [cell.body_json for cell in rides(0, each)]
    assert decode_bodies([]) == []


def test_a_damaged_body_among_many_is_refused_and_never_shown_as_something_else(
    source: dict[int, Dictionary],
) -> None:
    for many in (
        encoded(source.setdefault(first().dictionary_id, first()), 100),
        encode_bodies([cell.body_json for cell in rides(0, 100)]),
    ):
        texts = [decode_body(body) for body in many]
        for position in range(len(many[50])):
            damaged = bytearray(many[50])
            damaged[position] ^= 0x55
            with suppress(DataDamaged):
                assert decode_bodies([*many[:50], bytes(damaged), *many[51:]]) == texts
        for length in range(1, len(many[50])):
            with pytest.raises(DataDamaged):
                decode_bodies([*many[:50], many[50][:length], *many[51:]])


def test_among_many_a_body_without_a_checksum_is_not_believed(
    source: dict[int, Dictionary],
) -> None:
    source[first().dictionary_id] = first()
    many = encoded(first(), 100)
    bare = bytearray(many[50])
    bare[9] &= ~4  # the frame says now that nothing follows its content
    bare[-10] ^= 1
    with pytest.raises(DataDamaged):
        decode_bodies([*many[:50], bytes(bare), *many[51:]])


def test_threads_that_encode_and_decode_at_once_do_not_meet(source: dict[int, Dictionary]) -> None:
    source[first().dictionary_id], source[second().dictionary_id] = first(), second()
    expected = [cell.body_json for cell in rides(0, 50)]
    wrong: list[object] = []

    def work() -> None:
        for dictionary in (first(), second()) * 10:
            bodies = encode_with(
                known_dictionaries.known_dictionary(dictionary.dictionary_id), expected
            )
            if [decode_body(body) for body in bodies] != expected:
                wrong.append(dictionary)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- what a process knows -------------------------------------------------------------------------


def test_a_dictionary_that_was_never_seen_is_looked_up_once(source: dict[int, Dictionary]) -> None:
    bodies, asked = encoded(), []

    def find(dictionary_id: int) -> Dictionary | None:
        asked.append(dictionary_id)
        return first()

    known_dictionaries.add_source(find)
    try:
        readers = [
            threading.Thread(target=lambda: [decode_body(body) for body in bodies])
            for _ in range(4)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert [decode_body(body) for body in bodies] == [cell.body_json for cell in rides(0, 20)]
    finally:
        known_dictionaries.remove_source(find)
    assert asked == [first().dictionary_id]


def test_one_that_no_store_has_is_named(source: dict[int, Dictionary]) -> None:
    with pytest.raises(
        DataDamaged, match=f"names dictionary {first().name}, which no open store has"
    ):
        decode_body(encoded()[0])
    source[first().dictionary_id] = first()
    assert decode_body(encoded()[0]) == rides(0, 1)[0].body_json


def test_a_store_that_does_not_answer_is_not_taken_for_one_that_lost_it(
    source: dict[int, Dictionary],
) -> None:
    def silent(_: int) -> Dictionary | None:
        raise StorageUnavailable("away")

    known_dictionaries.add_source(silent)
    try:
        with pytest.raises(
            StorageUnavailable,
            match=f"dictionary {first().name} .* cannot be looked up just now: away",
        ):
            decode_body(encoded()[0])
        source[first().dictionary_id] = first()
        assert decode_body(encoded()[0]) == rides(0, 1)[0].body_json
    finally:
        known_dictionaries.remove_source(silent)


def test_an_id_means_one_content() -> None:
    assert id_of(first().sha256) == first().dictionary_id != second().dictionary_id
    known_dictionaries.know(first())
    twin = Dictionary("BASE", second().content, 0, 0)
    twin.__dict__["sha256"] = (
        first().sha256
    )  # two contents with one id, which nobody can make in a test's time
    with pytest.raises(ProtectData, match="two dictionaries have the id"):
        known_dictionaries.know(twin)


def test_an_exported_line_comes_back_and_a_damaged_one_is_refused() -> None:
    line = to_line(first())
    assert from_line(line) == first()
    for damaged in (
        line[:-5],
        line.replace(first().name.encode(), b"00000000"),
        b"{}",
        line.replace(b'content":"', b'content":"AAAA'),
    ):
        with pytest.raises(InvalidRequest):
            from_line(damaged)


# --- what puts take -------------------------------------------------------------------------------


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


def test_puts_take_what_is_in_use_under_their_epoch_and_nothing_that_is_lost() -> None:
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


# --- the trainer ----------------------------------------------------------------------------------


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


def test_columns_of_which_little_is_written_keep_no_other_one_out(
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


def test_a_store_holds_so_many_and_not_one_more() -> None:
    store = FakeStore()
    store.contents = dict.fromkeys(range(DICTIONARIES_MAX), first())
    with pytest.raises(InvalidRequest, match=f"has {DICTIONARIES_MAX} dictionaries"):
        publish(store, second(), 0)
    assert not store.turns
