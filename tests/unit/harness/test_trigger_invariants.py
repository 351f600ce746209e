"""Each check of a trigger fault run finds its own violation, and nothing in a run that is well."""

from __future__ import annotations

from tests.faults.trigger_invariants import (
    Call,
    Holder,
    Sample,
    check_generations,
    check_offsets_behind_work,
    check_offsets_rise,
    check_overtaken,
    check_run_by_one,
)

A, B = 11, 22
"""Two processes."""


def sample(at_ns: int, offset: int, holder: Holder | None = None) -> Sample:
    return Sample(at_ns - 1, at_ns, {0: offset}, {} if holder is None else {0: holder}, {})


def call(added_id: int, pid: int, begun_ns: int, ended_ns: int | None) -> Call:
    return Call(0, added_id, pid, begun_ns, ended_ns)


CELLS = [(0, 0), (0, 2), (0, 3)]


def test_an_offset_behind_all_run_or_parked_cells_passes() -> None:
    calls = [call(0, A, 5, 10), call(2, A, 11, 20), call(3, A, 21, None)]
    assert check_offsets_behind_work(
        [sample(12, 2), sample(25, 3), sample(40, 4)], CELLS, calls, [(0, 3)]
    ) == {"I14": []}


def test_an_offset_past_a_cell_that_is_still_running_or_was_never_run_is_found() -> None:
    calls = [call(0, A, 5, 10), call(2, A, 11, 20)]
    found = check_offsets_behind_work([sample(12, 3), sample(50, 4)], CELLS, calls, [])["I14"]
    assert found == [
        "shard 0: the offset was 3 before cell 2 was run or parked",
        "shard 0: the offset was 4 before cell 3 was run or parked",
    ]


def test_the_first_of_several_runs_of_a_cell_counts() -> None:
    assert check_offsets_behind_work(
        [sample(12, 1)], CELLS, [call(0, A, 5, 10), call(0, B, 20, 30)], []
    ) == {"I14": []}


def test_a_falling_offset_is_found_also_when_it_was_missing_in_between() -> None:
    gone = Sample(2, 3, {}, {}, {})
    assert check_offsets_rise([sample(1, 5), gone, sample(4, 5), sample(5, 6)]) == {"I20": []}
    assert check_offsets_rise([sample(1, 5), gone, sample(4, 3)]) == {
        "I20": ["shard 0: the offset fell from 5 to 3"]
    }


def test_a_generation_has_one_owner_and_does_not_return() -> None:
    first, second, reborn = Holder(7, 1, "a"), Holder(7, 2, "b"), Holder(8, 0, "a")
    assert check_generations([sample(1, 0, first), sample(2, 0, second), sample(3, 0, reborn)]) == {
        "I20": []
    }
    assert check_generations([sample(1, 0, first), sample(2, 0, first._replace(member="b"))])[
        "I20"
    ] == ["shard 0: generation (7, 1) belonged to 'a' and to 'b'"]
    assert check_generations([sample(1, 0, second), sample(2, 0, first)])["I20"] == [
        "shard 0: its generation fell from (7, 2) to (7, 1)"
    ]


def test_a_second_run_is_found_unless_something_happened_to_one_of_both_processes() -> None:
    calls = [call(0, A, 1, 2), call(0, B, 3, 4)]
    assert check_run_by_one(calls, {A}) == {"I20": []}
    assert check_run_by_one(calls, set())["I20"] == [f"cell 0/0 was run 2 times, by [{A}, {B}]"]
    failed_first = [call(0, A, 1, None), call(0, A, 3, 4)]
    assert check_run_by_one(failed_first, set()) == {"I20": []}


def test_two_processes_in_one_shard_at_the_same_time_are_found() -> None:
    calls = [call(0, A, 1, 10), call(2, B, 5, 12)]
    assert check_run_by_one(calls, set())["I20"] == [
        f"shard 0: pid {B} began 2 while pid {A} ran 0"
    ]
    assert check_run_by_one(calls, {B}) == {"I20": []}


def test_an_overtaken_worker_may_begin_the_cell_it_was_about_to_run_and_no_other() -> None:
    before = [call(0, A, 1, 2), call(2, B, 20, 21)]
    about_to = call(2, A, 31, 32)
    assert check_overtaken([*before, about_to], A, 10, 40) == {"I20": []}
    assert check_overtaken([*before, about_to, call(3, A, 33, 34)], A, 10, 40)["I20"] == [
        f"shard 0: pid {A} began 2 cells after another had begun on it"
    ]
    back = [call(3, A, 50, 51), call(4, A, 52, 53)]
    assert check_overtaken([*before, about_to, *back], A, 10, 40) == {"I20": []}


def test_a_shard_that_was_not_taken_over_or_had_an_earlier_owner_passes() -> None:
    alone = [call(0, A, 1, 2), call(2, A, 12, 13), call(3, A, 14, 15)]
    assert check_overtaken(alone, A, 10, 40) == {"I20": []}
    given_away = [call(0, A, 1, 2), call(2, B, 5, 6), call(3, B, 20, 21)]
    assert check_overtaken(given_away, A, 10, 40) == {"I20": []}
