"""Recorded runs as pictures: SVG, for light and dark pages, drawn from the JSON alone.

One run is a dot plot with a panel for each unit. Its axis is logarithmic: equal ratios are equal
distances, from a cell's microsecond to a shard's minute. A filled dot is cellfeed's, a hollow one
the peer's, a bar the limit. A figure beyond its limit is red, and says so in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from benchmarks import Figure
from benchmarks._record import Run, read_run

_STYLE: Final = """\
  <style>
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .small { font-size: 11px; fill: #59636e }
    .head { font-weight: 600 }
    .grid { stroke: #d1d9e0; stroke-width: 1 }
    .link { stroke: #818b98; stroke-width: 2 }
    .ours { fill: #0969da }
    .peer { fill: #ffffff; stroke: #59636e; stroke-width: 2 }
    .limit { fill: #9a6700 }
    .missed { fill: #cf222e }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .small { fill: #9198a1 }
      .grid { stroke: #3d444d }
      .link { stroke: #656c76 }
      .ours { fill: #58a6ff }
      .peer { fill: #0d1117; stroke: #9198a1 }
      .limit { fill: #d29922 }
      .missed { fill: #f85149 }
    }
  </style>
"""
WIDTH: Final = 860
_LEFT, _RIGHT = 330, 700
"""Where the axis begins and ends; names stand on its left, values on its right."""
_ROW, _PANEL, _TOP, _BOTTOM = 34, 40, 68, 30
_NAME_MAX = 46


_LEGEND: Final = (
    "dot: cellfeed; ring: beside it in the same run; bar: the limit; red: beyond the limit"
)


class Axis:
    """A logarithmic axis that has room for all values; those that are not above 0 have no place."""

    def __init__(self, values: Sequence[float]) -> None:
        shown = [value for value in values if value > 0] or [1.0]
        low, high = math.log10(min(shown)), math.log10(max(shown))
        room = max((high - low) * 0.05, 0.05)
        self._low, self._high = low - room, high + room

    def x(self, value: float) -> float:
        """The place of a value above 0, in pixels."""
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return round(_LEFT + share * (_RIGHT - _LEFT), 1)

    def marks(self) -> list[float]:
        """The values with a line: powers of ten, with 2 and 5 between them where few fit."""
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        steps = (1,) if self._high - self._low > 3 else (1, 2, 5)
        found = [step * 10.0**decade for decade in decades for step in steps]
        return [value for value in found if self._low <= math.log10(value) <= self._high]


def plot_of(run: Run) -> str:
    """One run, every figure of it."""
    panels: dict[str, list[Figure]] = {}
    for figure in run.figures:
        panels.setdefault(figure.unit, []).append(figure)
    y, parts = _TOP, list[str]()
    for unit, figures in panels.items():
        parts.extend(_panel(run, unit, figures, y))
        y += _PANEL + _ROW * len(figures)
    about = (
        f"{run.at:%Y-%m-%d %H:%M} UTC, commit {run.commit}, {run.cores} cores,"
        f" load {run.load_before:.1f} to {run.load_after:.1f}"
    )
    return _picture(f"python -m benchmarks {run.benchmark}", about, parts, y)


def plot_of_limits(runs: Sequence[Run]) -> str:
    """Every figure that has a limit, by its distance to it: the misses first."""
    rows = sorted(
        (
            (margin, run, figure)
            for run in runs
            for figure in run.figures
            if (margin := _margin(figure)) is not None
        ),
        key=lambda row: row[0],
    )
    axis = Axis([1.0, *(margin for margin, _, _ in rows)])
    height = _PANEL + _ROW * len(rows)
    parts = list(_grid(axis, _TOP, height, "times better than the limit"))
    parts.append(_tick(axis.x(1.0), _TOP + _PANEL - 8, height - _PANEL))
    for number, (margin, run, figure) in enumerate(rows):
        y = _TOP + _PANEL + _ROW * number
        parts.extend(_names(f"{run.benchmark}: {_short(run, figure)}", _details(figure), y))
        parts.extend(_dot(axis.x(margin), y, figure))
        parts.append(_value(f"{_number(margin)} ×", y, figure))
    missed = sum(figure.within_limit is False for _, _, figure in rows)
    about = f"{len(rows)} figures with a limit, {missed} missed"
    return _picture("Figures beside their limits", about, parts, _TOP + height)


def _margin(figure: Figure) -> float | None:
    """How many times better than its limit; None without one, or without a ratio."""
    if figure.limit is None or figure.figure <= 0 or figure.limit.value <= 0:
        return None
    ratio = figure.figure / figure.limit.value
    return ratio if figure.limit.at_least else 1 / ratio


def _panel(run: Run, unit: str, figures: Sequence[Figure], top: int) -> Iterator[str]:
    values = [value for figure in figures for value in _values(figure)]
    axis = Axis(values)
    yield from _grid(axis, top, _PANEL + _ROW * len(figures), unit)
    for number, figure in enumerate(figures):
        y = top + _PANEL + _ROW * number
        yield from _names(_short(run, figure), _details(figure), y)
        peer, limit = figure.beside_figure, figure.limit
        if peer is not None and peer > 0 and figure.figure > 0:
            yield (
                f'<line class="link" x1="{axis.x(figure.figure)}" y1="{y}"'
                f' x2="{axis.x(peer)}" y2="{y}"/>'
            )
            yield f'<circle class="peer" cx="{axis.x(peer)}" cy="{y}" r="5"/>'
        if limit is not None and limit.value > 0:
            yield _tick(axis.x(limit.value), y - 9, 18)
        if figure.figure > 0:
            yield from _dot(axis.x(figure.figure), y, figure)
        yield _value(_number(figure.figure), y, figure)


def _values(figure: Figure) -> Iterator[float]:
    yield figure.figure
    if figure.beside_figure is not None:
        yield figure.beside_figure
    if figure.limit is not None:
        yield figure.limit.value


def _short(run: Run, figure: Figure) -> str:
    """A figure's name without that of its benchmark."""
    for prefix in (run.benchmark, run.benchmark.replace("-", " ")):
        if figure.name.startswith(prefix) and (shorter := figure.name[len(prefix) :].strip(" :,")):
            return shorter
    return figure.name


def _details(figure: Figure) -> str:
    parts = []
    if figure.beside is not None and figure.beside_figure is not None:
        parts.append(f"{figure.beside}: {_number(figure.beside_figure)}")
    if figure.limit is not None:
        parts.append(f"limit {'≥' if figure.limit.at_least else '≤'} {_number(figure.limit.value)}")
    return ", ".join(parts)


def _names(name: str, details: str, y: int) -> Iterator[str]:
    shown = name if len(name) <= _NAME_MAX else name[: _NAME_MAX - 1] + "…"
    yield f'<text x="12" y="{y + (0 if details else 5)}">{escape(shown)}</text>'
    if details:
        yield f'<text class="small" x="12" y="{y + 13}">{escape(details)}</text>'


def _value(text: str, y: int, figure: Figure) -> str:
    missed = figure.within_limit is False
    style = ' class="missed"' if missed else ""
    return f'<text{style} x="{_RIGHT + 14}" y="{y + 5}">{text}{", missed" if missed else ""}</text>'


def _dot(x: float, y: int, figure: Figure) -> Iterator[str]:
    style = "missed" if figure.within_limit is False else "ours"
    yield f'<circle class="{style}" cx="{x}" cy="{y}" r="6"/>'


def _tick(x: float, y: int, height: int) -> str:
    return f'<rect class="limit" x="{x - 1.5}" y="{y}" width="3" height="{height}"/>'


def _grid(axis: Axis, top: int, height: int, unit: str) -> Iterator[str]:
    yield f'<text class="head" x="12" y="{top + 10}">{escape(unit)}</text>'
    for mark in axis.marks():
        x = axis.x(mark)
        yield f'<line class="grid" x1="{x}" y1="{top + 18}" x2="{x}" y2="{top + height - 14}"/>'
        yield (
            f'<text class="small" x="{x}" y="{top + 12}" text-anchor="middle">'
            f"{_number(mark)}</text>"
        )


def _picture(title: str, about: str, parts: Sequence[str], bottom: int) -> str:
    height = bottom + _BOTTOM
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
            ' aria-labelledby="title">',
            f'  <title id="title">{escape(title)}: {escape(about)}</title>',
            _STYLE.rstrip("\n"),
            f'  <text class="head" x="12" y="24">{escape(title)}</text>',
            f'  <text class="small" x="12" y="42">{_LEGEND}</text>',
            *(f"  {part}" for part in parts),
            f'  <text class="small" x="12" y="{height - 10}">{escape(about)}</text>',
            "</svg>",
            "",
        ]
    )


def _number(value: float) -> str:
    """Three digits that count, as people write them."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"


def draw(folder: Path) -> list[Path]:
    """Draws ``FOLDER/NAME.svg`` for each of ``FOLDER/results/NAME.json``, and ``limits.svg``; the
    paths of the pictures. Raises ValueError for a file that is no recorded run."""
    drawn = []
    for name, picture in pictures(folder / "results").items():
        drawn.append(folder / f"{name}.svg")
        drawn[-1].write_text(picture)
    return drawn


def pictures(results: Path) -> dict[str, str]:
    """The pictures of recorded runs by name."""
    runs = [read_run(path) for path in sorted(results.glob("*.json"))]
    found = {run.benchmark: plot_of(run) for run in runs}
    return {"limits": plot_of_limits(runs)} | found if runs else {}
