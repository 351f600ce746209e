"""A share of a group that is behind its logs, and moves or stands."""

from __future__ import annotations

import pytest

from cellfeed.bridge.groups.follower_watch import FollowerWatch
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.store import progress
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.progress import ProgressLimits, set_limits, unready


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> FollowerWatch:
    monkeypatch.setattr(progress, "_registry", progress._Registry())
    set_limits(ProgressLimits(follower_s=1e-9))
    return FollowerWatch("bills")


def heads(*watermarks: int) -> dict[int, Head]:
    return {shard: Head(0, mark, mark, 1, 0) for shard, mark in enumerate(watermarks)}


def at(*locations: int) -> dict[int, Progress]:
    return {
        shard: Progress(location, because=f"cell {location} fails")
        for shard, location in enumerate(locations)
    }


def stands() -> str:
    return "; ".join(str(each) for each in unready())


def test_a_share_that_keeps_up_does_not_stand(watch: FollowerWatch) -> None:
    watch.look(None, at(5, 7), heads(5, 7))
    assert stands() == ""


def test_a_share_of_which_no_shard_moves_stands_and_names_the_reason(watch: FollowerWatch) -> None:
    watch.look(None, at(4, 7), heads(5, 7))
    assert "group bills is behind its log" in stands()
    assert stands().endswith("cell 4 fails")
    watch.look(None, at(5, 7), heads(5, 7))
    assert stands() == ""


def test_one_shard_that_moves_is_enough(watch: FollowerWatch) -> None:
    set_limits(ProgressLimits(follower_s=1e-9))
    watch.look(None, at(4, 1), heads(5, 9))
    standing = watch._watch._since_s
    watch.look(None, at(4, 2), heads(5, 9))
    assert watch._watch._since_s != standing
    moved = watch._watch._since_s
    watch.look(None, at(4, 2), heads(5, 9))
    assert watch._watch._since_s == moved


def test_a_share_that_stands_still_as_a_whole_stands_also_without_shards(
    watch: FollowerWatch,
) -> None:
    watch.look("stands still: its offsets were lost", {}, heads(5))
    assert "its offsets were lost" in stands()


def test_a_share_that_operators_paused_or_that_was_given_back_does_not_stand(
    watch: FollowerWatch,
) -> None:
    watch.look(None, at(4), heads(5))
    watch.pause()
    assert stands() == ""
    watch.look(None, at(4), heads(5))
    assert stands() != ""
    watch.close()
    assert stands() == ""
