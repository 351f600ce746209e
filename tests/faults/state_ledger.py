"""The knowledge that a fault run's workers have of the state table and of a group's offsets; the
conditions that it must meet (E11, I20).

Pure: no clock, no socket. ``tests/unit/harness/test_fault_ledgers.py`` shows for each check that it
finds its own violation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cellfeed.store.engines.contract.values import StateEntry
from tests.faults.invariants import Violations


@dataclass
class Commit:
    """One commit of an entry as its caller saw it. ``expected``: the version that it was made on,
    None for any. ``outcome``: ``committed``, ``refused`` (another version was there), ``unknown``,
    ``failed``; None while no answer came. Times are monotonic seconds."""

    key: str
    value: bytes
    expected: int | None
    begun_s: float
    outcome: str | None = None
    version: int | None = None
    answered_s: float | None = None


@dataclass
class OffsetSave:
    """One save of a partition's offset under a claim."""

    partition: int
    offset: int
    member: str
    begun_s: float
    outcome: str | None = None
    answered_s: float | None = None


@dataclass
class OffsetLook:
    """The offset that a fetch showed; ``begun_s`` is when it was asked for."""

    partition: int
    offset: int
    begun_s: float


@dataclass
class StateLedger:
    """Thread-safe; entries are only ever added and answered."""

    commits: list[Commit] = field(default_factory=list)
    shown: list[StateEntry] = field(default_factory=list)
    """Entries that reads showed."""
    saves: list[OffsetSave] = field(default_factory=list)
    looks: list[OffsetLook] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Promises of claims that were seen broken at once."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, key: str, value: bytes, expected: int | None) -> Commit:
        commit = Commit(key, value, expected, time.monotonic())
        with self._lock:
            self.commits.append(commit)
        return commit

    def answer(self, commit: Commit, outcome: str, version: int | None = None) -> None:
        commit.version, commit.answered_s, commit.outcome = version, time.monotonic(), outcome

    def begin_save(self, partition: int, offset: int, member: str) -> OffsetSave:
        save = OffsetSave(partition, offset, member, time.monotonic())
        with self._lock:
            self.saves.append(save)
        return save

    def answer_save(self, save: OffsetSave, outcome: str) -> None:
        save.answered_s, save.outcome = time.monotonic(), outcome

    def looked(self, partition: int, offset: int, begun_s: float) -> None:
        self.looks.append(OffsetLook(partition, offset, begun_s))

    def begun_between(self, start_s: float, end_s: float) -> int:
        """Commits and saves that were tried within a span: a fault run proves by it that work was
        tried."""
        begun = [each.begun_s for each in list(self.commits)]
        begun += [each.begun_s for each in list(self.saves)]
        return sum(start_s <= begun_s <= end_s for begun_s in begun)

    def acknowledged_inside(self, start_s: float, end_s: float) -> list[str]:
        """Commits and saves that were begun and acknowledged within a span, told."""
        inside = [
            f"state entry {each.key} as version {each.version}"
            for each in list(self.commits)
            if each.outcome == "committed"
            and each.answered_s is not None
            and start_s <= each.begun_s
            and each.answered_s <= end_s
        ]
        return inside + [
            f"offset {each.offset} of partition {each.partition}"
            for each in list(self.saves)
            if each.outcome == "committed"
            and each.answered_s is not None
            and start_s <= each.begun_s
            and each.answered_s <= end_s
        ]


def check_state(
    ledger: StateLedger, final: Mapping[str, StateEntry | None], *, lossy: bool = False
) -> Violations:
    """E11: no version is given twice, one commit succeeds on a version, no entry shows two values
    under a version, and no acknowledged commit is lost. ``final``: the entries in the end.
    ``lossy``: acknowledged commits may be lost (asynchronous replication), and others succeed on
    the versions before."""
    done = [commit for commit in ledger.commits if commit.outcome == "committed"]
    kept = [] if lossy else [*_succeeded_twice(done), *_lost(done, final)]
    return {"E11": [*_given_twice(done), *_two_values(done, ledger.shown, final), *kept]}


def check_offsets(
    ledger: StateLedger, final: Mapping[int, int], *, lossy: bool = False
) -> Violations:
    """I20: an acknowledged offset stands, in the end and in every look that began later. ``final``:
    the offsets in the end, by partition."""
    if lossy:
        return {"I20": list(ledger.broken)}
    done = [
        (save.answered_s, save)
        for save in ledger.saves
        if save.outcome == "committed" and save.answered_s is not None
    ]
    saved = sorted(done, key=lambda each: each[0])
    found = list(ledger.broken)
    for partition in {save.partition for _, save in saved}:
        most = max(save.offset for _, save in saved if save.partition == partition)
        if final.get(partition, -1) < most:
            found.append(
                f"partition {partition}: offset {most} was acknowledged, and {final.get(partition)}"
                " stands in the end"
            )
    highest: dict[int, int] = {}
    position = 0
    for look in sorted(ledger.looks, key=lambda look: look.begun_s):
        while position < len(saved) and saved[position][0] < look.begun_s:
            save = saved[position][1]
            highest[save.partition] = max(highest.get(save.partition, -1), save.offset)
            position += 1
        if look.offset < highest.get(look.partition, -1):
            found.append(
                f"partition {look.partition}: offset {highest[look.partition]} was acknowledged,"
                f" and {look.offset} was shown later"
            )
    return {"I20": found}


def check_falls(
    name: str, samples: Iterable[Mapping[int, int]], ends: Mapping[int, int]
) -> Violations:
    """I14 and I20 of a group that is looked at from outside: no offset falls between two looks, and
    none is ahead of its log's end."""
    before: dict[int, int] = {}
    falls = []
    for sample in samples:
        falls += [
            f"group {name}: the offset of partition {partition} fell from {before[partition]} to"
            f" {offset}"
            for partition, offset in sample.items()
            if offset < before.get(partition, offset)
        ]
        before.update(sample)
    ahead = [
        f"group {name}: partition {each} is at {offset}, past its log's end {ends.get(each, 0)}"
        for each, offset in before.items()
        if offset > ends.get(each, 0)
    ]
    return {"I14": ahead, "I20": falls}


def _given_twice(done: Iterable[Commit]) -> list[str]:
    given: dict[int, Commit] = {}
    found = []
    for commit in done:
        assert commit.version is not None
        first = given.setdefault(commit.version, commit)
        if first is not commit:
            found.append(
                f"version {commit.version} was given twice: to {first.key} = {first.value!r} and to"
                f" {commit.key} = {commit.value!r}"
            )
    return found


def _succeeded_twice(done: Iterable[Commit]) -> list[str]:
    made: dict[tuple[str, int], Commit] = {}
    return [
        f"{commit.key}: two commits succeeded on version {commit.expected}: {first.value!r} and"
        f" {commit.value!r}"
        for commit in done
        if commit.expected is not None
        and (first := made.setdefault((commit.key, commit.expected), commit)) is not commit
    ]


def _two_values(
    done: Iterable[Commit], shown: Iterable[StateEntry], final: Mapping[str, StateEntry | None]
) -> list[str]:
    values: dict[tuple[str, int], bytes] = {}
    found = []
    told = [(commit.key, commit.version or 0, commit.value) for commit in done]
    told += [
        (entry.key, entry.version, entry.value)
        for entry in (*shown, *final.values())
        if entry is not None
    ]
    for key, version, value in told:
        if (first := values.setdefault((key, version), value)) != value:
            found.append(f"{key}: version {version} is {first!r} and {value!r}")
    return found


def _lost(done: Iterable[Commit], final: Mapping[str, StateEntry | None]) -> list[str]:
    last: dict[str, Commit] = {}
    for commit in done:
        if commit.key in final and (
            commit.key not in last or (commit.version or 0) > (last[commit.key].version or 0)
        ):
            last[commit.key] = commit
    found = []
    for key, commit in last.items():
        entry = final[key]
        if entry is None or entry.version < (commit.version or 0):
            found.append(
                f"{key}: {commit.value!r} was acknowledged as version {commit.version} and is lost;"
                f" {entry} is there"
            )
    return found
