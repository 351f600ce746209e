"""A real ZooKeeper that has lost offsets, or has those of another history."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.gateway.groups.slot_owners import why_stopped
from cellfeed.cli import offsets
from cellfeed.cli.status import status
from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.model import Config, DatastoreConfig
from cellfeed.instance.config_file import write_config
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidLocation, NotFound, ProtectData, Refused
from cellfeed.store.histories import NO_HISTORY, History, new_history
from tests.support.local_zookeeper import ZooKeeper

pytestmark = pytest.mark.integration


def test_a_chroot_belongs_to_one_history_and_to_the_first_restore_of_it(
    zookeeper_server: ZooKeeper, chroot: str, tmp_path: Path
) -> None:
    """Stores of one name: staging's in production's configuration, and one backup that was restored
    twice."""
    first = new_history()
    one, other, foreign = new_history(first), new_history(first), new_history()
    url = f"{zookeeper_server.url}{chroot}"

    def joins(name: str, history: History) -> None:
        with (
            Datastore.open_embedded(tmp_path / name, "trips", 4) as store,
            closing(open_coordinator(url, store.state, lambda: history)) as coordinator,
        ):
            coordinator.join("billing", name, 10)

    def is_refused(name: str, history: History, owner: History) -> None:
        with pytest.raises(ProtectData) as refused:
            joins(name, history)
        assert owner.history_id in str(refused.value)
        assert history.history_id in str(refused.value)
        assert "chroot of its own" in str(refused.value)

    joins("first", NO_HISTORY)  # from before there were histories
    joins("first", first)  # adopts it, once
    joins("first", first)
    is_refused("foreign", foreign, first)
    joins("one", one)
    is_refused("other", other, one)
    is_refused("first", first, one)
    joins("one", one)


def test_offsets_in_the_chroot_of_another_history_are_neither_read_nor_written(
    zookeeper_server: ZooKeeper, chroot: str, datastore: Datastore, by_hand: KazooClient
) -> None:
    """Also without a claim, as the gateway and `cellfeed offsets` do; and by the store that was
    backed up, at a connection on which the chroot was its own."""
    first = new_history()
    restored, foreign = new_history(first), new_history()
    url, trips = f"{zookeeper_server.url}{chroot}", ("trips", 0)

    def uses(history: History) -> Coordinator:
        return open_coordinator(url, datastore.state, lambda: history)

    def is_refused(coordinator: Coordinator, history: History, owner: History) -> None:
        calls = (
            lambda: coordinator.fetch_offsets("g"),
            lambda: coordinator.fetch_offsets("g", [trips]),
            lambda: coordinator.groups(),
            lambda: coordinator.commit_offsets("g", {trips: CommittedOffset(1)}),
            lambda: coordinator.commit_offsets("new", {trips: CommittedOffset(1)}),
            lambda: coordinator.delete_offsets("g", [trips]),
            lambda: coordinator.delete_offsets("g"),
        )
        for call in calls:
            with pytest.raises(ProtectData, match=owner.history_id) as refused:
                call()
            assert history.history_id in str(refused.value)
        assert not by_hand.exists(f"{chroot}/consumers/new")

    with closing(uses(first)) as owner:
        owner.commit_offsets("g", {trips: CommittedOffset(7)})
        with closing(uses(foreign)) as other:
            is_refused(other, foreign, first)
        assert owner.fetch_offsets("g")[trips].offset == 7
        claim = owner.claim(owner.join("t", "a", 10), "trips", [0])[0]
        with closing(uses(restored)) as after:
            assert after.fetch_offsets("g")[trips].offset == 7
            with pytest.raises(ProtectData, match=restored.history_id):
                owner.commit_offsets("t", {trips: CommittedOffset(1)}, claims=[claim])
            is_refused(owner, first, restored)
            assert after.fetch_offsets("t") == {}
            assert after.fetch_offsets("g")[trips].offset == 7


def test_a_store_that_was_restored_twice_in_a_row_has_the_chroot_of_its_origin(
    zookeeper_server: ZooKeeper, chroot: str, datastore: Datastore
) -> None:
    first = new_history()
    between = new_history(first)  # never at work in this chroot
    last = new_history(between)
    url = f"{zookeeper_server.url}{chroot}"

    def uses(history: History) -> Coordinator:
        return open_coordinator(url, datastore.state, lambda: history)

    for history in (first, last):
        with closing(uses(history)) as opened:
            opened.commit_offsets("g", {("trips", 0): CommittedOffset(1)})
    for history in (first, between):
        with (
            closing(uses(history)) as opened,
            pytest.raises(ProtectData, match=last.history_id),
        ):
            opened.fetch_offsets("g")


def test_offsets_that_were_lost_are_shown_and_set_by_the_command_line(
    zookeeper_server: ZooKeeper, tmp_path: Path, chroot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{zookeeper_server.url}{chroot}"
    config = Config(datastore=DatastoreConfig(shards=2), coordination=url)
    write_config(config, tmp_path / "config.yaml")
    with open_datastore(config, tmp_path) as datastore:
        datastore.put_cells([(uuid4(), "BASE", 1, {"n": n}) for n in range(20)])
        ends = {str(shard): head.watermark for shard, head in datastore.heads().items()}
        # The group worked while coordination was in the store.
        StoreCoordinator(datastore.state).commit_offsets(
            "billing", {("trips", 0): CommittedOffset(1), ("trips", 1): CommittedOffset(2)}
        )

    def lines(call: Callable[[], None]) -> dict[str, Any]:
        capsys.readouterr()
        call()
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    shown = lines(lambda: offsets.show("billing", run_dir=tmp_path, as_json=True))
    assert shown["offsets"] == {"0": None, "1": None}
    assert shown["kept"] == {"0": 1, "1": 2}
    assert "another memory" in shown["lost_because"]
    assert lines(lambda: offsets.set_offsets("billing", "kept", run_dir=tmp_path, as_json=True))[
        "offsets"
    ] == {"0": 1, "1": 2}
    shown = lines(lambda: offsets.show("billing", run_dir=tmp_path, as_json=True))
    assert (shown["offsets"], shown["lost_because"]) == ({"0": 1, "1": 2}, None)
    assert lines(lambda: offsets.set_offsets("billing", "1:0", run_dir=tmp_path, as_json=True))[
        "offsets"
    ] == {"0": 1, "1": 0}
    assert (
        lines(lambda: offsets.set_offsets("billing", "latest", run_dir=tmp_path, as_json=True))[
            "offsets"
        ]
        == ends
    )
    assert lines(
        lambda: offsets.set_offsets("billing", "earliest", run_dir=tmp_path, as_json=True)
    )["offsets"] == {"0": 0, "1": 0}
    assert lines(lambda: status(tmp_path, True))["coordination_away"] is None
    for wrong in ("1", "x:1", "1:999999", "7:0", "newest"):
        with pytest.raises(InvalidLocation if wrong != "7:0" else NotFound):
            offsets.set_offsets("billing", wrong, run_dir=tmp_path, as_json=True)
    with (
        open_datastore(config, tmp_path) as datastore,
        closing(open_coordinator(url, datastore.state)) as coordinator,
    ):
        coordinator.join("billing", "a", 10)
        with pytest.raises(Refused, match="is at work"):
            offsets.set_offsets("billing", "latest", run_dir=tmp_path, as_json=True)
    write_config(
        Config(
            datastore=DatastoreConfig(shards=2),
            coordination="zookeeper://127.0.0.1:1?timeout_s=0.2",
        ),
        tmp_path / "config.yaml",
    )
    assert "cannot be reached" in lines(lambda: status(tmp_path, True))["coordination_away"]


def test_consumer_groups_that_wait_after_a_rollback_are_shown_and_resumed_by_the_command_line(
    zookeeper_server: ZooKeeper,
    by_hand: KazooClient,
    tmp_path: Path,
    chroot: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"{zookeeper_server.url}{chroot}"
    config = Config(
        datastore=DatastoreConfig(shards=2), coordination=url, gateways=[GatewayProcessConfig()]
    )
    write_config(config, tmp_path / "config.yaml")

    def lines(call: Callable[[], None]) -> dict[str, Any]:
        capsys.readouterr()
        call()
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    with (
        open_datastore(config, tmp_path) as datastore,
        closing(open_coordinator(url, datastore.state)) as coordinator,
    ):
        assert why_stopped(datastore.state, coordinator) is None
        coordinator.join("__gateways", "gateway", 10)
    assert lines(lambda: status(tmp_path, True))["consumers_wait"] is None
    with pytest.raises(Refused, match="do not wait"):
        offsets.accept(run_dir=tmp_path, as_json=True)
    by_hand.delete(f"{chroot}/cellfeed", recursive=True)
    waits = lines(lambda: status(tmp_path, True))["consumers_wait"]
    assert "it came back empty" in waits
    assert "cellfeed offsets accept" in waits
    assert lines(
        lambda: offsets.accept(reason="it was restored", run_dir=tmp_path, as_json=True)
    ) == {"accepted": waits}
    assert lines(lambda: status(tmp_path, True))["consumers_wait"] is None
