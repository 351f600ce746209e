"""Pausing: workers stop after the cell under way and stay members; the first reason stands;
everything is in the history."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from collections import Counter

import msgspec
import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.control import OPERATOR, Control, Pause, forget, notify_workers, poke_of
from cellfeed.bridge.groups.history import (
    REASON_CHARACTERS_MAX,
    Deed,
    Operator,
    entry,
    history,
    operator,
)
from cellfeed.bridge.groups.progress_records import worker_record
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.trigger_group import TriggerGroup
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import InvalidRequest, NotFound, Refused
from cellfeed.store.wakeups.datagrams import Listener, poke_once
from tests.support.trigger_workers import (
    GROUP,
    Recorder,
    all_cells,
    ends,
    offsets,
    put,
    working,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_looks")

BY = Operator("somebody@here", "a look at the fares")


def deeds(state: StateTable) -> list[tuple[str, str, str]]:
    return [(deed.action, deed.by, deed.because) for deed in history(state, GROUP)]


def stands_still(datastore: Datastore) -> bool:
    found = datastore.state.get(f"triggers/{GROUP}/workers/w")
    return found is not None and worker_record(found).stands_still != ""


def test_a_paused_worker_ends_the_cell_under_way_and_runs_no_other_until_it_is_resumed(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder, begun, go_on = Recorder(), threading.Event(), threading.Event()

    def wait(_: object) -> None:
        begun.set()
        assert go_on.wait(30)

    recorder.before = wait
    control = Control(datastore.state, GROUP)
    try:
        with working(datastore, coordinator, recorder):
            put(datastore, range(40))
            assert begun.wait(30)
            wait_until(lambda: len(coordinator.owners(GROUP, "trips")) == 4, "it has the shards")
            control.pause(BY)
            put(datastore, range(40, 60))
            wait_until(lambda: stands_still(datastore), "it has heard")
            go_on.set()
            wait_until(lambda: coordinator.owners(GROUP, "trips") == {}, "it has stood aside")
            # One cell was under way on each shard at most, and its offset is behind it.
            assert Counter(recorder.cells) == Counter(
                [
                    cell
                    for cell in all_cells(datastore)
                    if cell[1] < offsets(coordinator).get(cell[0], 0)
                ]
            )
            ran = len(recorder.cells)
            assert coordinator.members(GROUP) == ["w"]
            control.resume(Operator("another@there", "seen"))
            wait_until(lambda: offsets(coordinator) == ends(datastore), "it continues")
    finally:
        go_on.set()
    assert ran < 60
    assert Counter(recorder.cells) == Counter(all_cells(datastore))
    assert deeds(datastore.state) == [
        ("paused", BY.name, BY.because),
        ("resumed", "another@there", "seen"),
    ]


def test_a_worker_that_comes_while_the_group_is_paused_waits_too(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder, control = Recorder(), Control(datastore.state, GROUP)
    put(datastore, range(10))
    control.pause(BY)
    with working(datastore, coordinator, recorder):
        wait_until(
            lambda: datastore.state.get(f"triggers/{GROUP}/workers/w") is not None,
            "it names itself",
        )
        assert coordinator.owners(GROUP, "trips") == {}
        control.resume(BY)
        wait_until(lambda: len(recorder.cells) == 10, "it works")


def test_the_first_reason_stands_and_a_group_that_is_not_paused_is_not_resumed(
    datastore: Datastore,
) -> None:
    control = Control(datastore.state, GROUP)
    control.pause(BY)
    with pytest.raises(
        Refused, match=r"paused by somebody@here since 20.* because a look at the fares"
    ):
        control.pause(Operator("another@there", "also"))
    assert str(control.resume(BY)).startswith("paused by somebody@here since ")
    with pytest.raises(NotFound, match="is not paused"):
        control.resume(BY)
    assert [action for action, _, _ in deeds(datastore.state)] == ["paused", "resumed"]


def test_a_reset_counts_only_as_long_as_the_member_that_does_it_lives(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    control, member = Control(datastore.state, GROUP), f"{OPERATOR}somebody"
    session = coordinator.join(GROUP, member, 10)
    datastore.state.commit(
        {control.reset_key: msgspec.json.encode(Pause("somebody@here", "why", 1, member))}
    )
    assert str(control.current_pause(coordinator)).startswith("reset is under way by somebody@here")
    coordinator.leave(session)
    assert control.current_pause(coordinator) is None


def test_an_operator_who_resets_joins_as_a_member_that_gets_no_shards(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    group = TriggerGroup(Recorder().trigger, datastore, coordinator, "w", 10)
    session = coordinator.join(GROUP, f"{OPERATOR}somebody", 10)
    group.keep_place()
    assert coordinator.assignment(GROUP) == dict.fromkeys(range(4), "w")
    coordinator.leave(session)
    group.drain()


def test_a_poke_names_the_requested_group_and_a_commit_names_no_group(
    datastore: Datastore,
) -> None:
    listener = Listener(datastore.state, "test")
    try:
        poke_once(datastore.state)
        assert listener.wait(30)
        assert listener.pokes == set()
        notify_workers(datastore.state, GROUP)
        assert listener.wait(30)
        assert listener.pokes == {poke_of(GROUP)} != {poke_of("another")}
    finally:
        listener.close()


def test_a_forgotten_trigger_is_no_longer_listed_and_continues_where_it_was_should_it_return(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    recorder, reader = Recorder(), LagReader(datastore, coordinator)
    with working(datastore, coordinator, recorder):
        put(datastore, range(10))
        wait_until(lambda: offsets(coordinator) == ends(datastore), "it works")
        with pytest.raises(Refused, match=r"is at work \(w\)"):
            forget(datastore.state, coordinator, GROUP, BY)
    assert reader.groups() == [GROUP]
    forget(datastore.state, coordinator, GROUP, BY)
    assert reader.groups() == []
    with pytest.raises(NotFound, match="has ever run here"):
        forget(datastore.state, coordinator, GROUP, BY)
    with working(datastore, coordinator, recorder):
        put(datastore, range(10, 20))
        wait_until(lambda: offsets(coordinator) == ends(datastore), "it is back")
        wait_until(lambda: reader.groups() == [GROUP], "and listed")
    assert Counter(recorder.cells) == Counter(all_cells(datastore))
    assert deeds(datastore.state) == [("forgotten", BY.name, BY.because)]


def test_the_operator_is_the_user_of_the_system_in_any_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("USER", "nobody-else")
    monkeypatch.setenv("LOGNAME", "nobody-else")
    by = operator("  because\nof  it ")
    assert by == Operator(
        f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}", "because of it"
    )
    for empty in ("", " \n", "x" * (REASON_CHARACTERS_MAX + 1)):
        with pytest.raises(InvalidRequest, match="say why"):
            operator(empty)


def test_the_history_is_in_order_and_every_group_has_its_own(datastore: Datastore) -> None:
    for at_us, group in ((3, "a/b"), (1, "a/b"), (2, "a")):
        datastore.state.commit(
            entry(
                Deed(
                    group=group,
                    action="reset",
                    by="me",
                    because="why",
                    at_us=at_us,
                    before={1: None},
                    after={1: 2},
                )
            )
        )
    assert [deed.at_us for deed in history(datastore.state, "a/b")] == [1, 3]
    [deed] = history(datastore.state, "a")
    assert (deed.before, deed.after) == ({1: None}, {1: 2})
