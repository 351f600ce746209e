"""Several gateways over one datastore, as one Kafka cluster, at work: a writer, a reader by
assignment, a group of three clients."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil

from cellfeed.bridge.coordination.open import IN_STORE, open_coordinator
from cellfeed.bridge.gateway.groups.slot_owners import slots_by_gateway
from cellfeed.bridge.gateway.groups.spread import SLOTS, slot_of
from cellfeed.store.cells import canonical_json
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from tests.faults.group_clients import MEMBERS
from tests.faults.group_members import GroupLedger, GroupMember, Member
from tests.faults.ledger import Ledger
from tests.faults.trigger_invariants import Sample, check_offsets_rise
from tests.faults.trigger_system import until
from tests.faults.workload import KafkaReader
from tests.support.local_zookeeper import ZooKeeper
from tests.support.running_gateway import GatewayProcess
from tests.support.stopping import stop_outside_a_commit

SHARDS: Final = 16
GROUP: Final = "billing"
LISTENERS: Final = "listeners"
"""A group of one member that never commits: a commit that waits for the coordination keeps a member
of the other group from reading."""

SESSION_S: Final = 2.0
"""The gateways' ``session_timeout_s``."""

CHURN_SESSION_S: Final = 8.0
"""Beside a dozen clients at work on a busy machine: shorter ones end by themselves, and the run is
about gateways that are killed."""

_LOOK_EVERY_S: Final = 0.1


class GatewaySystem:
    """Use in a ``with``. ``zookeeper``: where groups meet; without one it is the store.
    ``session_s``: of the gateways; they wait half of it for ZooKeeper."""

    def __init__(
        self,
        directory: Path,
        gateways: int,
        zookeeper: ZooKeeper | None,
        session_s: float,
        put_every_s: float,
    ) -> None:
        self.coordination = (
            f"{zookeeper.url}/faults-{uuid.uuid4()}?timeout_s={session_s / 2:g}"
            if zookeeper
            else IN_STORE
        )
        self.zookeeper = zookeeper
        settings = {"session_timeout_s": session_s, "coordination": self.coordination}
        self.gateways = {
            name: GatewayProcess(
                directory / "store", directory / f"{name}.log", name=name, **settings
            )
            for name in (f"g{number + 1}" for number in range(gateways))
        }
        self.directory, self._put_every_s = directory, put_every_s
        self.puts, self.group, self.listeners = Ledger(), GroupLedger(), GroupLedger()
        self._stack = ExitStack()

    def __enter__(self) -> GatewaySystem:
        with ExitStack() as stack:
            self.datastore = stack.enter_context(
                Datastore.open_embedded(self.directory / "store", shards=SHARDS)
            )
            self.coordinator = open_coordinator(self.coordination, self.datastore.state)
            stack.callback(self.coordinator.close)
            for gateway in self.gateways.values():
                stack.callback(gateway.end_by_force)
                gateway.start()
            until(lambda: self.is_settled(), "the gateways have divided the groups")
            self.watch = Watch(self)
            self.writer = StoreWriter(self.datastore, self.puts, self._put_every_s)
            self.reader = KafkaReader(self.bootstrap, "trips", SHARDS)
            self.members: list[Member] = [
                make(self.bootstrap, "trips", GROUP, name, self.group)
                for name, make in MEMBERS.items()
            ]
            self.listener = GroupMember(
                self.bootstrap, "trips", LISTENERS, "listener", self.listeners, commits=False
            )
            threads: list[Watch | StoreWriter | KafkaReader | Member] = [
                self.watch,
                self.writer,
                self.reader,
                self.listener,
                *self.members,
            ]
            for thread in threads:
                thread.start()
                stack.callback(thread.stop)
            heads = self.heads()
            until(
                lambda: (
                    len(self.group.generations) == len(MEMBERS) - 1 and self.is_going_since(heads)
                ),
                "the group commits in all partitions",
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(gateway.bootstrap for gateway in self.gateways.values())

    def heads(self) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self.datastore.heads().items()}

    def is_going_since(self, heads: dict[int, int]) -> bool:
        """Whether the group has committed beyond these positions in every partition."""
        with self.group.lock:
            return all(
                self.group.acknowledged.get(shard, 0) > head for shard, head in heads.items()
            )

    def going_again_s(self, healed_s: float, limit_s: float) -> float:
        """Seconds from ``healed_s`` (monotonic) until the group has committed something in every
        partition that was put after now."""
        heads = self.heads()
        while (after_s := time.monotonic() - healed_s) < limit_s and not self.is_going_since(heads):
            time.sleep(0.05)
        return after_s

    def slots(self) -> dict[str, list[int]]:
        """Of the living gateways; none when the coordination is away."""
        try:
            return slots_by_gateway(self.coordinator)
        except CellfeedError:
            return {}

    def is_settled(self, gateways: int | None = None) -> bool:
        slots = self.slots()
        shares = [len(each) for each in slots.values()]
        wanted = gateways or len(self.gateways)
        return len(slots) == wanted and sum(shares) == SLOTS and max(shares) <= -(-SLOTS // wanted)

    def coordinator_of_group(self) -> str:
        """The name of the gateway that coordinates the group."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [name for name, slots in self.slots().items() if slot_of(GROUP) in slots]
            return bool(found)

        until(look, "the group has a coordinator")
        return found[0]

    @contextmanager
    def paused(self, name: str) -> Iterator[psutil.Process]:
        """SIGSTOP, and SIGCONT at the end. Never in the middle of a commit to the embedded state:
        everybody else would wait for the lock, not for a gateway."""
        process = self.gateways[name].process
        stop_outside_a_commit(process)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)


class StoreWriter(threading.Thread):
    """Puts one cell after another into the store itself, whether or not a gateway is there, and
    writes down each answer."""

    def __init__(self, datastore: Datastore, ledger: Ledger, every_s: float) -> None:
        super().__init__(name="writer", daemon=True)
        self._datastore = datastore
        self._ledger = ledger
        self._every_s = every_s
        self._ended = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ended.wait(self._every_s):
            row_key, body = uuid.uuid4(), {"number": number}
            put = self._ledger.begin(row_key, "BASE", 1, canonical_json.canonical(body))
            result = self._datastore.put_cell(row_key, "BASE", 1, body)
            self._ledger.answer(put, result.outcome.value, result.shard, result.added_id)
            number += 1

    def stop(self) -> None:
        self._ended.set()
        self.join(30)


class Watch(threading.Thread):
    """Looks at the group's offsets past every gateway, several times a second."""

    def __init__(self, system: GatewaySystem) -> None:
        super().__init__(name="watch", daemon=True)
        self._system = system
        self._ended = threading.Event()
        self._samples: list[Sample] = []

    def run(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            begun_ns = time.monotonic_ns()
            try:
                found = self._system.coordinator.fetch_offsets(GROUP)
            except CellfeedError:
                continue  # the coordination is away
            offsets = {shard: each.offset for (_, shard), each in found.items()}
            self._samples.append(Sample(begun_ns, time.monotonic_ns(), offsets, {}, {}))

    def falls(self) -> Sequence[str]:
        """I20: committed offsets that fell from one look to the next."""
        return check_offsets_rise(self._samples)["I20"]

    def stop(self) -> None:
        self._ended.set()
        self.join(30)
