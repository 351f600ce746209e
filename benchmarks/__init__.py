"""Figures with the limit beside them. Each module ``NAME`` (``put_http`` for ``put-http``) has
``figures() -> Iterator[Figure]`` and a docstring that names the thing measured, its peer, and the
method.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limit:
    """The bound that a figure has to reach (``at_least``) or may not pass."""

    value: float
    at_least: bool

    def holds(self, figure: float) -> bool:
        """Whether the figure is on the right side."""
        return figure >= self.value if self.at_least else figure <= self.value


def at_least(value: float) -> Limit:
    """A limit for rates."""
    return Limit(value, at_least=True)


def at_most(value: float) -> Limit:
    """A limit for times and sizes."""
    return Limit(value, at_least=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure, a median of interleaved runs.

    ``ratio`` is figure / beside_figure where something was measured beside it, figure / limit where
    there is only a limit.
    """

    name: str
    figure: float
    unit: str
    beside: str | None = None
    beside_figure: float | None = None
    limit: Limit | None = None

    @property
    def ratio(self) -> float | None:
        """Rounded to three places; None where there is nothing to compare with."""
        measure = self.beside_figure or (self.limit.value if self.limit else None)
        return round(self.figure / measure, 3) if measure else None

    @property
    def within_limit(self) -> bool | None:
        """None where there is no limit."""
        return self.limit.holds(self.figure) if self.limit else None

    def as_json(self) -> dict[str, object]:
        """The line of ``--json``."""
        return {
            "name": self.name,
            "figure": _rounded(self.figure),
            "unit": self.unit,
            "beside": self.beside,
            "beside_figure": None if self.beside_figure is None else _rounded(self.beside_figure),
            "ratio": self.ratio,
            "limit": self.limit.value if self.limit else None,
            "at_least": self.limit.at_least if self.limit else None,
            "within_limit": self.within_limit,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Figure:
        """The figure of such a line. Raises KeyError for a line without its fields."""
        limit = given["limit"]
        return cls(
            name=given["name"],
            figure=given["figure"],
            unit=given["unit"],
            beside=given["beside"],
            beside_figure=given["beside_figure"],
            limit=None if limit is None else Limit(limit, at_least=given["at_least"]),
        )


def benchmark_names() -> dict[str, str]:
    """Every benchmark by name, with the first line of its docstring."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            imported = importlib.import_module(f"{__name__}.{module.name}")
            if hasattr(imported, "figures"):
                found[module.name.replace("_", "-")] = (
                    (imported.__doc__ or "").strip().partition("\n")[0]
                )
    return dict(sorted(found.items()))


def run_benchmark(name: str) -> Iterator[Figure]:
    """The figures of one benchmark, as they are measured. Raises KeyError for a name that does not
    exist."""
    if name not in benchmark_names():
        raise KeyError(name)
    figures: Iterator[Figure] = importlib.import_module(
        f"{__name__}.{name.replace('-', '_')}"
    ).figures()
    return figures


def _rounded(value: float) -> float:
    return round(value, 3 if abs(value) < 100 else 0)
