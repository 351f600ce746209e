"""Samples without values that only few rows have: a dictionary outlives every erasure, so nothing
of a single person may be in it.

The training gets copies of the bodies, in which no string or number is the one that was there:

    common property   a value that occurs under its path in at least ``SHARED_ROW_KEYS_MIN`` row
                      keys, and in ``SHARED_PART_MIN`` of all that are sampled. It is
                      replaced by one of the path's common values, drawn as often as they occur:
                      the values of one row together are one person's, too
    anything else     is replaced by random characters of the same shape: a digit by a digit, a
                      letter by a letter, punctuation kept. So zstd still learns how
                      such values look, and none of them can come into the dictionary
    a private path    has none of its values kept. It is one where most of the values are not
                      common; one with more than ``VOCABULARY_MAX`` distinct values,
                      for 49 drivers with 80 trips each are common, too; and one of two whose values
                      come in fixed pairs: a name and its telephone number. Numbers of one or two
                      digits name nobody, so they are kept on any path
    a rare name       of a member, one that itself occurs in too few row keys, is left out with its
                      value: names may be data (``{"alice@example.com": …}``)

Measured on taxi trips (bytes a body; 209 without a dictionary): 85 with every value of 1 % of the
row keys, which had the names; 102 by these rules; 125 when keys and shapes alone are kept.

``true``, ``false`` and ``null`` stay. The path of a value is the names on the way to it; the
elements of an array share one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from operator import itemgetter
from random import Random
from typing import Any, Final

from cellfeed.store.cells import canonical_json
from cellfeed.store.dictionaries.shapes import like_number, like_text
from cellfeed.store.errors import InvalidBody

SHARED_ROW_KEYS_MIN: Final = 20
"""Row keys that a value must occur in to be common. One person's value that is in all of his twenty
rows is caught by the rule of private paths."""

SHARED_PART_MIN: Final = 0.05
"""Of all sampled row keys."""

NAME_PART_MIN: Final = 0.01
"""Of all sampled row keys, for the names of members."""

VOCABULARY_MAX: Final = 8
"""Distinct values of a path that is a list of kinds (colours, ways to pay, boroughs). One with more
may be a list of people."""

_SMALL_DIGITS: Final = 2
"""Digits of a number that names nobody."""

RARE_PART_MAX: Final = 0.5
"""Of the occurrences under a path: with more rare ones than this, none of its values is kept."""

Path = tuple[str, ...]
_Value = tuple[Path, type, str | int | float]
_ELEMENT: Final = "[]"


class _Seen:
    """In how many row keys something was seen, and how often. Row keys come one after the other, so
    the last one shows whether the next is another."""

    __slots__ = ("last", "row_keys", "times")

    def __init__(self) -> None:
        self.row_keys = self.times = 0
        self.last = b""

    def add(self, row_key: bytes) -> None:
        self.times += 1
        if row_key != self.last:
            self.row_keys += 1
            self.last = row_key


def blanked(
    samples: Sequence[tuple[bytes, bytes]], random: Random | None = None, *, every: int = 1
) -> list[bytes]:
    """``(row key, canonical JSON)`` to canonical JSON without the values that few share; see the
    module. In the order given; with ``every``, copies of each so many-th sample. Which values few
    share is looked at in all of them."""
    bodies = [(row_key, canonical_json.parse(body)) for row_key, body in samples]
    rules = _Rules(sorted(bodies, key=itemgetter(0)))
    chance = random or Random()
    found = []
    for _, body in bodies[::every]:
        # Replaced values may add up to more than a body may have; one sample less is no loss.
        with suppress(InvalidBody):
            found.append(canonical_json.canonical(rules.blank((), body, chance)))
    return found


class _Drawn:
    """The common values of a path, drawn as often as they occur."""

    def __init__(self) -> None:
        self._values: list[str | int | float] = []
        self._times: list[int] = []
        self._until: list[int] = []

    def add(self, value: str | float, times: int) -> None:
        self._values.append(value)
        self._times.append(times)

    def draw(self, random: Random) -> str | int | float:
        if not self._until:
            self._until = list(accumulate(self._times))
        return random.choices(self._values, cum_weights=self._until)[0]


class _Rules:
    """The values that are common property among the bodies given."""

    def __init__(self, bodies: Sequence[tuple[bytes, Any]]) -> None:
        """``bodies``: with their row keys, those of the same row key one after the other."""
        row_keys = len({row_key for row_key, _ in bodies})
        self._wanted = max(SHARED_ROW_KEYS_MIN, SHARED_PART_MIN * row_keys)
        self._names_wanted = max(SHARED_ROW_KEYS_MIN, NAME_PART_MIN * row_keys)
        self._values: dict[_Value, _Seen] = {}
        self._names: dict[Path, _Seen] = {}
        for row_key, body in bodies:
            self._see(row_key, (), body)
        private = self._private_paths() | self._paired_paths(bodies)
        self._kept = {
            key
            for key, seen in self._values.items()
            if self._is_common(seen) and (key[0] not in private or _is_small(key[2]))
        }
        self._common: dict[Path, _Drawn] = {}
        for path, kind, value in self._kept:
            self._common.setdefault(path, _Drawn()).add(
                value, self._values[path, kind, value].times
            )

    def _private_paths(self) -> set[Path]:
        """Paths with too many values that few share, or too many values."""
        times, rare, distinct = Counter[Path](), Counter[Path](), Counter[Path]()
        for (path, _, _), seen in self._values.items():
            times[path] += seen.times
            distinct[path] += 1
            if not self._is_common(seen):
                rare[path] += seen.times
        return {
            path
            for path, count in times.items()
            if rare[path] > RARE_PART_MAX * count or distinct[path] > VOCABULARY_MAX
        }

    def _paired_paths(self, bodies: Sequence[tuple[bytes, Any]]) -> set[Path]:
        """Pairs of paths where, in all bodies, each value of one comes with one value of the other
        alone: together they identify a person."""
        distinct = Counter(path for path, _, value in self._values if not _is_small(value))
        candidates = {path for path, count in distinct.items() if 1 < count <= VOCABULARY_MAX}
        partners: dict[tuple[Path, Path], dict[object, set[object]]] = {}
        for _, body in bodies:
            found = [(path, value) for path, value in _scalars((), body) if path in candidates]
            for path, value in found:
                for other, partner in found:
                    if other != path:
                        partners.setdefault((path, other), {}).setdefault(value, set()).add(partner)
        single = {
            pair
            for pair, known in partners.items()
            if len(known) > 1 and all(len(each) == 1 for each in known.values())
        }
        return {path for path, other in single if (other, path) in single}

    def _see(self, row_key: bytes, path: Path, value: Any) -> None:
        if isinstance(value, dict):
            for name, member in value.items():
                below = (*path, name)
                self._names.setdefault(below, _Seen()).add(row_key)
                self._see(row_key, below, member)
        elif isinstance(value, list):
            for element in value:
                self._see(row_key, (*path, _ELEMENT), element)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            self._values.setdefault((path, type(value), value), _Seen()).add(row_key)

    def blank(self, path: Path, value: Any, random: Random) -> Any:
        """The value with the parts that few share replaced."""
        if isinstance(value, dict):
            members = [(name, (*path, name), member) for name, member in value.items()]
            return {
                name: self.blank(below, member, random)
                for name, below, member in members
                if self._names[below].row_keys >= self._names_wanted
            }
        if isinstance(value, list):
            return [self.blank((*path, _ELEMENT), element, random) for element in value]
        if value is None or isinstance(value, bool):
            return value
        if (path, type(value), value) in self._kept:
            return self._common[path].draw(random)
        return like_text(value, random) if isinstance(value, str) else like_number(value, random)

    def _is_common(self, seen: _Seen) -> bool:
        return seen.row_keys >= self._wanted


def _scalars(path: Path, value: Any) -> Iterator[tuple[Path, object]]:
    """Strings and numbers of a body, each with its path."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _scalars((*path, name), member)
    elif isinstance(value, list):
        for element in value:
            yield from _scalars((*path, _ELEMENT), element)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, value


def _is_small(value: str | float) -> bool:
    """Whether it is a number of so few digits that it names nobody."""
    return not isinstance(value, str) and len(repr(abs(value)).replace(".", "")) <= _SMALL_DIGITS
