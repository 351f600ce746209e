"""A group is one trigger's: anybody with another definition is refused with both, on every host,
until an operator has said that it is to change."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.groups.definition import (
    Definition,
    belongs_to_cellfeed,
    check_definition,
    defined_groups,
    definition_of,
    let_change,
)
from cellfeed.bridge.groups.history import Operator, history
from cellfeed.bridge.triggers.loading import load_program
from cellfeed.bridge.triggers.operate.locations import wanted_locations
from cellfeed.bridge.triggers.operate.reset import Reset
from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.bridge.triggers.trigger_group import TriggerGroup
from cellfeed.bridge.triggers.worker import check_groups, run_trigger_worker
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import GroupTaken, InvalidRequest, NotFound, Refused, Unavailable
from cellfeed.store.failpoints import (
    FailpointReached,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from tests.support.trigger_workers import LEASE_S

GROUP = "rides"
BY = Operator("somebody@here", "the column has another name now")


def bills(column: str = "BASE", *, entry: str = "") -> Trigger:
    @trigger(column=column, group=GROUP)
    def bill(row_key: UUID) -> None:
        del row_key

    marked: Trigger = bill.__cellfeed_trigger__  # type: ignore[attr-defined]
    return replace(marked, entry=entry)


def joined(
    given: Trigger, datastore: Datastore, coordinator: Coordinator, name: str
) -> TriggerGroup:
    group = TriggerGroup(given, datastore, coordinator, name, LEASE_S)
    group.keep_place()
    return group


def test_a_second_trigger_is_refused_with_both_definitions_and_the_cure(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    first = joined(bills(entry="rides"), datastore, coordinator, "a")
    stop = threading.Event()
    ends = threading.Timer(20, stop.set)  # a worker that is not refused would run for ever
    ends.start()
    with pytest.raises(GroupTaken) as refused:
        run_trigger_worker([bills("REFUND", entry="refunds")], datastore, other_host, "b", stop)
    ends.cancel()
    for told in (
        "group 'rides' belongs to another trigger",
        "bills.<locals>.bill on column BASE of entry 'rides'",
        "bills.<locals>.bill on column REFUND of entry 'refunds'",
        "cellfeed triggers redefine rides --reason",
    ):
        assert told in str(refused.value)
    assert set(first.progress()) == set(range(4)), "it keeps all of its shards"
    assert coordinator.members(GROUP) == ["a"]
    first.membership.leave()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Definition(["BASE"], "app:bill"), Definition(["REFUND"], "app:bill")),
        (Definition(["BASE"], "app:bill"), Definition(["BASE", "REFUND"], "app:bill")),
        (Definition(["BASE"], "app:bill"), Definition(["BASE"], "refunds:bill")),
        (Definition(["BASE"], "app:bill"), Definition(["BASE"], "app:refund")),
        (Definition(["BASE"], "app:bill", "a"), Definition(["BASE"], "app:bill", "b")),
    ],
)
def test_column_application_and_entry_distinguish_triggers(
    datastore: Datastore, first: Definition, second: Definition
) -> None:
    check_definition(datastore.state, GROUP, first)
    check_definition(datastore.state, GROUP, first)
    with pytest.raises(GroupTaken, match="each miss some"):
        check_definition(datastore.state, GROUP, second)
    assert definition_of(datastore.state, GROUP) == first


def test_a_program_without_an_entry_helps_one_group_only(datastore: Datastore) -> None:
    check, own = partial(check_definition, datastore.state, GROUP), Definition(["BASE"], "app:bill")
    check(own)
    check(Definition(["BASE"], "app:bill", "a"))
    check(own)
    with pytest.raises(GroupTaken):
        check(Definition(["BASE"], "app:bill", "b"))


def test_of_two_triggers_that_begin_a_group_at_once_one_owns_it(datastore: Datastore) -> None:
    state, first = datastore.state, Definition(["BASE"], "app:bill")

    def other_is_first() -> None:
        unwatch_failpoint("definition.before_recorded")
        check_definition(state, GROUP, first)

    watch_failpoint("definition.before_recorded", other_is_first)
    with pytest.raises(GroupTaken):
        check_definition(state, GROUP, Definition(["REFUND"], "app:bill"))
    assert definition_of(state, GROUP) == first


def test_once_its_workers_have_ended_a_group_takes_another_definition(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    first = joined(bills(), datastore, coordinator, "a")
    with pytest.raises(Refused, match=r"'rides' is at work \(a\): end its workers first"):
        let_change(datastore.state, other_host, GROUP, BY)
    check_definition(datastore.state, GROUP, bills().definition)  # type: ignore[arg-type]
    while not first.drain():
        pass
    before = let_change(datastore.state, other_host, GROUP, BY)
    assert before == bills().definition
    second = joined(bills("REFUND"), datastore, other_host, "b")
    assert set(second.progress()) == set(range(4))
    [deed] = history(datastore.state, GROUP)
    assert (deed.action, deed.by, deed.to) == ("redefined", BY.name, f"it was {before}")
    with pytest.raises(GroupTaken):
        check_definition(datastore.state, GROUP, before)
    second.membership.leave()


def test_a_worker_that_joins_while_the_definition_changes_does_not_use_the_old_one(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    joined(bills(), datastore, coordinator, "a").drain()
    late: list[TriggerGroup] = []

    def join_late() -> None:
        late.append(TriggerGroup(bills(), datastore, coordinator, "late", LEASE_S))
        with pytest.raises(Unavailable, match="is being changed by somebody@here"):
            late[0].keep_place()

    watch_failpoint("definition.members_looked_at", join_late)
    let_change(datastore.state, other_host, GROUP, BY)
    second = joined(bills("REFUND"), datastore, other_host, "b")
    with pytest.raises(GroupTaken):
        late[0].keep_place()
    assert late[0].progress() == {}
    assert second.progress()
    for each in (late[0], second):
        each.membership.leave()


def test_a_worker_that_slept_through_the_change_is_refused_when_it_wakes_up(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    asleep = joined(bills(), datastore, coordinator, "a")
    coordinator.leave(asleep.membership.session)  # its session has ended, and it does not know
    let_change(datastore.state, other_host, GROUP, BY)
    second = joined(bills("REFUND"), datastore, other_host, "b")
    asleep.membership.renew()
    with pytest.raises(GroupTaken):
        asleep.keep_place()
    second.membership.leave()


@pytest.mark.parametrize("step", ["definition.marked", "definition.members_looked_at"])
def test_a_change_that_is_killed_is_ended_by_asking_again(
    datastore: Datastore, coordinator: Coordinator, step: str
) -> None:
    check_definition(datastore.state, GROUP, Definition(["BASE"], "app:bill"))
    set_failpoint(step, "raise")
    with pytest.raises(FailpointReached):
        let_change(datastore.state, coordinator, GROUP, BY)
    with pytest.raises(Unavailable, match="cellfeed triggers redefine rides"):
        check_definition(datastore.state, GROUP, Definition(["BASE"], "app:bill"))
    assert let_change(datastore.state, coordinator, GROUP, BY).application == "app:bill"
    with pytest.raises(NotFound, match="any trigger may begin it"):
        let_change(datastore.state, coordinator, GROUP, BY)


def program(tmp_path: Path, text: str) -> str:
    file = tmp_path / "app.py"
    file.write_text(f"from cellfeed import trigger\n\n{text}")
    return str(file)


ONE = "@trigger(column='BASE'{more})\ndef {name}(row_key): ...\n"


def test_a_groups_name_is_the_configured_one(tmp_path: Path) -> None:
    unnamed = program(tmp_path, ONE.format(name="bill", more=""))
    assert [each.group for each in load_program(unnamed, entry="rides")] == ["rides"]
    with pytest.raises(InvalidRequest, match=r"bill has no group: give its entry .* name"):
        load_program(unnamed)
    named = program(tmp_path, ONE.format(name="bill", more=", group='mine'"))
    assert [each.group for each in load_program(named, entry="rides")] == ["mine"]
    both = ONE.format(name="bill", more="") + ONE.format(name="tell", more=", group='news'")
    assert [each.group for each in load_program(program(tmp_path, both), entry="rides")] == [
        "rides",
        "news",
    ]
    two = ONE.format(name="bill", more="") + ONE.format(name="tell", more="")
    with pytest.raises(InvalidRequest, match=r"bill, tell have no group.*triggers\.bill"):
        load_program(program(tmp_path, two), entry="rides")


@pytest.mark.parametrize("group", ["", "export/lake", "index.drivers.v1", "__gateways"])
def test_a_trigger_takes_no_name_that_is_not_for_triggers(group: str) -> None:
    with pytest.raises(InvalidRequest, match="a name that is not empty, and not that of"):
        trigger(column="BASE", group=group)


def test_a_function_without_a_name_of_its_own_is_known_by_its_call() -> None:
    class Caller:
        def __call__(self, row_key: UUID) -> None: ...

    def bill(row_key: UUID, times: int) -> None: ...

    def application(function: Any) -> str:
        definition = Trigger(function, "BASE", GROUP).definition
        assert definition is not None
        return definition.application.rpartition(".")[2]

    assert (application(Caller()), application(partial(bill, times=2))) == ("Caller", "bill")


def test_a_name_under_which_consumers_have_saved_offsets_is_no_triggers(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    place = {("trips", 0): CommittedOffset(7)}
    coordinator.commit_offsets(GROUP, place)
    with pytest.raises(GroupTaken, match=r"it is a consumer group of the gateways.*offsets set"):
        check_groups([bills()], datastore, coordinator)
    assert definition_of(datastore.state, GROUP) is None
    where = wanted_locations("0:0", GROUP, datastore, coordinator)
    Reset(datastore, coordinator, GROUP, BY).run(where)
    check_groups([bills()], datastore, coordinator)


def test_gateways_know_the_owner_of_a_group(datastore: Datastore) -> None:
    check_definition(datastore.state, "a/b c", Definition(["BASE"], "app:bill"))
    assert defined_groups(datastore.state) == {"a/b c"}
    assert [
        belongs_to_cellfeed(group)
        for group in ("export/lake", "index.by-driver.v2", "__gateways", "index.orders", "a/b c")
    ] == [True, True, True, False, False]
