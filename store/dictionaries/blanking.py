"""Samples without what belongs to few: a dictionary outlives every erasure, so nothing of a single person may be in it.

What is trained on is not the bodies but copies of them, in which no string or number is the one that was there:

    common property   a value that occurs under its path in at least ``SHARED_ROW_KEYS_MIN`` row keys, and in ``SHARED_PART_MIN`` of all that are sampled. It is
                      replaced by one of the path's common values, drawn as often as they occur: what a row has together is one person's, too
    anything else     is replaced by random characters of the same shape: a digit by a digit, a letter by a letter, punctuation kept. So zstd still learns how
                      such values look, and none of them can come into the dictionary
    a private path    is one where most of what occurs is not common: it names things that belong to few (people, cards, addresses), and the one who makes the
                      most trips is no more public than the others. None of its values counts as common
    a rare name       of a member, one that itself occurs in too few row keys, is left out with its value: names may be data (``{"alice@example.com": …}``)

``true``, ``false`` and ``null`` stay. The path of a value is the names on the way to it; the elements of an array share one.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from random import Random
from typing import Any, Final

from store import json_body
from store.errors import InvalidBody

SHARED_ROW_KEYS_MIN: Final = 20
"""Row keys that a value must occur in to be common. One person's value that is in all of his twenty rows is caught by the rule of private paths."""

SHARED_PART_MIN: Final = 0.01
"""Of all sampled row keys. What is rarer saves little: on taxi trips 2 % between a fifth of this and this."""

RARE_PART_MAX: Final = 0.5
"""Of the occurrences under a path: with more rare ones than this, none of its values is kept."""

TEXT_MAX: Final = 64
"""Characters of a replaced string: a longer one is cut, its shape repeats in no other body."""

_NUMBER_MAX: Final = 18
"""Digits of a replaced number: any such integer is a valid body's."""

Path = tuple[str, ...]
_ELEMENT: Final = "[]"


class _Seen:
    """In how many row keys something was seen, and how often. Row keys come one after the other, so the last one tells whether the next is another."""

    __slots__ = ("last", "row_keys", "times")

    def __init__(self) -> None:
        self.row_keys = self.times = 0
        self.last = b""

    def add(self, row_key: bytes) -> None:
        self.times += 1
        if row_key != self.last:
            self.row_keys += 1
            self.last = row_key


def blanked(samples: Sequence[tuple[bytes, bytes]], random: Random | None = None) -> list[bytes]:
    """``(row key, canonical JSON)`` to canonical JSON without what few share; see the module. In the order given."""
    bodies = [(row_key, json_body.parse(body)) for row_key, body in samples]
    rules = _Rules(sorted(bodies, key=itemgetter(0)))
    chance = random or Random()
    found = []
    for _, body in bodies:
        try:
            found.append(json_body.canonical(rules.blank((), body, chance)))
        except InvalidBody:
            continue  # replaced values may add up to more than a body may have; one sample less is no loss
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
    """What is common property among the bodies given."""

    def __init__(self, bodies: Sequence[tuple[bytes, Any]]) -> None:
        """``bodies``: with their row keys, those of the same row key one after the other."""
        self._wanted = max(SHARED_ROW_KEYS_MIN, SHARED_PART_MIN * len({row_key for row_key, _ in bodies}))
        self._values: dict[tuple[Path, type, str | int | float], _Seen] = {}
        self._names: dict[Path, _Seen] = {}
        for row_key, body in bodies:
            self._see(row_key, (), body)
        times: dict[Path, int] = {}
        rare: dict[Path, int] = {}
        for (path, _, _), seen in self._values.items():
            times[path] = times.get(path, 0) + seen.times
            if not self._is_common(seen):
                rare[path] = rare.get(path, 0) + seen.times
        private = {path for path, count in rare.items() if count > RARE_PART_MAX * times[path]}
        self._common: dict[Path, _Drawn] = {}
        for (path, _, value), seen in self._values.items():
            if path not in private and self._is_common(seen):
                self._common.setdefault(path, _Drawn()).add(value, seen.times)

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
        """The value with what few share replaced."""
        if isinstance(value, dict):
            return {name: self.blank((*path, name), member, random) for name, member in value.items() if self._is_common(self._names[(*path, name)])}
        if isinstance(value, list):
            return [self.blank((*path, _ELEMENT), element, random) for element in value]
        if value is None or isinstance(value, bool):
            return value
        if (common := self._common.get(path)) is not None and self._is_common(self._values[path, type(value), value]):
            return common.draw(random)
        return _like_text(value, random) if isinstance(value, str) else _like_number(value, random)

    def _is_common(self, seen: _Seen) -> bool:
        return seen.row_keys >= self._wanted


def _like_text(text: str, random: Random) -> str:
    return "".join([_like(character, random) for character in text[:TEXT_MAX]])


def _like(character: str, random: Random) -> str:
    if character in string.digits:
        return random.choice(string.digits)
    if character in string.ascii_uppercase:
        return random.choice(string.ascii_uppercase)
    if character in string.punctuation or character == " ":
        return character
    return random.choice(string.ascii_lowercase)


def _like_number(number: float, random: Random) -> int | float:
    sign = -1 if number < 0 else 1
    if isinstance(number, int):
        digits = min(len(str(abs(number))), _NUMBER_MAX)
        return sign * random.randrange(10 ** (digits - 1), 10**digits)
    whole, _, fraction = repr(abs(number)).partition(".")
    if not (whole + fraction).isdigit():
        return sign * random.random()  # 1e300, 1e-7: no shape that many share
    places = min(len(fraction), _NUMBER_MAX)
    return sign * round(random.uniform(0, 10 ** min(len(whole), _NUMBER_MAX)), places)
