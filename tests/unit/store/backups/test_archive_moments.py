"""The moment up to which an archive of binlogs has everything: only one whose transactions have all
passed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cellfeed.store.backups.binlogs import copying as copying_module
from cellfeed.store.backups.binlogs.archive import BinlogArchive, Reached
from cellfeed.store.backups.binlogs.copying import Copying
from cellfeed.store.backups.binlogs.stream import Passed
from cellfeed.store.backups.sealed import PLAIN
from cellfeed.store.engines.mysql.connections import MySqlServer

BEGUN = Reached(PLAIN, "archive", -1, "", "0-1-3", 50, 50)


class Saying:
    """An archive, and its archiver, that note how far they say they are."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, int]] = []

    def say(self, reached: Reached) -> None:
        pass

    def said(self, reached: Reached) -> None:
        self.reported.append((reached.position, reached.at_us))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, str]]]:
    """The moments and positions that the master gives, one after the other."""
    answers = [(100, {"0": "0-1-5"}), (200, {"0": "0-1-7"}), (300, {"0": "0-1-7"})]
    monkeypatch.setattr(copying_module, "clock_and_position", lambda _: answers.pop(0))
    return answers


def test_a_moment_is_reached_when_the_last_transaction_before_it_has_passed(
    clock: list[tuple[int, dict[str, str]]],
) -> None:
    saying: Any = Saying()
    copying = Copying(
        cast("BinlogArchive", saying),
        BEGUN,
        cast("MySqlServer", None),
        {"0": "0-1-3"},
        None,
        saying.said,
    )
    copying.take(Passed(None, {"0": "0-1-4"}))
    copying.look()
    assert saying.reported == []
    copying.take(Passed(None, {"0": "0-1-5"}))
    copying.look()
    assert saying.reported == [("0-1-5", 100)]
    copying.look()
    assert len(saying.reported) == 1, "the transactions up to 200 have not passed"
    copying.take(Passed(None, {"0": "0-1-7"}))
    copying.look()
    assert saying.reported[1:] == [("0-1-7", 200)]
    assert clock == []
