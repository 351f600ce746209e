"""The mark that one process moves in ZooKeeper and in the state table: a ZooKeeper that lacks it
went back in time (``zookeeper/history.py``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from cellfeed.bridge.coordination.zookeeper.client import (
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.era import ERA_KEY, WITNESSES, Era, encode_json
from cellfeed.bridge.coordination.zookeeper.paths import Paths
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import Unavailable

ABSENT: Final = ""
"""The mark of a witness that ZooKeeper does not have yet."""

_DOUBTFUL_MARKS_MAX: Final = 64
"""Changes without an answer that a witness remembers, one for each broken connection. Beyond it the
process gets another witness."""

_WITNESSES_MAX: Final = 64
"""Those of processes that ended stay as evidence; beyond this many the oldest go."""


@dataclass
class Witness:
    """This process's own. ``marks``: values that ZooKeeper may hold; ``version`` and
    ``entry_version``: of the znode and of the entry, None where there is none; ``is_sure``: whether
    they are certain."""

    era: str
    process: str
    marks: list[str]
    version: int | None = None
    entry_version: int | None = None
    is_sure: bool = True

    @property
    def key(self) -> str:
        return f"{WITNESSES}{self.era}/{self.process}"


class OwnWitness:
    """The witness of this process. ``doubt`` is called when the era in the state table is not the
    one that the process knew. Calls are serialised by the caller."""

    def __init__(
        self, base: ZooKeeperClient, state: StateTable, paths: Paths, doubt: Callable[[], None]
    ) -> None:
        self._base, self._state, self._paths, self._doubt = base, state, paths, doubt
        self._witness: Witness | None = None

    def of_era(self, era: Era) -> Witness:
        """The witness, certain of its marks in ZooKeeper and in the state table."""
        witness = self._witness
        if (
            witness is None
            or witness.era != era.identity
            or len(witness.marks) > _DOUBTFUL_MARKS_MAX
        ):
            self._forget_the_oldest(era)
            witness = self._witness = Witness(era.identity, secrets.token_hex(8), [ABSENT])
        if not witness.is_sure:
            # A change without an answer may still come, here or there. It names the version before
            # it, so it fails once another one has been done.
            entry = self._state.get(witness.key)
            found = self._base.get(self._paths.witness(era.identity, witness.process), newest=True)
            announced = (
                msgspec.json.decode(entry.value, type=list[str]) if entry is not None else []
            )
            witness.marks = [
                *witness.marks,
                *(mark for mark in announced if mark not in witness.marks),
            ]
            witness.entry_version = entry.version if entry is not None else None
            witness.version = found[1].version if found is not None else None
            witness.is_sure = True
        return witness

    def announce(self, witness: Witness, marks: list[str], era_version: int) -> None:
        """Writes to the state table which marks ZooKeeper may hold. Raises Unavailable."""
        expect = {ERA_KEY: era_version, witness.key: witness.entry_version}
        witness.is_sure = False
        version = self._state.commit({witness.key: encode_json(marks)}, expect=expect)
        if version is None:
            self._doubt()
            raise Unavailable("ZooKeeper's history changed meanwhile; it is compared again")
        witness.entry_version, witness.is_sure = version, True

    def _forget_the_oldest(self, era: Era) -> None:
        prefix = f"{WITNESSES}{era.identity}/"
        oldest = sorted(self._state.list(prefix), key=lambda entry: entry.version)[
            : -_WITNESSES_MAX + 1
        ]
        for entry in oldest:
            if self._state.commit({entry.key: None}, expect={entry.key: entry.version}) is not None:
                self._base.discard(
                    [self._paths.witness(era.identity, entry.key.removeprefix(prefix))]
                )
