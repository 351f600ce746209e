"""One of two gateways dies while each client has a member of a group there. All clients at once,
each in a group of its own that the dying gateway coordinates.

The log has only cells of one column, so offsets have no holes and a record that was skipped is seen
at once.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.coordination.open import IN_STORE, open_coordinator
from cellfeed.bridge.gateway.groups.slot_owners import slots_by_gateway
from cellfeed.bridge.gateway.groups.spread import SLOTS, slot_of
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from tests.clients.grid.clients import Client
from tests.clients.grid.running_client import Record, RunningClient
from tests.support.running_gateway import GatewayProcess
from tests.support.waiting import wait_until

TOPIC: Final = "trips.BASE"
SESSION_S: Final = 2.0
"""The gateways'."""
STEP_S: Final = 100.0
"""How long every client may take to come as far as the others: a dozen of them share a machine."""
WRONG_SHOWN: Final = 5
BEFORE, IN_FLIGHT, AFTER = 480, 80, 160
"""Cells that are there at first, those that are put right before the gateway dies, and those
after."""


def die(clients: Mapping[str, Client], directory: Path) -> dict[str, list[str]]:
    """The failures, by client; nothing for one that came through. Raises when the fault itself did
    not happen."""
    with ExitStack() as stack:
        datastore = stack.enter_context(Datastore.open_embedded(directory / "store"))
        coordinator = stack.enter_context(closing(open_coordinator(IN_STORE, datastore.state)))
        put(datastore, BEFORE)
        gateways = {}
        for name in ("dies", "stays"):
            gateways[name] = GatewayProcess(
                directory / "store",
                directory / f"{name}.log",
                name=name,
                session_timeout_s=SESSION_S,
            )
            stack.callback(gateways[name].end_by_force)
            gateways[name].start()
        wait_until(
            lambda: (
                sorted(map(len, slots_by_gateway(coordinator).values())) == [SLOTS // 2, SLOTS // 2]
            ),
            "the gateways have divided the groups",
        )
        groups = dict(zip(clients, groups_of("dies", coordinator, len(clients)), strict=True))
        bootstrap = ",".join(gateway.bootstrap for gateway in gateways.values())
        watch = Watch(coordinator, groups)
        watch.start()
        stack.callback(watch.stop)
        members = {
            name: stack.enter_context(
                RunningClient(
                    client,
                    directory / f"{groups[name]}.log",
                    "group",
                    bootstrap,
                    TOPIC,
                    groups[name],
                    0,
                )
            )
            for name, client in clients.items()
        }
        wrong: dict[str, list[str]] = {name: [] for name in clients}

        def all_are_there(what: str) -> None:
            ends = {
                shard: head.watermark for shard, head in datastore.heads().items() if head.watermark
            }
            going = {name for name in clients if not wrong[name]}
            done: set[str] = set()

            def look() -> bool:
                for name in going - done:
                    if clients[name].dies_with_its_coordinator:
                        members[name].start_again_if_it_ended()
                done.update(
                    name
                    for name in going - done
                    if has_come(members[name], ends) and watch.offsets(groups[name]) == ends
                )
                return done == going

            if not in_time(look):
                for name in going - done:
                    wrong[name].append(
                        f"{what}: {len(members[name].records)} records, committed"
                        f" {watch.offsets(groups[name])} of {ends}; {members[name].said()}"
                    )

        all_are_there("before")
        put(datastore, IN_FLIGHT)
        gateways["dies"].kill()
        put(datastore, AFTER)
        wait_until(
            lambda: (
                [
                    len(slots)
                    for name, slots in slots_by_gateway(coordinator).items()
                    if name == "stays"
                ]
                == [SLOTS]
            ),
            "the other gateway has all groups",
        )
        all_are_there("after")
        admin = AdminClient({"bootstrap.servers": gateways["stays"].bootstrap, "log_level": 0})
        for name, described in admin.describe_consumer_groups(list(groups.values())).items():
            found = described.result(STEP_S)
            client = next(each for each in groups if groups[each] == name)
            if found.state is not ConsumerGroupState.STABLE or len(found.members) != 1:
                wrong[client].append(
                    f"the group is {found.state.name} with {len(found.members)} members"
                )
        for name, member in members.items():
            if (member.starts > 1) != clients[name].dies_with_its_coordinator:
                wrong[name].append(f"it was started {member.starts} times")
            try:
                member.end()
            except AssertionError as error:
                wrong[name].append(str(error))
        total = BEFORE + IN_FLIGHT + AFTER
        log = {
            (shard, cell.added_id): row_key_text(cell.row_key).decode()
            for shard in datastore.heads()
            for cell in datastore.engine.scan(shard, 0, total)
        }
        assert len(log) == total
        watch.stop()
        for name, member in members.items():
            wrong[name] += check(
                log,
                member.records,
                member.acknowledged,
                coordinator.fetch_offsets(groups[name]),
                watch.falls(groups[name]),
            )
        return wrong


def check(
    log: Mapping[tuple[int, int], str],
    records: Sequence[Record],
    acknowledged: Mapping[int, int],
    committed: Mapping[tuple[str, int], CommittedOffset],
    falls: Sequence[str],
) -> list[str]:
    """Every record, none skipped on the way, none shown as something else; offsets that were
    acknowledged are there and never fell."""
    found = list(falls)
    seen: dict[int, int] = {}
    for record in records:
        if record.offset > seen.get(record.partition, -1) + 1:
            found.append(
                f"partition {record.partition}: {record.offset} came after"
                f" {seen.get(record.partition, -1)}"
            )
        if log.get((record.partition, record.offset)) != record.key:
            found.append(
                f"partition {record.partition}: offset {record.offset} has key {record.key}"
            )
        seen[record.partition] = max(seen.get(record.partition, -1), record.offset)
    missing = log.keys() - {(record.partition, record.offset) for record in records}
    if missing:
        found.append(f"{len(missing)} records never came, the first one {min(missing)}")
    offsets = {partition: each.offset for (_, partition), each in committed.items()}
    found += [
        f"partition {partition}: {offset} was acknowledged, {offsets.get(partition)} is committed"
        for partition, offset in acknowledged.items()
        if offsets.get(partition, -1) < offset
    ]
    return found[:WRONG_SHOWN]


def has_come(member: RunningClient, ends: Mapping[int, int]) -> bool:
    seen: dict[int, int] = {}
    records: list[Record] = member.records
    for record in records:
        seen[record.partition] = max(seen.get(record.partition, 0), record.offset + 1)
    return seen == ends


def put(datastore: Datastore, count: int) -> None:
    for result in datastore.put_cells(
        [(uuid.uuid4(), "BASE", 0, {"n": number}) for number in range(count)]
    ):
        result.or_raise()


def groups_of(gateway: str, coordinator: Coordinator, count: int) -> list[str]:
    """Names of groups that this gateway coordinates."""
    slots = slots_by_gateway(coordinator)[gateway]
    names = (f"group-{number}" for number in range(100 * count))
    return [name for name in names if slot_of(name) in slots][:count]


def in_time(done: Callable[[], bool]) -> bool:
    """Whether it came true within STEP_S."""
    deadline_s = time.monotonic() + STEP_S
    while not done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


class Watch(threading.Thread):
    """Looks at the committed offsets of all groups past every gateway, several times a second."""

    def __init__(self, coordinator: Coordinator, groups: Mapping[str, str]) -> None:
        super().__init__(name="watch", daemon=True)
        self._coordinator = coordinator
        self._groups = list(groups.values())
        self._ended = threading.Event()
        self._last: dict[str, dict[int, int]] = {group: {} for group in self._groups}
        self._falls: dict[str, list[str]] = {group: [] for group in self._groups}

    def run(self) -> None:
        while not self._ended.wait(0.1):
            for group in self._groups:
                try:
                    found = {
                        partition: each.offset
                        for (_, partition), each in self._coordinator.fetch_offsets(group).items()
                    }
                except CellfeedError:
                    continue  # the store is busy
                before = self._last[group]
                self._falls[group] += [
                    f"partition {partition}: the committed offset fell from {offset} to"
                    f" {found.get(partition)}"
                    for partition, offset in before.items()
                    if found.get(partition, -1) < offset
                ]
                self._last[group] = found

    def offsets(self, group: str) -> dict[int, int]:
        return self._last[group]

    def falls(self, group: str) -> list[str]:
        return list(self._falls[group])

    def stop(self) -> None:
        self._ended.set()
        self.join(30)
