"""The checks of the client grid find mistakes."""

from __future__ import annotations

from cellfeed.bridge.coordination.contract import CommittedOffset
from tests.clients.grid.gateway_death import check
from tests.clients.grid.running_client import Record
from tests.clients.grid.scenarios import differences
from tests.support.trips_log import Received

LOG = {(0, 0): "a", (0, 1): "b", (0, 2): "c"}
RECORDS = [Record(0, offset, key, "{}") for (_, offset), key in LOG.items()]
TO_THE_END = {("trips.BASE", 0): CommittedOffset(3)}


def test_a_member_that_finished_passes_also_with_repeated_records() -> None:
    assert check(LOG, RECORDS[:2] + RECORDS, {0: 3}, TO_THE_END, []) == []


def test_a_record_that_was_skipped_lost_or_another_one_is_found() -> None:
    assert (
        "2 came after 0" in check(LOG, [RECORDS[0], RECORDS[2], RECORDS[1]], {}, TO_THE_END, [])[0]
    )
    assert "1 records never came" in check(LOG, RECORDS[:2], {}, TO_THE_END, [])[0]
    assert (
        "offset 1 has key x"
        in check(LOG, [RECORDS[0], RECORDS[1]._replace(key="x"), RECORDS[2]], {}, TO_THE_END, [])[0]
    )


def test_a_commit_that_was_lost_or_fell_is_found() -> None:
    assert check(LOG, RECORDS, {0: 3}, {("trips.BASE", 0): CommittedOffset(2)}, []) == [
        "partition 0: 3 was acknowledged, 2 is committed"
    ]
    assert check(LOG, RECORDS, {0: 3}, TO_THE_END, ["it fell"]) == ["it fell"]


def test_the_grid_check_compares_read_records_one_by_one() -> None:
    expected = [
        Received(each.partition, each.offset, 0, (each.key or "").encode(), b"{}")
        for each in RECORDS
    ]
    assert differences(RECORDS, expected) == []
    assert "1 records did not come" in differences(RECORDS[1:], expected)[0]
    assert (
        "not those of the log"
        in differences([*RECORDS[:2], RECORDS[2]._replace(value="x")], expected)[0]
    )
    assert differences([*RECORDS, RECORDS[0]], expected) == [
        "1 records came more than once",
        "partition 0: 0 came after 2",
    ]
