"""Work on the state table beside a fault: entries changed by compare-and-set, leases and claims
taken in turns, offsets saved under claims, and looks at all of it. Every answer goes into
:class:`tests.faults.state_ledger.StateLedger`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import StaleWriter, Unavailable
from tests.faults.invariants import Violations, merge
from tests.faults.state_ledger import StateLedger, check_offsets, check_state

KEYS: Final = ("faults/first", "faults/second")
GROUP: Final = "fault-offsets"
TOPIC: Final = "trips"
PARTITION: Final = 0

_PAUSE_S: Final = 0.02
_TTL_S: Final = 2.0
_SAVES_IN_A_TURN: Final = 10
_LATE_CLAIMS: Final = 4
"""Claims that were given up; each is tried once more after every turn."""

_SETTLE_S: Final = 30.0


class StateWork:
    """Four threads until ``stop``: two that change both entries, one that saves offsets as two
    members in turns, one that looks."""

    def __init__(self, state: StateTable, *, lossy: bool = False) -> None:
        self.ledger = StateLedger()
        self.errors: list[str] = []
        self._state, self._lossy = state, lossy
        self._coordinator = StoreCoordinator(state)
        self._ended = threading.Event()
        work: list[Callable[[], None]] = [
            _Counting(self, "one").turn,
            _Counting(self, "other").turn,
            _Saving(self).turn,
            self._look,
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(turn,), name="state-work") for turn in work
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def violations(self) -> Violations:
        """E11 and I20, once it has been stopped."""
        deadline_s = time.monotonic() + _SETTLE_S
        while True:
            try:
                final = {key: self._state.get(key) for key in KEYS}
                offsets = {
                    each: offset.offset
                    for (_, each), offset in self._coordinator.fetch_offsets(GROUP).items()
                }
                break
            except Unavailable as error:
                if time.monotonic() > deadline_s:
                    return {"I21": [f"the state cannot be read in the end: {error}"]}
                time.sleep(0.1)
        ledger = self.ledger
        counts = (
            sum(each.outcome == "committed" for each in ledger.commits),
            sum(each.outcome == "committed" for each in ledger.saves),
            len(ledger.looks),
        )
        idle = [] if all(counts) else [f"commits, saved offsets and looks: {counts}"]
        return merge(
            check_state(ledger, final, lossy=self._lossy),
            check_offsets(ledger, offsets, lossy=self._lossy),
            {"errors": list(self.errors), "no look": idle},
        )

    def _run(self, turn: Callable[[], None]) -> None:
        while not self._ended.wait(_PAUSE_S):
            try:
                turn()
            except Unavailable:
                self._ended.wait(5 * _PAUSE_S)
            except (
                Exception
            ) as error:  # any other answer to a worker is a violation, and the work continues
                self.errors.append(f"state work: {error!r}")
                self._ended.wait(1.0)

    def _look(self) -> None:
        begun_s = time.monotonic()
        for (_, partition), offset in self._coordinator.fetch_offsets(GROUP).items():
            self.ledger.looked(partition, offset.offset, begun_s)
        for key in KEYS:
            if (entry := self._state.get(key)) is not None:
                self.ledger.shown.append(entry)


class _Counting:
    """Changes one entry and then the other, each on the version that it has just read."""

    def __init__(self, work: StateWork, name: str) -> None:
        self._work, self._name, self._number = work, name, 0

    def turn(self) -> None:
        self._number += 1
        key = KEYS[self._number % len(KEYS)]
        entry = self._work._state.get(key)
        expected = entry.version if entry else None
        commit = self._work.ledger.begin(key, f"{self._name}-{self._number}".encode(), expected)
        try:
            version = self._work._state.commit({key: commit.value}, {key: expected})
        except Unavailable as error:
            self._work.ledger.answer(commit, "failed" if error.definite else "unknown")
            raise
        self._work.ledger.answer(commit, "refused" if version is None else "committed", version)


class _Saving:
    """Two members that take the partition in turns. A member whose join, claim or release has no
    known fate is not used again: another one takes its name's place, so a claim that was answered
    is its holder's for certain until the holder gives it up."""

    def __init__(self, work: StateWork) -> None:
        self._work, self._coordinator = work, work._coordinator
        self._names, self._turn, self._offset = [0, 0], 0, 0
        self._given_up: list[Claim] = []

    def turn(self) -> None:
        self._turn = 1 - self._turn
        name = f"member-{self._turn}-{self._names[self._turn]}"
        try:
            session = self._joined(name)
            claims = self._coordinator.claim(session, TOPIC, [PARTITION])
            if (claim := claims.get(PARTITION)) is None:
                return  # a member of no known fate holds it until its lease has run out
            self._given(f"claim of {name}", claim.token)
            self._late()
            for _ in range(_SAVES_IN_A_TURN):
                self._save(claim)
                self._work._ended.wait(_PAUSE_S)
            self._coordinator.release([claim])
        except Unavailable:
            self._names[self._turn] += 1
            raise
        self._given_up = [*self._given_up, claim][-_LATE_CLAIMS:]

    def _joined(self, name: str) -> Session:
        session = self._coordinator.join(GROUP, name, _TTL_S)
        self._given(f"session of {name}", session.epoch)
        return session

    def _given(self, what: str, version: int) -> None:
        ledger = self._work.ledger
        ledger.answer(ledger.begin(what, str(version).encode(), None), "committed", version)

    def _save(self, claim: Claim) -> None:
        ledger = self._work.ledger
        self._offset += 1
        save = ledger.begin_save(PARTITION, self._offset, claim.member)
        try:
            self._coordinator.commit_offsets(
                GROUP, {(TOPIC, PARTITION): CommittedOffset(self._offset)}, claims=[claim]
            )
        except StaleWriter:
            ledger.answer_save(save, "refused")
            if not self._work._lossy:
                ledger.broken.append(
                    f"the claim of {claim.member} with token {claim.token} is void, and nobody has"
                    " taken it over"
                )
            raise Unavailable(f"{claim.member} has lost its claim") from None
        except Unavailable as error:
            ledger.answer_save(save, "failed" if error.definite else "unknown")
            raise
        ledger.answer_save(save, "committed")

    def _late(self) -> None:
        """Members that were overtaken try to save once more."""
        for claim in self._given_up:
            with suppress(Unavailable, StaleWriter):
                self._coordinator.commit_offsets(
                    GROUP, {(TOPIC, PARTITION): CommittedOffset(0)}, claims=[claim]
                )
                self._work.ledger.broken.append(
                    f"{claim.member} saved an offset under token {claim.token}, which it had"
                    " given up"
                )
