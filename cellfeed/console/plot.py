"""Lag over time, as the points of an SVG line: no script has to draw it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

WIDTH: Final = 240
HEIGHT: Final = 40


class Plot(NamedTuple):
    """``points``: of an SVG ``polyline`` in a box of WIDTH by HEIGHT. ``most``: the value at its
    top. ``span_s``: the seconds from its left to its right."""

    points: str
    most: int
    span_s: float


def plot(values: Sequence[tuple[float, int]]) -> Plot | None:
    """A line through (seconds, value), the earliest first; None for fewer than two."""
    if len(values) < 2:
        return None
    first_s, last_s = values[0][0], values[-1][0]
    most, span_s = max(value for _, value in values), max(last_s - first_s, 1e-9)
    points = [
        (
            (at_s - first_s) / span_s * WIDTH,
            HEIGHT - 1 - value / max(most, 1) * (HEIGHT - 2),
        )
        for at_s, value in values
    ]
    return Plot(" ".join(f"{x:.1f},{y:.1f}" for x, y in points), most, span_s)
