"""State entries, the change token and the history; engines that are closed, forked or unlike their
storage (E11 to E13, E25)."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import ProtectData, StorageUnavailable
from tests.support.engine_steps import EngineMaker, cell


def test_e11_state_writes_all_entries_or_none_and_only_when_versions_match(engine: Engine) -> None:
    state = engine.state
    first = state.commit({"a/1": b"x", "a/2": b"y"}, expect={"a/1": None})
    assert first is not None
    assert state.commit({"a/1": b"z"}, expect={"a/1": None}) is None
    assert state.commit({"a/1": b"z", "a/3": b"q"}, expect={"a/2": first + 1}) is None
    assert [(e.key, e.value) for e in state.list("a/")] == [("a/1", b"x"), ("a/2", b"y")]
    second = state.commit({"a/1": None}, expect={"a/1": first})
    assert second is not None
    assert second > first
    assert state.get("a/1") is None
    third = state.commit({"a/1": b"x"})
    assert third is not None
    assert third > second
    entry = state.get("a/1")
    assert entry is not None
    assert entry.version == third


def test_e11_state_keys_are_listed_by_prefix_only(engine: Engine) -> None:
    engine.state.commit({"ab": b"", "a/": b"", "a/é": b"", "b": b"", "a/\U0001f695": b""})
    assert [e.key for e in engine.state.list("a/")] == ["a/", "a/é", "a/\U0001f695"]


def test_e11_one_of_many_racing_writers_wins_each_version(open_engine: EngineMaker) -> None:
    states = [open_engine().state for _ in range(3)]
    states[0].commit({"counter": b"0"})

    def raise_it(state: StateTable) -> None:
        done = 0
        while done < 20:
            entry = state.get("counter")
            assert entry is not None
            if state.commit(
                {"counter": str(int(entry.value) + 1).encode()}, expect={"counter": entry.version}
            ):
                done += 1

    threads = [threading.Thread(target=raise_it, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entry = states[0].get("counter")
    assert entry is not None
    assert entry.value == b"60"


def test_the_change_token_differs_after_a_commit_of_any_connection_and_only_then(
    open_engine: EngineMaker,
) -> None:
    mine, other = open_engine(), open_engine()
    before = mine.change_token()
    assert mine.change_token() == before
    mine.put([cell(1)])
    after_own = mine.change_token()
    assert after_own != before
    other.put([cell(2)])
    assert mine.change_token() != after_own


def test_e12_a_closed_engine_raises_that_error(open_engine: EngineMaker) -> None:
    engine = open_engine()
    engine.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        engine.put([cell(1)])
    with pytest.raises(StorageUnavailable, match="closed"):
        engine.heads()


def test_e12_a_forked_child_is_refused_and_leaves_the_parents_connections_alone(
    engine: Engine,
) -> None:
    engine.put([cell(1)])
    engine.state.commit({"a": b"1"})
    calls: list[Callable[[], object]] = [
        lambda: engine.put([cell(2)]),
        lambda: engine.get([cell(1).triple]),
        lambda: engine.scan(0, 0, 10),
        engine.heads,
        engine.change_token,
        lambda: engine.state.get("a"),
        lambda: engine.state.commit({"a": b"2"}),
    ]
    pid = os.fork()
    if pid == 0:
        try:
            for call in calls:
                with pytest.raises(StorageUnavailable, match="forked"):
                    call()
            engine.close()
            gc.collect()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"the child: {error!r}\n".encode())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert engine.put([cell(1), cell(2)])[0].outcome is Outcome.EXISTS
    assert sum(head.next_added_id for head in engine.heads().values()) == 2
    entry = engine.state.get("a")
    assert entry is not None
    assert entry.value == b"1"


def test_e25_a_history_has_one_identity_for_every_opening(
    open_engine: EngineMaker, kind: str
) -> None:
    identity = open_engine().history.history_id
    if kind == "mysql":
        assert (
            identity == ""
        )  # a server has the identity of its cluster: tests/integration/cli/test_histories.py
        return
    assert (len(identity), int(identity, 16) > 0) == (32, True)
    assert open_engine().history.history_id == identity


def test_e13_storage_of_another_shape_is_refused(open_engine: EngineMaker, kind: str) -> None:
    open_engine().close()
    with pytest.raises(ProtectData, match="4 shards"):
        open_engine(shards=8)
    if kind == "sqlite":  # a file holds one datastore; a server may hold several
        with pytest.raises(ProtectData, match="'trips'"):
            open_engine(datastore="rides")
    open_engine().put([cell(1)])
