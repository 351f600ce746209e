"""A trigger's group gets another name: its offsets, parked cells and other records follow, as a
whole or not at all, wherever the one that renames is killed."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from unittest.mock import patch
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.control import Control
from cellfeed.bridge.groups.definition import definition_key
from cellfeed.bridge.groups.history import Operator, history
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.groups.start import EARLIEST, LATEST, recorded_start
from cellfeed.bridge.triggers.operate.earlier_names import check_earlier, follow_earlier
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.operate.locations import wanted_locations
from cellfeed.bridge.triggers.operate.rename import rename
from cellfeed.bridge.triggers.operate.renamed import has_begun, renamed
from cellfeed.bridge.triggers.operate.reset import Reset
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import RetryPolicy, Trigger, trigger
from cellfeed.bridge.triggers.trigger_group import TriggerGroup
from cellfeed.bridge.triggers.worker import check_groups
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import GroupTaken, NotFound, Refused, Unavailable
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    watch_failpoint,
)
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.trigger_workers import (
    LEASE_S,
    all_cells,
    ends,
    open_coordination,
    put,
    working,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_looks")

OLD, NEW = "triggers.bill", "rides"
BY = Operator("somebody@here", "its entry has another name")
STEPS = ["rename.after_claims", "rename.before_decision", "rename.after_decision"]


class Bills:
    """A trigger whose code names no group. Cells with a number in ``poison`` fail."""

    def __init__(self, group: str, *, column: str = "BASE", start: str = EARLIEST) -> None:
        self.cells: list[tuple[int, int]] = []
        self.poison: set[int] = set()

        @trigger(column=column, retry=RetryPolicy(1), start=start, parked_retry_s=600)
        def bill(row_key: UUID, *, cell: Cell) -> None:
            del row_key
            if cell.body["n"] in self.poison:
                raise ValueError(f"poison {cell.body['n']}")
            self.cells.append((cell.shard, cell.added_id))

        marked: Trigger = bill.__cellfeed_trigger__  # type: ignore[attr-defined]
        self.trigger = replace(marked, group=group, entry=group)

    @classmethod
    def before(cls, **options: str) -> Bills:
        """As an earlier version runs it: by its function's name, without a definition."""
        bills = cls(OLD, **options)
        bills.trigger = replace(bills.trigger, entry="", earlier_group="")
        return bills


def location(coordinator: Coordinator, group: str) -> dict[int, int]:
    return {shard: each.offset for (_, shard), each in coordinator.fetch_offsets(group).items()}


def run_before(datastore: Datastore, coordinator: Coordinator, bills: Bills) -> None:
    """An earlier version comes to the end of the log, parks the poison, and ends."""
    with working(datastore, coordinator, bills):  # type: ignore[arg-type]
        wait_until(lambda: location(coordinator, OLD) == ends(datastore), "it came to the end")
    datastore.state.commit({definition_key(OLD): None})


def run_to_the_end(datastore: Datastore, coordinator: Coordinator, bills: Bills) -> None:
    group = bills.trigger.group
    with working(datastore, coordinator, bills):  # type: ignore[arg-type]
        wait_until(lambda: location(coordinator, group) == ends(datastore), "it comes to the end")


def test_offsets_and_parked_cells_of_an_earlier_version_follow(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    old, new = Bills.before(), Bills(NEW)
    old.poison = {3, 8}
    put(datastore, range(40))
    run_before(datastore, coordinator, old)
    parked = ParkedCells(datastore.state)
    [skipped, waits] = parked.all(OLD)
    parked.skip(OLD, skipped.cell_id, "refunded by hand")
    begun = recorded_start(datastore.state, OLD, datastore.name)
    put(datastore, range(40, 60))
    run_to_the_end(datastore, coordinator, new)
    ran = Counter(old.cells) + Counter(new.cells)
    failed = {(each.partition, each.added_id) for each in (skipped, waits)}
    assert ran == Counter(cell for cell in all_cells(datastore) if cell not in failed)
    assert [(each.group, each.cell_id) for each in parked.all()] == [(NEW, waits.cell_id)]
    assert [(each.group, each.cell_id) for each in parked.skipped()] == [(NEW, skipped.cell_id)]
    assert recorded_start(datastore.state, NEW, datastore.name) == begun
    assert (has_begun(datastore.state, OLD), coordinator.groups()) == (False, [NEW])
    assert LagReader(datastore, coordinator).groups() == [NEW]
    [deed] = history(datastore.state, NEW)
    assert (deed.action, deed.to) == ("renamed", f"{NEW} (it was {OLD})")
    parked.ask_retry(NEW)
    with working(datastore, coordinator, new):  # type: ignore[arg-type]
        wait_until(lambda: not parked.all(), "the parked cell runs under the new name")


@pytest.mark.parametrize("died", [False, True], ids=["ends", "dies"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_and_run_again_no_cell_is_lost_or_runs_twice(
    datastore: Datastore, kind: str, tree: ZooKeeperTree, step: str, died: bool
) -> None:
    old, new = Bills.before(), Bills(NEW)
    old.poison = {3}
    put(datastore, range(40))
    with closing(open_coordination(kind, datastore, tree)) as first:
        run_before(datastore, first, old)
        put(datastore, range(40, 60))
        set_failpoint(step, "raise")
        with ExitStack() as killed:
            if died:  # nothing of it is given back, as after a kill -9
                killed.enter_context(patch.object(type(first), "release", lambda *_: None))
                killed.enter_context(patch.object(Membership, "leave", lambda *_: None))
            with pytest.raises(FailpointReached):
                follow_earlier(new.trigger, datastore, first, LEASE_S)
        decided = step == "rename.after_decision"
        assert (has_begun(datastore.state, OLD), has_begun(datastore.state, NEW)) == (
            not decided,
            decided,
        )
        [parked] = ParkedCells(datastore.state).all()
        assert parked.group == (NEW if decided else OLD)
    with closing(open_coordination(kind, datastore, tree)) as second:
        run_to_the_end(datastore, second, new)
        assert second.groups() == [NEW]
    for _ in range(2):
        with closing(open_coordination(kind, datastore, tree)) as again:
            follow_earlier(new.trigger, datastore, again, LEASE_S)
            run_to_the_end(datastore, again, new)
    failed = parked.partition, parked.added_id
    ran = Counter(old.cells) + Counter(new.cells)
    assert ran == Counter(cell for cell in all_cells(datastore) if cell != failed)
    assert [each.group for each in ParkedCells(datastore.state).all()] == [NEW]
    note = renamed(datastore.state, OLD)
    assert note is not None
    assert (note.to, note.ended) == (NEW, True)


def test_a_start_at_the_latest_cell_does_not_count_for_a_group_that_follows(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    old, new = Bills.before(start=LATEST), Bills(NEW, start=LATEST)
    run_before(datastore, coordinator, old)
    put(datastore, range(20))
    # As a version that settled no starts leaves it.
    datastore.state.commit(
        {each.key: None for each in datastore.state.list("starts/")},
    )
    run_to_the_end(datastore, coordinator, new)
    assert sorted(new.cells) == sorted(all_cells(datastore))


def test_while_a_worker_of_the_earlier_version_runs_the_new_one_waits_for_its_end(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    old, new = Bills.before(), Bills(NEW)
    put(datastore, range(20))
    with working(datastore, coordinator, old, "old"):  # type: ignore[arg-type]
        wait_until(lambda: location(coordinator, OLD) == ends(datastore), "it came to the end")
        with pytest.raises(Unavailable, match=r"is at work \(old\): end its workers first"):
            follow_earlier(new.trigger, datastore, coordinator)
        assert location(coordinator, NEW) == {}
    run_to_the_end(datastore, coordinator, new)
    assert new.cells == []


def test_a_worker_of_the_earlier_version_that_starts_late_stands_aside(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    old, new = Bills.before(), Bills(NEW)
    put(datastore, range(20))
    run_before(datastore, coordinator, old)
    run_to_the_end(datastore, coordinator, new)
    late = TriggerGroup(old.trigger, datastore, coordinator, "late", LEASE_S)
    late.keep_place()
    assert late.progress() == {}
    assert "it is group 'rides' now" in str(Control(datastore.state, OLD).paused())
    late.membership.leave()


def test_a_group_last_used_by_another_trigger_waits_until_an_operator_names_its_owner(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    old, other = Bills.before(), Bills("refunds", column="REFUND")
    put(datastore, range(20))
    put(datastore, range(20), "REFUND")
    run_before(datastore, coordinator, old)
    with pytest.raises(GroupTaken) as refused:
        check_groups([other.trigger], datastore, coordinator)
    for told in (OLD, "on column BASE", "on column REFUND", "cellfeed triggers rename"):
        assert told in str(refused.value)
    rename(datastore, coordinator, OLD, NEW, BY)
    check_earlier(datastore.state, other.trigger)
    run_to_the_end(datastore, coordinator, other)
    assert len(other.cells) == 20
    new = Bills(NEW)
    run_to_the_end(datastore, coordinator, new)
    assert new.cells == []


def test_a_trigger_that_may_have_shared_a_group_leaves_no_cells_out_by_its_start(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    put(datastore, range(20))
    run_before(datastore, coordinator, Bills.before())
    run_to_the_end(datastore, coordinator, Bills(NEW))
    other = Bills("refunds", column="BASE", start=LATEST)
    with pytest.raises(GroupTaken, match=r"is 'rides' now.*offsets set refunds .* --new"):
        check_groups([other.trigger], datastore, coordinator)
    where = wanted_locations("earliest", "refunds", datastore, coordinator)
    Reset(datastore, coordinator, "refunds", BY).run(where)
    run_to_the_end(datastore, coordinator, other)
    assert sorted(other.cells) == sorted(all_cells(datastore))


def test_a_group_that_has_worked_is_no_target_of_a_rename_and_one_that_has_not_is_no_source(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    put(datastore, range(10))
    run_before(datastore, coordinator, Bills.before())
    taken = Bills("taken")
    taken.trigger = replace(taken.trigger, earlier_group="")
    run_to_the_end(datastore, coordinator, taken)
    with pytest.raises(Refused, match="'taken' has offsets of its own"):
        rename(datastore, coordinator, OLD, "taken", BY)
    with pytest.raises(NotFound, match="no trigger 'nobody' has ever run here"):
        rename(datastore, coordinator, "nobody", NEW, BY)
    rename(datastore, coordinator, OLD, NEW, BY)
    rename(datastore, coordinator, OLD, NEW, BY)
    with pytest.raises(NotFound, match="it is 'rides' now"):
        rename(datastore, coordinator, OLD, "elsewhere", BY)


def test_a_cell_that_is_skipped_while_its_group_is_renamed_is_skipped(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    old = Bills.before()
    old.poison = {3}
    put(datastore, range(10))
    run_before(datastore, coordinator, old)
    parked = ParkedCells(datastore.state)
    [cell] = parked.all(OLD)

    # After the entries were read: the commit must find that one has changed.
    watch_failpoint(
        "rename.before_decision", lambda: parked.skip(OLD, cell.cell_id, "refunded by hand")
    )
    with pytest.raises(Refused, match="changed meanwhile: nothing is renamed"):
        rename(datastore, coordinator, OLD, NEW, BY)
    clear_failpoints()
    rename(datastore, coordinator, OLD, NEW, BY)
    assert [each.group for each in parked.skipped()] == [NEW]
    assert parked.all() == []
