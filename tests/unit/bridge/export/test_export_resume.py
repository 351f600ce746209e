"""Where an export continues, decided from the records of a partition: never before the records
there, never behind a missing one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.export.resume import (
    NONE_EXPORTED,
    Refusal,
    Resume,
    Saved,
    Tail,
    decide,
    exported_of,
    metadata_of,
)

END = 100
tails = st.builds(
    Tail,
    st.none() | st.integers(0, END + 5),
    st.integers(0, 5),
    st.integers(5, 200),
    foreign=st.booleans(),
)
offsets = st.none() | st.builds(
    Saved, st.integers(0, END + 5), st.none() | st.integers(-1, END + 5)
)


@given(tail=tails, saved=offsets, start=st.integers(0, 50), over=st.booleans())
def test_an_export_continues_behind_the_last_record_or_is_refused(
    tail: Tail, saved: Saved | None, start: int, over: bool
) -> None:
    decision = decide(tail, saved, start=start, log_end=END, starts_over=over)
    if isinstance(decision, Refusal):
        return
    assert 0 <= decision.location <= END
    if tail.added_id is not None:
        assert decision.location > tail.added_id
        assert decision.exported == tail.added_id < END
        # Cells behind the last record are left out only on the word of an offset that was saved
        # with that very record.
        assert decision.location == tail.added_id + 1 or saved == Saved(
            decision.location, tail.added_id
        )
    else:
        assert decision.exported == NONE_EXPORTED
        assert decision.location == start or (
            saved is not None
            and saved.location == decision.location
            and saved.exported == NONE_EXPORTED
        )
    assert not tail.foreign


@given(tail=tails, saved=offsets, start=st.integers(0, 50))
def test_a_shard_whose_exported_records_are_gone_begins_again_only_where_configured(
    tail: Tail, saved: Saved | None, start: int
) -> None:
    gone = tail.added_id is None and (
        tail.start > 0
        or (saved is not None and (saved.exported or 0) >= 0 and saved.location > start)
    )
    if gone and not tail.foreign:
        refused = decide(tail, saved, start=start, log_end=END, starts_over=False)
        assert isinstance(refused, Refusal)
        assert "on_lost_topic: start_over" in refused.because
        assert decide(tail, saved, start=start, log_end=END, starts_over=True)[:2] == (
            start,
            NONE_EXPORTED,
        )


@given(tail=tails, saved=offsets, start=st.integers(0, 50), log_start=st.integers(0, END))
def test_cells_that_were_trimmed_before_their_export_are_passed_over_only_if_configured(
    tail: Tail, saved: Saved | None, start: int, log_start: int
) -> None:
    untrimmed = decide(tail, saved, start=start, log_end=END, starts_over=False)
    refused = decide(tail, saved, start=start, log_end=END, starts_over=False, log_start=log_start)
    skipped = decide(
        tail,
        saved,
        start=start,
        log_end=END,
        starts_over=False,
        log_start=log_start,
        skips_trimmed=True,
    )
    if isinstance(untrimmed, Refusal) or untrimmed.location >= log_start:
        assert refused == skipped == untrimmed
        return
    assert isinstance(refused, Refusal)
    assert f"cells {untrimmed.location} to {log_start - 1} were trimmed" in refused.because
    assert not isinstance(skipped, Refusal)
    assert skipped[:2] == (log_start, untrimmed.exported)
    assert "continues without them" in skipped[2]


def test_an_empty_partition_is_begun_at_the_start_or_behind_cells_that_were_only_left_out() -> None:
    empty = Tail(None, 0, 3)  # marks of aborted transactions
    assert decide(empty, None, start=7, log_end=END, starts_over=False) == Resume(7, NONE_EXPORTED)
    assert decide(
        empty, Saved(60, NONE_EXPORTED), start=7, log_end=END, starts_over=False
    ) == Resume(60, NONE_EXPORTED)


def test_cells_left_out_behind_the_last_record_are_not_read_again() -> None:
    assert decide(
        Tail(40, 0, 90), Saved(60, 40), start=0, log_end=END, starts_over=False
    ) == Resume(60, 40)


def test_an_offset_behind_ahead_or_missing_is_mended_with_words() -> None:
    for saved, says in (
        (Saved(12, 11), "12 was saved"),
        (Saved(90, None), "90 was saved"),
        (Saved(90, 89), "90 was saved"),
        (None, "nothing was saved"),
    ):
        decision = decide(Tail(40, 0, 90), saved, start=0, log_end=END, starts_over=False)
        assert decision[:2] == (41, 40)
        assert isinstance(decision, Resume)
        assert says in decision.differs


def test_the_export_of_another_log_is_refused() -> None:
    decision = decide(Tail(END, 0, 300), None, start=0, log_end=END, starts_over=True)
    assert isinstance(decision, Refusal)
    assert "another log" in decision.because


@given(st.integers(-1, 10**12))
def test_the_last_record_is_saved_beside_the_offset(exported: int) -> None:
    assert exported_of(metadata_of(exported)) == exported
    assert exported_of("") is None
    assert exported_of("a consumer's own words") is None
