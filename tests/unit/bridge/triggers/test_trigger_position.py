"""Where a shard's worker has come to, saved or kept: when it asks whether the shard is still its
own, and how it continues without an answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.triggers.shard import position as module
from cellfeed.bridge.triggers.shard.position import SAVE_EVERY_S, Position
from cellfeed.store.errors import OutcomeUnknown, StaleWriter, StorageUnavailable, Unavailable

CLAIM = Claim("rides", "trips", 3, "a", 7)
AWAY, OPEN, STALE = StorageUnavailable("away"), OutcomeUnknown("cut off"), StaleWriter("gone")


class Shard:
    """A shard whose coordination gives the answers of a test, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_kept_offset: bool = True) -> None:
        self.now_s, self.is_sure, self.is_awaited = 1_000.0, True, False
        self.error: Exception | None = None
        self.commits: list[tuple[int | None, list[Claim], Mapping[str, Any] | None]] = []
        self.kept: list[tuple[Any, ...]] = []
        self.checks = 0
        self.progress = Progress()
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        context = SimpleNamespace(
            trigger=SimpleNamespace(group="rides"),
            of_trigger=SimpleNamespace(
                offsets=SimpleNamespace(commit_offsets=self._commit),
                store=SimpleNamespace(
                    awaited=SimpleNamespace(is_awaited=lambda group: self.is_awaited and group)
                ),
                membership=SimpleNamespace(is_sure=lambda epoch: self.is_sure and epoch == 5),
            ),
            claim=CLAIM,
            epoch=5,
            saved=10,
            kept_offset=SimpleNamespace(
                start=10, keep=self._keep, check=self._check, saved=lambda *_: None
            )
            if has_kept_offset
            else None,
            progress=self.progress,
        )
        self.position = Position(cast("Any", context))

    def _commit(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], CommittedOffset],
        *,
        claims: list[Claim],
        entries: Mapping[str, Any] | None = None,
    ) -> None:
        assert group == "rides"
        found = offsets.get(("trips", 3))
        self.commits.append((found.offset if found else None, claims, entries))
        if self.error is not None:
            raise self.error

    def _keep(self, location: int, entries: Any = None, failed: Any = None) -> None:
        self.kept.append((location, entries, failed))

    def _check(self) -> None:
        self.checks += 1


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> Shard:
    return Shard(monkeypatch)


def test_while_the_lease_is_sure_no_storage_is_asked(shard: Shard) -> None:
    shard.progress.location = 12
    shard.position.make_sure()
    assert shard.commits == []


def test_after_a_pause_the_coordination_is_asked_and_the_offset_saved_with_the_question(
    shard: Shard,
) -> None:
    shard.is_sure = False
    shard.position.make_sure()
    shard.progress.location = 12
    shard.position.make_sure()
    assert [(offset, claims) for offset, claims, _ in shard.commits] == [
        (None, [CLAIM]),
        (12, [CLAIM]),
    ]
    assert shard.position.is_saved


def test_a_shard_that_is_anothers_is_not_worked_on(shard: Shard) -> None:
    shard.is_sure, shard.error, shard.progress.location = False, STALE, 12
    with pytest.raises(StaleWriter):
        shard.position.make_sure()
    assert not shard.position.is_saved


@pytest.mark.parametrize(
    ("error", "location", "kept", "checks"),
    [(OPEN, 12, [12], 0), (AWAY, 12, [], 1), (OPEN, 10, [], 1)],
)
def test_while_the_coordination_is_away_the_datastore_is_asked(
    shard: Shard, error: Unavailable, location: int, kept: list[int], checks: int
) -> None:
    """An offset that may yet be saved is kept as well, or the next owner would believe it."""
    shard.is_sure, shard.error, shard.progress.location = False, error, location
    shard.position.make_sure()
    assert [each[0] for each in shard.kept] == kept
    assert shard.checks == checks


def test_without_an_offset_in_the_datastore_a_shard_waits_for_the_coordination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard = Shard(monkeypatch, has_kept_offset=False)
    shard.is_sure, shard.error, shard.progress.location = False, AWAY, 12
    with pytest.raises(Unavailable):
        shard.position.make_sure()
    with pytest.raises(Unavailable):
        shard.position.save()
    assert shard.position.is_away
    shard.error = None
    shard.position.save_what_failed()
    assert shard.position.is_saved
    assert not shard.position.is_away


def test_an_offset_is_saved_once_it_moved_and_not_at_every_cell(shard: Shard) -> None:
    shard.position.save()
    assert shard.commits == []
    shard.progress.location = 12
    shard.now_s += SAVE_EVERY_S / 2
    shard.position.save_if_due()
    assert shard.commits == []
    shard.now_s += SAVE_EVERY_S
    shard.position.save_if_due()
    assert [offset for offset, _, _ in shard.commits] == [12]
    assert shard.progress.because == "came to 11"
    shard.progress.location = 13
    shard.position.save_if_due()
    assert len(shard.commits) == 1
    shard.position.save_what_failed()
    assert len(shard.commits) == 1, "none failed"


def test_an_offset_that_could_not_be_saved_is_kept_and_tried_again_later(shard: Shard) -> None:
    shard.progress.location, shard.error = 12, AWAY
    shard.position.save()
    assert shard.kept == [(12, {}, AWAY)]
    assert shard.position.is_away
    assert not shard.position.is_saved
    assert "kept here until it can be saved: away" in shard.progress.because
    assert not shard.position.parking_is_unanswered
    assert not shard.position.is_due()
    shard.now_s += 0.6
    assert shard.position.is_due()
    shard.error = None
    shard.position.save()
    assert not shard.position.is_due()
    assert not shard.position.is_away


@pytest.mark.parametrize(
    ("entries", "error", "unanswered"),
    [({"parked": b"x"}, OPEN, True), ({"parked": b"x"}, AWAY, False), ({}, OPEN, False)],
)
def test_entries_that_may_be_on_their_way_are_remembered(
    shard: Shard, entries: dict[str, bytes | None], error: Unavailable, unanswered: bool
) -> None:
    shard.error = error
    shard.position.save_with(12, entries)
    assert shard.kept == [(12, entries, error)]
    assert shard.position.parking_is_unanswered is unanswered


def test_a_shard_with_a_waiting_caller_saves_each_step_but_not_each_cell(shard: Shard) -> None:
    shard.is_awaited = True
    shard.progress.location = 12
    assert shard.position.is_due(lazily=True)
    shard.position.save_if_due()
    assert shard.commits == []
    shard.now_s += 0.02
    shard.position.save_if_due()
    assert [offset for offset, *_ in shard.commits] == [12]


def test_an_idle_shard_saves_lazily_after_the_time_between_two_saves(shard: Shard) -> None:
    shard.progress.location = 12
    assert shard.position.is_due()
    assert not shard.position.is_due(lazily=True)
    shard.now_s += SAVE_EVERY_S + 0.01
    assert shard.position.is_due(lazily=True)
    shard.position.save()
    assert not shard.position.is_due(lazily=True)
