"""The threads that run beside a fault on a trigger group: anybody who puts trips, and anybody who
looks at the coordination from outside."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.store_keys import claims_prefix
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.paths import birth_of
from cellfeed.consumers.billing.charge_keys import GROUP
from cellfeed.store.api import CellToPut
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from tests.faults.trigger_invariants import Call, Holder, Sample

_LOOK_EVERY_S = 0.15
_PUT_EVERY_S = 0.05


class Watch(threading.Thread):
    """Looks at members, claims and offsets several times a second, past every proxy. An unreadable
    state is no sample."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__(name="watch", daemon=True)
        self._coordinator = coordinator
        self._ended = threading.Event()
        self.samples: list[Sample] = []
        self.failed = 0
        """Looks that came to nothing: ZooKeeper was away."""

    def run(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            try:
                if (sample := self._look()) is not None:
                    self.samples.append(sample)
            except CellfeedError:
                self.failed += 1

    def stop(self) -> None:
        self._ended.set()
        if self.ident is not None:
            self.join(30)

    def epochs(self) -> dict[str, set[int]]:
        """Of every member that was ever seen."""
        seen: dict[str, set[int]] = {}
        for sample in list(self.samples):
            for member, epochs in sample.members.items():
                seen.setdefault(member, set()).update(epochs)
        return seen

    def present(self) -> set[str]:
        """Members when last looked."""
        return set(self.samples[-1].members) if self.samples else set()

    def lost_their_session(self) -> set[str]:
        """Names whose session has ended and that have joined again, while ZooKeeper knew them all
        the time."""
        return {
            member
            for member, epochs in self.epochs().items()
            if max(Counter(map(birth_of, epochs)).values()) > 1
        }

    def _look(self) -> Sample | None:
        if isinstance(self._coordinator, StoreCoordinator):
            return self._look_into_store(self._coordinator)
        assert isinstance(self._coordinator, ZooKeeperCoordinator)
        base, paths = self._coordinator._base, self._coordinator._paths
        begun_ns = time.monotonic_ns()
        birth = self._coordinator._births.birth(GROUP)
        if birth is None:
            return None
        members = self._coordinator._epochs(GROUP, birth)
        shards = sorted(map(int, base.children(paths.claims(GROUP, birth, "trips"))))
        claims = base.get_many([paths.claim(GROUP, "trips", shard, birth) for shard in shards])
        offsets = {
            shard: each.offset
            for (_, shard), each in self._coordinator.fetch_offsets(GROUP).items()
        }
        holders = {
            shard: Holder(
                birth, claim[1].version, json.loads(claim[0])["member"] if claim[0] else ""
            )
            for shard, claim in zip(shards, claims, strict=True)
            if claim
        }
        return Sample(begun_ns, time.monotonic_ns(), offsets, holders, members)

    def _look_into_store(self, coordinator: StoreCoordinator) -> Sample:
        begun_ns = time.monotonic_ns()
        members = {
            member: [epoch] for member, epoch in coordinator._leases.live_sessions(GROUP).items()
        }
        claims = coordinator._state.list(claims_prefix(GROUP, "trips"))
        offsets = {
            shard: each.offset for (_, shard), each in coordinator.fetch_offsets(GROUP).items()
        }
        holders = {
            int(claim.key.rpartition("/")[2]): Holder(
                0, claim.version, json.loads(claim.value)["member"]
            )
            for claim in claims
        }
        return Sample(begun_ns, time.monotonic_ns(), offsets, holders, members)


class Feeder(threading.Thread):
    """Puts trips, so many a second, until all are put."""

    def __init__(
        self, datastore: Datastore, trips: Sequence[Sequence[CellToPut]], per_s: float
    ) -> None:
        super().__init__(name="feeder", daemon=True)
        self._datastore = datastore
        self._trips = trips
        self._per_s = per_s
        self._hurry = threading.Event()
        self._burst = 0
        self.put_at_ns: list[int] = []
        """When each trip was acknowledged."""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            begun_s = time.monotonic()
            while (done := len(self.put_at_ns)) < len(self._trips):
                due = (
                    len(self._trips)
                    if self._hurry.is_set()
                    else self._burst + int((time.monotonic() - begun_s) * self._per_s)
                )
                self._put(self._trips[done : min(due, done + 200)])
                self._hurry.wait(0 if self._hurry.is_set() else _PUT_EVERY_S)
        except BaseException as error:
            self.error = error

    def burst(self, trips: int) -> None:
        """Puts so many at once, besides."""
        self._burst += trips

    def stop(self) -> None:
        """Stops putting."""
        self._trips = self._trips[: len(self.put_at_ns)]
        self._hurry.set()
        if self.ident is not None:
            self.join(120)

    def finish(self) -> None:
        """Puts the remaining cells at once."""
        self._hurry.set()
        self.join(120)
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise RuntimeError("the trips could not be put")

    def _put(self, trips: Sequence[Sequence[CellToPut]]) -> None:
        if trips:
            for result in self._datastore.put_cells([cell for cells in trips for cell in cells]):
                result.or_raise()
            self.put_at_ns += [time.monotonic_ns()] * len(trips)


class Calls:
    """The calls on record, as ``billing_program`` writes them. Used by one thread."""

    def __init__(self, billing: Path) -> None:
        self._path = billing / "calls"
        self._read_bytes = 0
        self._calls: list[Call] = []
        self._open: dict[tuple[int, int, int], int] = {}
        self._ended = 0

    def read(self) -> list[Call]:
        """All so far, in the order in which they began. A process has at most one of a cell under
        way."""
        for what, *numbers in self._new_lines():
            shard, added_id, pid, at_ns = map(int, numbers)
            if what == "begun":
                self._open[shard, added_id, pid] = len(self._calls)
                self._calls.append(Call(shard, added_id, pid, at_ns, None))
            else:
                number = self._open.pop((shard, added_id, pid))
                self._calls[number] = self._calls[number]._replace(ended_ns=at_ns)
                self._ended += 1
        return self._calls

    def ended(self) -> int:
        """Calls that have ended well so far."""
        self.read()
        return self._ended

    def _new_lines(self) -> list[list[str]]:
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read_bytes += len(whole) + 1
                return [line.split() for line in whole.decode().splitlines()]
        return []
