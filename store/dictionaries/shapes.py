"""Random values of the shape of others: a digit for a digit, a letter for a letter."""

from __future__ import annotations

import string
from random import Random
from typing import Final

TEXT_MAX: Final = 64
"""Characters of a replaced string: a longer one is cut, its shape repeats in no other body."""

_NUMBER_MAX: Final = 18
"""Digits of a replaced number: any such integer is a valid body's."""


def like_text(text: str, random: Random) -> str:
    """Random characters of the same kinds, ``TEXT_MAX`` at most."""
    return "".join([_like(character, random) for character in text[:TEXT_MAX]])


def _like(character: str, random: Random) -> str:
    if character in string.digits:
        return random.choice(string.digits)
    if character in string.ascii_uppercase:
        return random.choice(string.ascii_uppercase)
    if character in string.punctuation or character == " ":
        return character
    return random.choice(string.ascii_lowercase)


def like_number(number: float, random: Random) -> int | float:
    """A random number with as many digits."""
    sign = -1 if number < 0 else 1
    if isinstance(number, int):
        digits = min(len(str(abs(number))), _NUMBER_MAX)
        return sign * random.randrange(10 ** (digits - 1), 10**digits)
    whole, _, fraction = repr(abs(number)).partition(".")
    if not (whole + fraction).isdigit():
        return sign * random.random()  # 1e300, 1e-7: no shape that many share
    places = min(len(fraction), _NUMBER_MAX)
    return sign * round(random.uniform(0, 10 ** min(len(whole), _NUMBER_MAX)), places)
