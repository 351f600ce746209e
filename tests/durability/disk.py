"""A disk that loses every unsynced write: replays recorded steps, and writes out the files that a
power cut leaves at any of them.

The writes that survive a cut (``fsync(2)``, ``rename(2)``):

- of a file, its content at its last sync; of later writes none, all, some of them, or parts of them
  (:mod:`tests.durability.torn`);
- of names, those of the folders that were synced since; of later changes none, all, or the first
  few: a file system with a journal keeps their order, and a rename is there in both folders or in
  neither.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.durability.recorded import Named, Opened, Said, Step, Synced, Truncated, Written
from tests.durability.torn import tears, torn_by_chance


class Unsynced(StrEnum):
    """Its fate."""

    LOST = "lost"
    KEPT = "kept"
    SOME = "some"
    TORN = "torn"


@dataclass
class _File:
    synced: bytes = b""
    since: list[Written | Truncated] = field(default_factory=list)

    def content(self, kept: Sequence[Written | Truncated]) -> bytes:
        content = bytearray(self.synced)
        for change in kept:
            if isinstance(change, Truncated):
                del content[change.size :]
                content.extend(b"\0" * (change.size - len(content)))
            else:
                content.extend(b"\0" * (change.offset - len(content)))
                content[change.offset : change.offset + len(change.content)] = change.content
        return bytes(content)


@dataclass
class _Change:
    """A change of names. ``file``: the one that a name is given to, with any fate of its other
    names; None for a folder."""

    named: Named
    file: int | None
    synced: bool = False

    def folders(self) -> set[str]:
        """A rename changes two folders, a link only the one of its new name."""
        changed = (
            (self.named.path, self.named.source)
            if self.named.kind == "rename"
            else (self.named.path,)
        )
        return {str(Path(path).parent) for path in changed}


class Disk:
    """See the module. The folder is empty before the first step, and on disk itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, _File] = {}
        self._changes: list[_Change] = []
        self._names: dict[str, int | None] = {}

    def apply(self, step: Step) -> None:
        match step:
            case Opened(path, file, creates, empties):
                self._files.setdefault(file, _File())
                if creates:
                    self._note(_Change(Named("make", path), file))
                if empties:
                    self._files[file].since.append(Truncated(file, 0))
            case Written() | Truncated():
                self._files[step.file].since.append(step)
            case Synced(_, str() as folder):
                for change in self._changes:
                    change.synced = change.synced or folder in change.folders()
            case Synced(file, None):
                self._files[file] = _File(self._files[file].content(self._files[file].since))
            case Named():
                self._note(_Change(step, self._names.get(step.source)))
            case Said():
                pass

    def _note(self, change: _Change) -> None:
        self._changes.append(change)
        _rename(self._names, change)

    def write_out(self, target: Path, unsynced: Unsynced, chance: random.Random) -> None:
        """Makes in ``target`` the files as a power cut now would leave them."""
        names: dict[str, int | None] = {}
        late = [change for change in self._changes if not change.synced]
        kept_late = {
            Unsynced.LOST: 0,
            Unsynced.KEPT: len(late),
            Unsynced.SOME: chance.randint(0, len(late)),
            Unsynced.TORN: chance.randint(0, len(late)),
        }[unsynced]
        gone = {id(change) for change in late[kept_late:]}
        for change in self._changes:
            if id(change) not in gone:
                _rename(names, change)
        target.mkdir()
        for path, file in sorted(names.items()):
            place = target / Path(path).relative_to(self._folder)
            if not place.parent.is_dir():
                continue  # its folder was lost
            if file is None:
                place.mkdir()
            else:
                since = self._files[file].since
                place.write_bytes(self._files[file].content(_left(since, unsynced, chance)))

    @contextmanager
    def torn(self, units: Sequence[Written]) -> Iterator[None]:
        """While these parts of one more write have reached the disk."""
        since = self._files[units[0].file].since
        since.extend(units)
        yield
        del since[-len(units) :]

    @property
    def has_unsynced_writes(self) -> bool:
        return any(
            isinstance(write, Written) for file in self._files.values() for write in file.since
        )


def _left(
    since: Sequence[Written | Truncated], unsynced: Unsynced, chance: random.Random
) -> Sequence[Written | Truncated]:
    match unsynced:
        case Unsynced.LOST:
            return []
        case Unsynced.KEPT:
            return since
        case Unsynced.SOME:
            return [each for each in since if chance.random() < 0.5]
        case Unsynced.TORN:
            return torn_by_chance(since, chance)


def _rename(names: dict[str, int | None], change: _Change) -> None:
    named = change.named
    match named.kind:
        case "make":
            names[named.path] = change.file
        case "remove":
            names.pop(named.path, None)
        case "link":
            names[named.path] = change.file
        case "rename" if change.file is not None:
            names.pop(named.source, None)
            names[named.path] = change.file
        case "rename":
            inside = [
                path
                for path in names
                if path == named.source or path.startswith(f"{named.source}/")
            ]
            for path in inside:
                names[named.path + path.removeprefix(named.source)] = names.pop(path)


@dataclass(frozen=True)
class Cut:
    """The files that a power cut leaves: the folder, and the lines that the program had said."""

    place: Path
    said: list[str]
    unsynced: Unsynced
    step: int


def power_cuts(steps: Sequence[Step], folder: Path, scratch: Path, seed: int) -> Iterator[Cut]:
    """A cut behind each step that changes the surviving files: with none of the unsynced writes,
    with all of them, with some, and with torn ones."""
    disk, said, chance = Disk(folder), list[str](), random.Random(seed)
    for number, step in enumerate(steps):
        disk.apply(step)
        if isinstance(step, Said):
            said.append(step.line)
        for unsynced in Unsynced:
            if unsynced is Unsynced.TORN and not disk.has_unsynced_writes:
                continue
            place = scratch / f"cut-{number}-{unsynced}"
            disk.write_out(place, unsynced, chance)
            yield Cut(place, list(said), unsynced, number)


def torn_cuts(steps: Sequence[Step], folder: Path, scratch: Path) -> Iterator[Cut]:
    """A cut in the middle of each write behind the first spoken line, with each of
    :func:`tests.durability.torn.tears`, and all that came before it."""
    disk, said, no_chance = Disk(folder), list[str](), random.Random(0)
    for number, step in enumerate(steps):
        if isinstance(step, Written) and said:
            for which, units in enumerate(tears(step)):
                place = scratch / f"torn-{number}-{which}"
                with disk.torn(units):
                    disk.write_out(place, Unsynced.KEPT, no_chance)
                yield Cut(place, list(said), Unsynced.TORN, number)
        elif isinstance(step, Said):
            said.append(step.line)
        disk.apply(step)
