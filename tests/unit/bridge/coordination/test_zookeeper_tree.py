"""The ZooKeeper in memory acts as a real one does where coordination relies on it; the contract
suite of coordination runs over it, too."""

from __future__ import annotations

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from cellfeed.bridge.coordination.zookeeper.client import (
    Check,
    Create,
    Delete,
    Operation,
    Set,
    TransactionRefused,
)
from cellfeed.store.errors import Unavailable
from cellfeed.testing.zookeeper_tree import TreeClient, ZooKeeperTree
from tests.support.waiting import wait_until


@pytest.fixture
def tree() -> ZooKeeperTree:
    return ZooKeeperTree()


@pytest.fixture
def client(tree: ZooKeeperTree) -> TreeClient:
    return tree.begin(10)


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (Create("/no/parent"), NoNodeError),
        (Create("/there"), NodeExistsError),
        (Set("/there", b"x", 7), BadVersionError),
        (Set("/missing", b"x"), NoNodeError),
        (Check("/there", 1), BadVersionError),
        (Delete("/there"), NotEmptyError),
        (Delete("/missing"), NoNodeError),
    ],
)
def test_a_refused_transaction_has_no_effect(
    client: TreeClient, refused: Operation, error: type[Exception]
) -> None:
    client.ensure("/there/child")
    with pytest.raises(TransactionRefused) as told:
        client.commit(
            [
                Create("/first"),
                Set("/there", b"changed"),
                Delete("/there/child"),
                Create("/there/child"),
                Set("/there", b"", 1),
                refused,
            ]
        )
    assert (told.value.operation, type(told.value.error)) == (refused, error)
    assert client.get_many(["/first"]) == [None]
    assert client.get("/there")[0] == b""  # type: ignore[index]


def test_all_of_a_transaction_has_one_transaction_number_and_versions_rise(
    client: TreeClient,
) -> None:
    client.commit([Create("/a", b"1"), Create("/b", b"2")])
    first, second = client.stats(["/a", "/b"])
    assert first is not None
    assert second is not None
    assert first.czxid == first.mzxid == second.mzxid
    [changed] = client.commit([Set("/a", b"3", 0)])
    assert (changed.version, changed.czxid) == (1, first.czxid)
    assert changed.mzxid > first.mzxid


def test_sequential_names_are_never_used_twice(client: TreeClient) -> None:
    client.ensure("/queue")
    made = [client.commit([Create("/queue/entry-", sequence=True)])[0] for _ in range(3)]
    client.discard(made)
    made += client.commit([Create("/queue/entry-", sequence=True)])
    assert made == sorted(set(made))


def test_ephemeral_znodes_end_with_their_session(tree: ZooKeeperTree, client: TreeClient) -> None:
    ending, paused = tree.begin(10), tree.begin(0.05)
    for each, path in ((client, "/stays"), (ending, "/closed"), (paused, "/expired")):
        each.commit([Create(path, ephemeral=True)])
    ending.close()
    paused.fall_silent()
    wait_until(lambda: client.children("/") == ["stays"], "the session that is silent has run out")
    before = paused.session_id
    paused.speak_again()
    assert paused.children("/") == ["stays"]
    assert paused.session_id != before


def test_a_process_that_vanishes_ends_no_session_at_once(
    tree: ZooKeeperTree, client: TreeClient
) -> None:
    gone = tree.begin(10)
    gone.commit([Create("/member", ephemeral=True)])
    gone.abandon()
    gone.close()
    assert client.children("/") == ["member"]


def test_while_zookeeper_is_away_every_call_fails_and_no_session_runs_out(
    tree: ZooKeeperTree, client: TreeClient
) -> None:
    client.commit([Create("/member", ephemeral=True)])
    tree.go_away()
    for call in (lambda: client.get("/member"), lambda: client.commit([Delete("/member")])):
        with pytest.raises(Unavailable):
            call()
    assert tree.refused == 2
    tree.come_back()
    assert client.children("/") == ["member"]


def test_a_wiped_one_is_empty(tree: ZooKeeperTree, client: TreeClient) -> None:
    client.commit([Create("/a"), Create("/b", ephemeral=True)])
    tree.wipe()
    assert client.children("/") == []
