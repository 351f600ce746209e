"""Guests of a group that is at work: members of every client that join, read and commit for a
while, and leave; some before they were given anything."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random
from typing import Final

from tests.faults.group_clients import MEMBERS
from tests.faults.group_members import GroupLedger, Member

_GUESTS_MAX: Final = 4
_GIVEN_S: Final = 15.0
"""How long a guest that is to stay waits for partitions before the next one comes or goes: longer
than a rebalance in which a gateway dies."""


class GroupChurn(threading.Thread):
    """``turns`` joins and leaves, one after the other, then the last guests leave. Arrivals,
    departures and their moments follow from ``chance``."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        ledger: GroupLedger,
        chance: Random,
        turns: int,
    ) -> None:
        super().__init__(name="churn", daemon=True)
        self._place = bootstrap, topic, group
        self._ledger = ledger
        self._chance = chance
        self._turns = turns
        self._ended = threading.Event()
        self._guests: list[Member] = []
        self.joins: Counter[str] = Counter()
        """Members that came, by client."""
        self.given = 0
        """Of them those that were given partitions before they left."""
        self.leaves = 0

    @property
    def turns(self) -> int:
        """Joins and leaves so far."""
        return self.joins.total() + self.leaves

    def run(self) -> None:
        try:
            while self.turns < self._turns and not self._ended.is_set():
                if not self._guests or (
                    len(self._guests) < _GUESTS_MAX and self._chance.random() < 0.5
                ):
                    self._join()
                else:
                    self._leave()
                self._ended.wait(self._chance.uniform(0, 0.5))
        finally:
            while self._guests:
                self._leave()

    def stop(self) -> None:
        """Ends it before its time."""
        self._ended.set()
        self.join(120)

    def _join(self) -> None:
        client = self._chance.choice(sorted(MEMBERS))
        guest = MEMBERS[client](*self._place, f"{client} {self.joins.total() + 1}", self._ledger)
        guest.start()
        self._guests.append(guest)
        self.joins[client] += 1
        if self._chance.random() < 0.8:
            guest.was_given.wait(_GIVEN_S)

    def _leave(self) -> None:
        guest = self._guests.pop(self._chance.randrange(len(self._guests)))
        guest.stop()
        self.given += guest.was_given.is_set()
        self.leaves += 1
