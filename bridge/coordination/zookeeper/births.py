"""A group's birth in ZooKeeper: the number in front of all of its epochs and tokens, so that none
is used twice.

Versions of znodes begin again when a znode is made again. A birth is another one then. The state
table gives births out, because it does not go back with ZooKeeper, and no clock is asked:

    coordination/<group>/birth      {"era", "birth", "done"}; ``done``: ZooKeeper has had it

A birth is good in its era alone (``zookeeper/history.py``). A group whose znode is gone in the same
era was deleted by hand, and gets the next birth.

Crash points: given out here, not in ZooKeeper: the next process writes the same one there, for
nobody used it. In ZooKeeper, not ``done``: the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cellfeed.bridge.coordination.zookeeper.client import (
    Create,
    Operation,
    Set,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.era import Era
from cellfeed.bridge.coordination.zookeeper.history import ZooKeeperHistory
from cellfeed.bridge.coordination.zookeeper.paths import Paths, quoted
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import DataDamaged, Unavailable

_FIRST_BIRTH: Final = 2_000_000_000
"""Above the births that earlier versions took from their clocks: seconds since 1970."""

_TRIES_MAX: Final = 50


class _Born(msgspec.Struct, frozen=True):
    era: str
    birth: int
    done: bool = False


class Births:
    """See the module. May be used by any number of threads."""

    def __init__(
        self, base: ZooKeeperClient, state: StateTable, paths: Paths, history: ZooKeeperHistory
    ) -> None:
        self._base = base
        self._state = state
        self._paths = paths
        self._history = history
        self._good: dict[str, tuple[str, int]] = {}
        """Births that were compared with the state table, with their era, by group."""

    def birth(self, group: str) -> int | None:
        """The group's birth, None where it has none in this era. Raises Unavailable,
        DataDamaged."""
        era, found = self._history.era(), self._read(group)
        return found[0] if found is not None and self._is_good(group, era, found[0]) else None

    def found(self, group: str, before_new: Callable[[int], None]) -> int:
        """Gives a birth to a group that has none in this era. Of several processes that do so at
        once, all find the same. Calls ``before_new`` with the birth that ends, where there is one.
        """
        key = _key(group)
        for _ in range(_TRIES_MAX):
            # The state table first: a birth that it says ZooKeeper has had was there before the
            # look below. In the other order, a birth that another process gives meanwhile would
            # look deleted.
            era, entry = self._history.era(), self._state.get(key)
            there = self._read(group)
            if there is not None and self._is_good(group, era, there[0]):
                return there[0]
            born = msgspec.json.decode(entry.value, type=_Born) if entry is not None else None
            if born is None or born.era != era.identity or born.done:
                before = max(
                    _FIRST_BIRTH - 1,
                    born.birth if born is not None else 0,
                    there[0] if there is not None else 0,
                )
                self._state.commit(
                    {key: msgspec.json.encode(_Born(era.identity, before + 1))},
                    expect={key: entry.version if entry is not None else None},
                )
                continue
            path, value = self._paths.group(group), str(born.birth).encode()
            if there is None:
                self._base.ensure(path.rpartition("/")[0])
            else:
                before_new(there[0])
            write: Operation = Create(path, value) if there is None else Set(path, value, there[1])
            try:
                self._base.commit([write])
            except TransactionRefused:
                continue  # another process is faster
            assert entry is not None  # noqa: S101 (it was decoded)
            self._state.commit(
                {key: msgspec.json.encode(msgspec.structs.replace(born, done=True))},
                expect={key: entry.version},
            )
        raise Unavailable(f"ZooKeeper: group {group!r} could not be made: others are faster")

    def _read(self, group: str) -> tuple[int, int] | None:
        """The birth in its znode (0: none), and the znode's version."""
        path = self._paths.group(group)
        found = self._base.get(path, newest=True)
        if found is None or not found[0]:
            return None if found is None else (0, found[1].version)
        if not found[0].isdigit():
            raise DataDamaged(f"ZooKeeper: {path} holds {found[0][:40]!r}, not the group's birth")
        return int(found[0]), found[1].version

    def _is_good(self, group: str, era: Era, birth: int) -> bool:
        if self._good.get(group) == (era.identity, birth):
            return True
        key = _key(group)
        for _ in range(_TRIES_MAX):
            entry = self._state.get(key)
            # Without an entry, in the first era: an earlier version gave it out, or the datastore
            # was restored.
            born = (
                msgspec.json.decode(entry.value, type=_Born)
                if entry is not None
                else _Born(era.identity if era.first else "", birth)
            )
            if (born.era, born.birth) != (era.identity, birth) or not birth:
                return False
            noted = msgspec.json.encode(msgspec.structs.replace(born, done=True))
            if (
                born.done
                or self._state.commit(
                    {key: noted}, expect={key: entry.version if entry is not None else None}
                )
                is not None
            ):
                self._good[group] = era.identity, birth
                return True
        raise Unavailable(f"the birth of group {group!r} could not be noted: others are faster")


def _key(group: str) -> str:
    return f"coordination/{quoted(group)}/birth"
