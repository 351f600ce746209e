"""Releases that may work on one storage at the same time, and those that may not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import cellfeed
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from cellfeed.store.releases import KEY, OURS, Spoken, join_fleet


def fleet(datastore: Datastore) -> Spoken | None:
    entry = datastore.state.get(KEY)
    return None if entry is None else msgspec.json.decode(entry.value, type=Spoken)


def test_a_release_beside_none_or_beside_itself_changes_nothing_after_the_first(
    datastore: Datastore,
) -> None:
    assert fleet(datastore) is None
    join_fleet(datastore.state)
    assert fleet(datastore) == OURS
    entry = datastore.state.get(KEY)
    join_fleet(datastore.state)
    assert datastore.state.get(KEY) == entry


def test_releases_that_know_a_common_version_work_beside_each_other(datastore: Datastore) -> None:
    older, newer = Spoken(1, 1, "0.1.0"), Spoken(1, 2, "0.2.0")
    for release in (older, newer, older):
        join_fleet(datastore.state, release)
    assert fleet(datastore) == newer


def test_a_release_that_knows_no_common_version_is_refused_and_writes_nothing(
    datastore: Datastore,
) -> None:
    join_fleet(datastore.state, Spoken(2, 3, "0.3.0"))
    entry = datastore.state.get(KEY)
    with pytest.raises(ProtectData, match=r"release 0\.1\.0 cannot work beside .*0\.3\.0"):
        join_fleet(datastore.state, Spoken(1, 1, "0.1.0"))
    with pytest.raises(ProtectData, match=r"versions 4 to 5 .* 2 to 3"):
        join_fleet(datastore.state, Spoken(4, 5, "0.5.0"))
    assert datastore.state.get(KEY) == entry


def test_old_messages_end_with_the_first_release_that_does_not_know_them(
    datastore: Datastore,
) -> None:
    for release in (Spoken(1, 2, "0.2.0"), Spoken(2, 3, "0.3.0")):
        join_fleet(datastore.state, release)
    assert fleet(datastore) == Spoken(2, 3, "0.3.0")
    with pytest.raises(ProtectData):
        join_fleet(datastore.state, Spoken(1, 1, "0.1.0"))


def test_our_range_is_of_this_release() -> None:
    assert OURS.release == cellfeed.__version__
    assert 1 <= OURS.oldest <= OURS.newest
    page = Path(__file__).parents[3] / "docs" / "deploy" / "upgrade.md"
    assert f"messages {OURS.oldest} to {OURS.newest}" in page.read_text()
